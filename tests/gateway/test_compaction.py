"""Responses: items named by their ids, and summaries the server makes, by the official SDK against a live gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from bridle.engines.script import Expect, Script, ScriptTurn, Thread, When
from bridle.gateway.client import OpenedSession
from bridle.gateway.conversations import Conversations
from bridle.messages import KindRule, Message, ModelRequest, Reply, Text, Usage
from bridle.rendering.template import TemplateRenderer
from bridle.sessions.records import Limits
from bridle.testing.ground import shell

BASH: Any = {
    "type": "function",
    "name": "bash",
    "description": "run",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
SUMMARY = "I listed the files; a.py holds the error."


def script(thinking: str | None) -> Script:
    """`thinking`: before the summary."""
    return Script(
        (
            Thread(
                (ScriptTurn(text=SUMMARY, thinking=thinking),),
                "compaction",
                When(last_user_contains="Answer with the summary alone"),
            ),
            Thread((shell("ls", text="Looking.", thinking="Hm."), ScriptTurn(text="Seen."), ScriptTurn(text="Fixed."))),
        ),
        Expect(reasons=("kind",)),
        resegment=0.4,
        seed=11,
    )


SCRIPT = script("What was it?")
GO: Any = {"role": "user", "content": "Go."}


def client(session: OpenedSession) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"])


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "a.py"}
        for item in response.output
        if item.type == "function_call"
    ]


def references(response: Any) -> list[Any]:
    return [{"type": "item_reference", "id": item.id} for item in response.output]


async def test_a_history_of_references_is_spliced_as_what_was_said(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT, samples=1) as g, client(await g.open()) as sdk:
        fixed: Any = {"model": "bridle", "tools": [BASH]}
        first = await sdk.responses.create(**fixed, input=[GO])
        history = [GO, *references(first), *outputs(first)]
        second = await sdk.responses.create(**fixed, input=history)
        history += [*references(second), {"role": "user", "content": "And?"}]
        counted = await sdk.responses.input_tokens.count(**fixed, input=history)
        third = await sdk.responses.create(**fixed, input=history)
        assert (third.output_text, third.usage.input_tokens) == ("Fixed.", counted.input_tokens)  # type: ignore[union-attr]
        report = await g.checked()
    assert g.echoes == ["exact", "exact"]
    assert (report.generations, report.kept_percent) == (3, 100.0)


async def test_a_reference_to_another_sessions_item_is_refused_and_nothing_is_recorded(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT) as g:
        async with client(await g.open()) as sdk, client(await g.open("other")) as foreign:
            response = await foreign.responses.create(model="bridle", input=[GO], tools=[BASH])
            with pytest.raises(openai.BadRequestError, match="in what was answered in this session"):
                await sdk.responses.create(model="bridle", input=[GO, *references(response)])
        await g.finish("other")
        await g.finish()
    assert g.turns == ()


Compact = Callable[[AsyncOpenAI, list[Any]], Awaitable[list[Any]]]
"""-> the input that takes the place of a history."""


async def by_route(sdk: AsyncOpenAI, history: list[Any]) -> list[Any]:
    return list((await sdk.responses.compact(model="bridle", input=history)).output)


async def by_trigger(sdk: AsyncOpenAI, history: list[Any]) -> list[Any]:
    asked = [*history, {"type": "compaction_trigger"}]
    response = await sdk.responses.create(model="bridle", input=asked, tools=[BASH])
    return [GO, *response.output]


async def by_streamed_trigger(sdk: AsyncOpenAI, history: list[Any]) -> list[Any]:
    asked: list[Any] = [*history, {"type": "compaction_trigger"}]
    events = await sdk.responses.create(model="bridle", input=asked, tools=[BASH], stream=True)
    return [GO, *[event.item async for event in events if event.type == "response.output_item.done"]]


@pytest.mark.parametrize("thinking", ["What was it?", None], ids=["reasoned", "text alone"])
@pytest.mark.parametrize("compact", [by_route, by_trigger, by_streamed_trigger])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the SDK's own, of a user's message in an output
async def test_a_summary_stands_for_the_history_with_the_ids_it_was_sampled_in(  # type: ignore[no-untyped-def]
    grounds, renderer: TemplateRenderer, compact: Compact, thinking: str | None
) -> None:
    rules = (KindRule("main", "everything"),)
    async with grounds(script=script(thinking), samples=2) as g, client(await g.open(kinds=rules)) as sdk:
        first = await sdk.responses.create(model="bridle", input=[GO], tools=[BASH])
        history = [GO, *first.output, *outputs(first)]
        left = await compact(sdk, history)
        assert SUMMARY not in str(left)
        second = await sdk.responses.create(
            model="bridle", input=[*left, {"role": "user", "content": "Go on."}], tools=[BASH]
        )
        assert second.output_text == "Seen."
        report = await g.checked()
        prompts = [renderer.vocabulary.decode(entry.prompt.tolist()) for entry in g.journal()]
        said = g.journal()[1].output.tolist()
        after = g.journal()[2].prompt.tolist()
    assert [(turn.kind, turn.rule) for turn in g.turns] == [
        ("main", "everything"),
        ("compaction", "call"),
        ("main", "everything"),
    ]
    assert any(after[at : at + len(said)] == said for at in range(len(after))), "the very ids, not the text again"
    assert "Looking." in prompts[1]
    assert "Looking." not in prompts[2]
    assert g.echoes[-1] == "exact+transplanted"
    assert (report.kept_percent, report.untrained) == (100.0, {})


async def test_a_summary_is_trained_as_its_kind_is(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT) as g, client(await g.open()) as sdk:
        await sdk.responses.create(model="bridle", input=[GO], tools=[BASH])
        await sdk.responses.compact(model="bridle", input=[GO])
        report = await g.checked(kinds={"subagent": "context", "compaction": "context"})
    assert report.untrained == {"kind": len(g.journal()[1].output)}


@pytest.mark.parametrize("thinking", ["What was it?", None], ids=["reasoned", "text alone"])
async def test_a_conversation_is_summarized_and_gone_on_from_by_its_id(  # type: ignore[no-untyped-def]
    grounds, renderer: TemplateRenderer, thinking: str | None
) -> None:
    async with grounds(script=script(thinking)) as g, client(await g.open()) as sdk:
        first = await sdk.responses.create(model="bridle", input="Go.", instructions="Be kind.", tools=[BASH])
        window = await sdk.responses.compact(model="bridle", previous_response_id=first.id)
        await sdk.responses.create(model="bridle", input="Go on.", previous_response_id=window.id)
        await g.checked()
        last = renderer.vocabulary.decode(g.journal()[-1].prompt.tolist())
    assert last.index("Go.") < last.index(SUMMARY) < last.index("Go on.")
    assert g.echoes == ["exact+transplanted", "exact+transplanted"], "a call to summarize offers no tools"
    assert "Looking." not in last
    assert "Answer with the summary alone" not in last


ASKED: dict[str, dict[str, Any]] = {
    "tool_choice": {"tool_choice": "required"},
    "text.format": {"text": {"format": {"type": "json_schema", "name": "z", "schema": {"type": "object"}}}},
}


@pytest.mark.parametrize("dropped", ASKED)
async def test_a_summary_is_held_to_no_form_that_the_request_asks_for(grounds, dropped: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT) as g, client(await g.open()) as sdk:
        asked: list[Any] = [GO, {"type": "compaction_trigger"}]
        response = await sdk.responses.create(model="bridle", input=asked, tools=[BASH], **ASKED[dropped])
        assert [item.type for item in response.output] == ["compaction"]
        report = await g.checked()
        wished = [turn.notes for turn in g.turns]
    assert report.untrained == {}
    assert [note.what for note in wished[0]] == ["wish_dropped"]
    assert dropped in wished[0][0].detail


async def test_a_conversation_too_long_to_be_summarized_is_refused_as_any_prompt_is(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT, context_length=600) as g, client(await g.open()) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.compact(model="bridle", input="word " * 800)
        assert refused.value.code == "context_length_exceeded"
        await g.finish()


async def test_a_session_at_its_limit_makes_no_summary(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT) as g, client(await g.open(limits=Limits(turns=1))) as sdk:
        await sdk.responses.create(model="bridle", input=[GO], tools=[BASH])
        with pytest.raises(openai.BadRequestError, match="has used its 1 turns"):
            await sdk.responses.compact(model="bridle", input=[GO])
        await g.checked()


async def test_a_server_that_shall_summarize_by_itself_says_that_it_does_not(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(script=SCRIPT) as g, client(await g.open()) as sdk:
        await sdk.responses.create(
            model="bridle",
            input=[GO],
            tools=[BASH],
            context_management=[{"type": "compaction", "compact_threshold": 1000}],
        )
        await g.checked()
    assert "wish_dropped" in g.notes


def test_what_is_kept_behind_a_summary_is_what_the_user_said() -> None:
    def say(role: Any, text: str) -> Message:
        return Message(role, (Text(text),))

    held = Conversations()
    asked = (say("system", "A"), say("user", "1"), say("assistant", "2"), say("user", "3"), say("user", "Sum up."))
    request = ModelRequest("openai_responses", "m", asked, instructions=1, store=True, kind="compaction")
    held.remember(request, Reply("r1", "m", say("assistant", "S"), "stop", Usage(1, 1)))
    resolved = held.resolve(ModelRequest("openai_responses", "m", (say("user", "4"),), previous="r1"))
    assert [message.text for message in resolved.messages] == ["1", "3", "S", "4"]


async def test_the_synchronous_sdk_is_given_a_summary_too(grounds) -> None:  # type: ignore[no-untyped-def]
    def talk(session: OpenedSession) -> str:
        with openai.OpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as sdk:
            window = sdk.responses.compact(model="bridle", input="Go.")
            return window.output[-1].type

    async with grounds(script=SCRIPT) as g:
        assert await asyncio.to_thread(talk, await g.open()) == "compaction"
        await g.checked()
