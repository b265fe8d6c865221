"""Every family of models, shortened: proved, or refused with a reason; none differs in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridle.testing.verify_models import Model, models, verdict, verify_model

TRAINED = [model for model in models() if not model.real]
REAL = [model for model in models() if model.real]


@pytest.mark.slow
@pytest.mark.parametrize("model", TRAINED, ids=lambda model: model.name)
def test_a_family_is_proved_or_refused_with_a_reason(model: Model, tmp_path: Path) -> None:
    result = verify_model(model, tmp_path, short=True)
    assert result.outcome in ("verified", "refused"), result.reason
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
