"""Stop texts end an answer, no part of one reaches a client, and the ids that were sampled stay whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from bridle.engines.script import ScriptTurn
from bridle.gateway.stops import Withheld, cut
from bridle.messages import Message, Text, Thinking, ToolCall
from bridle.rendering.base import TextDelta, ThinkingDelta
from bridle.rendering.template import TemplateRenderer
from bridle.testing.exchange import exchange

SAID = "One two three END four."
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_what_goes_out_is_a_prefix_of_what_is_left_when_a_stop_text_is_cut(
    said: str, stops: list[str], data: st.DataObject
) -> None:
    """However the text comes in pieces, up to the id that completes a stop text."""
    ends = {said.find(stop) + len(stop): stop for stop in stops if stop in said}
    stopped = said[: min(ends)] if ends else said
    kept = cut(Message("assistant", (Text(stopped),)), ends[min(ends)]).text if ends else said
    withheld, out, at = Withheld(stops), "", 0
    while at < len(stopped):
        end = data.draw(st.integers(at + 1, len(stopped)))
        out += "".join(event.text for event in withheld.pass_on([TextDelta(stopped[at:end])]))  # type: ignore[attr-defined]
        at = end
        assert kept.startswith(out)
    longest = max(map(len, stops))
    assert ends or len(said) - len(out) < longest, "no more is held back than may begin a stop text"


def test_text_waits_no_longer_once_thinking_follows() -> None:
    withheld = Withheld(("xyz",))
    events = withheld.pass_on([ThinkingDelta("a x"), TextDelta("b")])
    assert events == [ThinkingDelta("a "), ThinkingDelta("x"), TextDelta("b")]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        (Text("ab STOP c"), (Text("ab "),)),
        (Text("STOP"), ()),
        (Thinking("a STOP"), (Thinking("a "),)),
        (Text("else"), (Text("else"),)),
        (ToolCall("i", "n", '{"a": "STOP', "unclosed"), (ToolCall("i", "n", '{"a": "', "unclosed"),)),
    ],
)
def test_a_message_ends_before_its_stop_text(last: Any, left: tuple[Any, ...]) -> None:
    before = Thinking("STOP is not here")
    assert cut(Message("assistant", (before, last)), "STOP").parts == (before, *left)


def test_a_message_ends_before_a_stop_text_that_began_in_what_the_format_takes_off() -> None:
    thought = Thinking("hm")
    assert cut(Message("assistant", (thought, Text("ABC."))), "\n\nABC").parts == (thought,)
    whole = Message("assistant", (thought, Text("C.")))
    assert cut(whole, "ABC") == whole, "only white space is taken off"


def test_what_may_be_the_rest_of_a_stop_text_is_held_where_a_stretch_begins() -> None:
    withheld = Withheld(("\n\nABC",))
    assert withheld.pass_on([ThinkingDelta("hm"), TextDelta("A"), TextDelta("BC")]) == [ThinkingDelta("hm")]
    withheld = Withheld(("\n\nABC",))
    events = withheld.pass_on([ThinkingDelta("hm"), TextDelta("A"), TextDelta("nd"), TextDelta("ABC")])
    assert events == [ThinkingDelta("hm"), TextDelta("And"), TextDelta("ABC")]


async def test_a_stop_text_right_behind_thinking_ends_the_stream(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    """Its first two characters are the format's own, so that only the rest of it is text."""
    wish = {"stop_sequences": ["\n\nEND"]} if protocol == "anthropic" else {"stop": ["\n\nEND"]}
    async with grounds(ScriptTurn(raw="<think>\nhm\n</think>\n\nEND of it<|im_end|>")) as g:
        agent = agents(protocol, await g.open(), stream=True)
        agent.tell("Go.")
        answer = await agent.ask(**wish)
        report = await g.checked()
    assert (answer.text, report.kept_percent) == ("", 100.0)


async def test_a_stop_text_ends_the_answer_and_its_echo_is_the_draw(  # type: ignore[no-untyped-def]
    grounds, agents, renderer: TemplateRenderer, protocol: str, stream: bool
) -> None:
    wish = {"stop_sequences": ["END"]} if protocol == "anthropic" else {"stop": ["END"]}
    async with grounds(ScriptTurn(text=SAID), ScriptTurn(text="Short.")) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        answer = await agent.ask(**wish)
        agent.remember(answer)
        agent.tell("Go on.")
        await agent.ask(**wish)
        report = await g.checked()
        first, _ = g.journal()
    assert (answer.text, answer.finish) == ("One two three ", "stop_sequence" if protocol == "anthropic" else "stop")
    assert (
        b"".join(map(renderer.vocabulary.token_bytes, first.output.tolist())).decode().startswith("One two three END")
    )
    assert (report.kept_percent, g.echoes, g.notes) == (100.0, ["exact"], [])
    assert len(g.samples) == 1, "the next turn goes on from the whole draw"


async def test_a_call_that_a_stop_text_cuts_is_not_announced_as_one_to_run(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "rm -r x END"}}\n</tool_call>'
    async with grounds(ScriptTurn(raw=f"{call}<|im_end|>")) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        assert (await agent.ask(stop=["END"])).finish == "stop"
        await g.checked()


async def test_no_part_of_a_stop_text_is_ever_in_the_stream(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    said = "<thinking of it> EN, then E, then END"
    body: dict[str, Any] = {"model": "bridle", "max_tokens": 99, "stream": True}
    body |= {"stop_sequences": ["END"]} if protocol == "anthropic" else {"stop": "END"}
    body["messages"] = [{"role": "user", "content": "Go."}]
    async with grounds(ScriptTurn(text=said)) as g:
        session = await g.open()
        _, answer = await exchange(g.gateway.url, PATHS[protocol], session.key, body)
        await g.checked()
    events = [orjson.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    deltas = [e.get("delta", {}).get("text") for e in events]
    deltas += [c["delta"].get("content") for e in events for c in e.get("choices", [])]
    assert "".join(filter(None, deltas)) == "<thinking of it> EN, then E, then "
