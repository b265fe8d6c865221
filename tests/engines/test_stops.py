from __future__ import annotations

import random

import pytest

from bridle.engines.stops import StopTexts
from bridle.rendering.template import TemplateRenderer


def stopped(renderer: TemplateRenderer, ids: list[int], *stop: str) -> tuple[str, str]:
    """-> what was said when a text ended it, and that text."""
    texts = StopTexts(stop, renderer.vocabulary)
    for at, id in enumerate(ids):
        if found := texts.feed(id):
            return renderer.vocabulary.decode(ids[: at + 1]), found
    return renderer.vocabulary.decode(ids), ""


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("stop", ["Observation:", "日本", "👍🏽", "\n\n", "n"])
def test_a_text_is_found_wherever_the_borders_of_tokens_fall(
    renderer: TemplateRenderer, stop: str, rate: float
) -> None:
    said = "Thought: 日月本 👍🏻 look\nObservatio\nObservation: 日本 👍🏽 \n\nmore"
    for seed in range(20):
        ids = renderer.vocabulary.resegment(renderer.vocabulary.encode(said).tolist(), random.Random(seed), rate)
        text, found = stopped(renderer, ids.tolist(), "absent", stop)
        assert found == stop
        assert text.rstrip("\ufffd").index(stop) + len(stop) <= len(text)
        before = said[: said.index(stop) + len(stop)]
        assert text.startswith(before)
        if rate == 1.0:
            assert text == before


def test_the_text_that_ends_first_is_named(renderer: TemplateRenderer) -> None:
    ids = renderer.vocabulary.encode("one two three").tolist()
    assert stopped(renderer, ids, "two three", "two")[1] == "two"


def test_a_control_id_has_no_text_and_no_text_reaches_across_one(renderer: TemplateRenderer) -> None:
    vocabulary = renderer.vocabulary
    control = vocabulary.controls["<tool_call>"]
    ids = [*vocabulary.encode("ab").tolist(), control, *vocabulary.encode("cd").tolist()]
    assert stopped(renderer, ids, "<tool_call>", "bc", "abcd")[1] == ""
    assert stopped(renderer, vocabulary.encode("<tool_call>").tolist(), "<tool_call>")[1] == "<tool_call>"
