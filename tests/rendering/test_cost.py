"""What a draw costs to read grows with its length, however it was sampled."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bridle.messages import Tool, ToolCall
from bridle.rendering.calls import Block, Found, Tag
from bridle.rendering.reply import ReplyFormat, TagParser
from bridle.rendering.sections import Calls
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_deepseek import DsmlCalls
from bridle.rendering.tools_json import JsonCalls
from bridle.rendering.tools_llama import LlamaCalls

TOOLS = {"x": Tool("x")}


class BareCalls(JsonCalls):
    """Without a tag only where an answer begins with one, as Llama's calls, and with tags of the tiny vocabulary."""

    bare = "{"


def cost(work: Callable[[], object]) -> float:
    """The least CPU time of three."""
    spent: list[float] = []
    for _ in range(3):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return min(spent)


def assert_linear(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """Eight times as much may cost 24 times as much, where a quadratic cost is 64 times as high. Below a millisecond
    nothing is told apart."""
    assert cost(make(8 * size)) < 24 * max(cost(make(size)), 0.001)


def test_many_calls_in_one_block_find_their_ids() -> None:
    def make(count: int) -> Callable[[], object]:
        calls = Calls("", 0)
        for at in range(count):
            calls.add("x", at)
        found = [Found(ToolCall("", "x", "{}"), at, at + 1) for at in range(count)]
        return lambda: list(calls.spans(found))

    assert_linear(make, 1000)


@pytest.mark.parametrize(
    "source",
    [
        lambda size: f"x.call({'a' * size}",
        lambda size: f"x.call({' ' * size}x",
        lambda size: 'x.call(a="' + " " * size,
        lambda size: "x.call(" + ", ".join(['a="b"'] * size) + ")",
        lambda size: 'x.call(a="' + '", b' * size + ")",
        lambda size: f"{'a' * size}.call",
        lambda size: '{"name": "x", "parameters": {}}' * (size // 40),
    ],
    ids=["a word", "blanks", "an open value", "pairs", "quotes", "a name", "objects"],
)
def test_what_follows_llamas_tag_is_read_once(source: Callable[[int], str]) -> None:
    def make(size: int) -> Callable[[], object]:
        block = Block((source(size),), False)
        return lambda: LlamaCalls().read(block, TOOLS)

    assert_linear(make, 5000)


def test_parameters_that_are_not_closed_are_read_once() -> None:
    def make(count: int) -> Callable[[], object]:
        token = Tag("｜DSML｜")
        opening = ("<", token, 'parameter name="a" string="true">')
        block = Block(("<", token, 'invoke name="x">', *opening * count, "</", token, "invoke>"), True)
        return lambda: DsmlCalls().read(block, TOOLS)

    assert_linear(make, 400)


def test_blanks_before_an_answer_are_looked_at_once(tiny: TemplateRenderer) -> None:
    form = ReplyFormat(tiny.vocabulary, tiny.stop_ids, BareCalls(), opened_line=False)
    (blank,) = tiny.vocabulary.encode(" ").tolist()

    def make(count: int) -> Callable[[], object]:
        return lambda: TagParser(form, False, list(TOOLS.values())).feed([blank] * count)

    assert_linear(make, 800)
