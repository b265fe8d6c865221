"""Every family of models, shortened: proved, or refused with a reason; none differs in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bridle.testing import verify_models
from bridle.testing.verify_models import REFUSED, Model, Outcome, Result, models, unexpected, verdict, verify_model

TRAINED = [model for model in models() if not model.real]
REAL = [model for model in models() if model.real]


@pytest.mark.slow
@pytest.mark.parametrize("model", TRAINED, ids=lambda model: model.name)
def test_a_family_is_proved_or_refused_with_a_reason(model: Model, tmp_path: Path) -> None:
    result = verify_model(model, tmp_path, short=True)
    assert not unexpected([result]), result.reason
    assert (result.outcome == "refused") == bool(result.reason)


@pytest.mark.slow
@pytest.mark.parametrize("model", REAL, ids=lambda model: model.template.stem)
def test_a_current_template_over_a_real_vocabulary_takes_claude_codes_requests(model: Model, tmp_path: Path) -> None:
    result = verify_model(model, tmp_path, short=True)
    assert result.outcome == "verified", result.reason


def test_there_are_the_families_that_were_promised() -> None:
    assert len(TRAINED) >= 12
    assert len(REAL) >= 1


def test_the_last_line_counts_what_came_of_the_models() -> None:
    assert verdict([]) == "models: 0 verified, 0 refused with a reason, 0 silent"


def result(name: str, outcome: Outcome) -> Result:
    return Result(name, outcome, "" if outcome == "verified" else "because", 0.0, None)


def test_a_family_that_is_no_longer_verified_is_unexpected() -> None:
    (known,) = REFUSED
    results = [
        result("qwen3", "verified"),
        result(known, "refused"),
        result("gptoss", "refused"),
        result("glm4moe", "silent"),
    ]
    assert [one.name for one in unexpected(results)] == ["gptoss", "glm4moe"]


@pytest.mark.parametrize(("outcome", "code"), [("verified", 0), ("refused", 1), ("silent", 1)])
def test_the_exit_code_says_whether_every_family_came_out_as_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: int
) -> None:
    monkeypatch.setattr(verify_models, "verify_model", lambda model, *_: result(model.name, outcome))
    run = CliRunner().invoke(verify_models.main, ["llama3_1", "--out", str(tmp_path / "out.json")])
    assert run.exit_code == code
    assert ("llama3_1 was to be verified" in run.output) == bool(code)
