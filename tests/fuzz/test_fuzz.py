"""The fuzzer itself: it says the same twice, finds what is planted, and a short run of it finds nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bridle.gateway.client import GatewayClient
from bridle.gateway.server import GatewayConfig, serve
from bridle.protocols import NAMES
from bridle.protocols.anthropic import Anthropic
from bridle.rendering.template import load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.testing.fuzz.client import Answer
from bridle.testing.fuzz.corpus import SIGNATURE, seeds
from bridle.testing.fuzz.mutate import damaged
from bridle.testing.fuzz.oracle import ERRORS, wrong
from bridle.testing.fuzz.run import Found, FuzzEngine, Plan, Target, fuzz

NUL = b"\\u0000"
REFUSALS = {
    "anthropic": b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}',
    "openai_chat": b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}',
    "openai_responses": b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}',
    "gemini": b'{"error":{"code":400,"message":"no","status":"INVALID_ARGUMENT"}}',
}


def no_progress(done: int, found: Found) -> None: ...


@pytest.mark.slow
async def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    found = await fuzz(Plan(5, range(800), extremes=False), tmp_path, no_progress)
    assert found.failures == []
    assert found.inputs == 800
    assert found.over_http > 100
    assert {"200", "400", "parsed", "refused by the parser with 400"} <= found.statuses.keys()


@pytest.mark.slow
async def test_a_planted_defect_is_found_and_its_input_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Anthropic.parse

    def parse(self: Anthropic, body: bytes, *more: Any) -> Any:
        if NUL in body:
            raise KeyError("planted")
        return sound(self, body, *more)

    monkeypatch.setattr(Anthropic, "parse", parse)
    found = await fuzz(Plan(5, range(1500), extremes=False), tmp_path, no_progress)
    assert {failure.protocol for failure in found.failures} == {"anthropic"}
    assert all("planted" in failure.what and NUL in failure.input for failure in found.failures)
    over_http = [failure for failure in found.failures if "status 500" in failure.what]
    assert over_http
    assert all("log:" in failure.what for failure in over_http)


def test_every_protocol_has_a_corpus_and_known_errors() -> None:
    assert NAMES.keys() == ERRORS.keys()
    for name in NAMES:
        assert [seed for seed in seeds(name) if seed.first]


@pytest.mark.parametrize("protocol", NAMES)
async def test_histories_hold_identities_that_the_session_minted(tmp_path: Path, protocol: str) -> None:
    renderer = load_renderer(make_tokenizer(tmp_path / "model"))
    engine = FuzzEngine(renderer)
    async with (
        engine,
        serve(GatewayConfig(), renderer, engine, tmp_path) as gateway,
        GatewayClient(gateway.url, gateway.control_token) as control,
        Target(gateway.url, control) as target,
    ):
        corpus = seeds(protocol)
        calls, signatures = await target.identities(protocol, corpus)
    assert "none" not in calls
    assert "none" not in signatures or not any(SIGNATURE in json.dumps(seed.body) for seed in corpus)


def test_a_number_means_one_input() -> None:
    body = seeds("anthropic")[1].body
    assert [damaged(body, random.Random(f"1:{n}")) for n in range(50)] == [
        damaged(body, random.Random(f"1:{n}")) for n in range(50)
    ]


@pytest.mark.parametrize("protocol", NAMES)
def test_a_refusal_in_the_protocols_own_words_is_right(protocol: str) -> None:
    assert wrong(protocol, Answer(400, {}, REFUSALS[protocol])) == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(500, {}, b"{}"), "status 500"),
        (Answer(400, {}, b"<html>"), "no JSON"),
        (Answer(400, {}, b'{"detail": "no"}'), "no error of anthropic"),
        (
            Answer(400, {}, b'{"type":"error","error":{"type":"x","message":"Traceback (most recent"}}'),
            "speaks of itself",
        ),
        (Answer(200, {"content-type": "text/event-stream"}, b"event: message_start\n\n"), "without its end"),
    ],
)
def test_everything_else_is_wrong(answer: Answer, complaint: str) -> None:
    assert complaint in wrong("anthropic", answer)
