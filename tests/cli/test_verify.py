"""`bridle verify`, as people type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridle.engines.tiny_model import make_model
from bridle.rendering.tiny import make_tokenizer
from bridle.tokens import Vocabulary

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(place: Any) -> Path:
    """good/ with weights, and doubled/ whose template closes answers twice."""
    folder = Path(place.folder) / "models"
    good = make_tokenizer(folder / "good")
    make_model(good, Vocabulary.load(good).size)
    doubled = make_tokenizer(folder / "doubled")
    config = orjson.loads((doubled / "tokenizer_config.json").read_bytes())
    head, assistant, tail = config["chat_template"].partition("{%- endfor %}\n        {{- '<|im_end|>")
    config["chat_template"] = f"{head}{assistant}<|im_end|>{tail}"
    (doubled / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return folder


def test_verify_proves_a_good_model_and_audits_its_weights(bridle: Any, models: Path) -> None:
    done = bridle("verify", str(models / "good"), "--out", "good.json")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("verify: faithful: ")
    report = json.loads((models.parent / "good.json").read_text())
    assert (report["ok"], report["undeclared"], report["audit"]["verdict"]) == (True, [], "ok")
    assert {row["property"]: row["verdict"] for row in report["rows"]}["logprobs"] == "pass"


def test_verify_refutes_a_model_with_exit_code_1_and_shows_the_counterexample(bridle: Any, models: Path) -> None:
    done = bridle("verify", str(models / "doubled"), "--short")
    assert done.returncode == 1
    assert "REFUTED: end_of_turn" in done.stdout.splitlines()[-1]
    assert "<|im_end|><|im_end|>" in done.stdout


def test_verify_as_json_is_one_document(bridle: Any, models: Path) -> None:
    done = bridle("verify", str(models / "doubled"), "--short", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [row["property"] for row in report["rows"] if row["verdict"] == "fails"] == ["end_of_turn"]


def test_verify_says_why_a_directory_cannot_be_loaded(bridle: Any, place: Any) -> None:
    (place.folder / "empty").mkdir()
    done = bridle("verify", "empty")
    assert (done.returncode, done.stdout) == (2, "")
    assert "tokenizer.json" in done.stderr


def test_a_run_refuses_an_unfaithful_model_unless_told_otherwise(bridle: Any, place: Any, models: Path) -> None:
    refused = bridle(*place.run("fix.jsonl", "--model", str(models / "doubled"), "--out", "refused"))
    assert refused.returncode == 2
    assert "end_of_turn" in refused.stderr
    assert "renderer.verify=warn" in refused.stderr
    warned = bridle(
        *place.run("fix.jsonl", "--model", str(models / "doubled"), "--out", "warned", "--set", "renderer.verify=warn")
    )
    assert "not faithful: end_of_turn" in warned.stderr
    assert warned.returncode == 0, warned.stderr


def test_a_gateway_refuses_an_unfaithful_model(bridle: Any, place: Any, models: Path) -> None:
    flags = ["--model", str(models / "doubled"), "--engine", "transformers"]
    done = bridle("serve", "gateway", *flags, *place.settings(place.folder))
    assert done.returncode == 2
    assert "is not faithful here" in done.stderr
