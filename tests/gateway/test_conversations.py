"""Responses: histories sent whole, and histories gone on from, by the official SDK against a live gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from bridle.engines.calls import Call
from bridle.engines.script import ScriptTurn
from bridle.errors import PreviousNotFound
from bridle.gateway.client import OpenedSession
from bridle.gateway.conversations import Conversations
from bridle.messages import Message, ModelRequest, Reply, Text, Usage
from bridle.rendering.template import TemplateRenderer
from bridle.testing.ground import shell

BASH = {
    "type": "function",
    "name": "bash",
    "description": "run",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
PATCH = {"type": "custom", "name": "patch", "description": "edit", "format": {"type": "text"}}
WORK = (
    shell("ls", "pwd", text="Looking.", thinking="Where am I?"),
    shell("cat a", thinking="Reading."),
    ScriptTurn(thinking="All seen.", text="Done."),
)
Habit = Callable[[dict[str, Any]], dict[str, Any] | None]


Sdk = Callable[[OpenedSession], AsyncOpenAI]


@pytest_asyncio.fixture
async def sdk() -> AsyncIterator[Sdk]:
    async with AsyncExitStack() as stack:

        def make(session: OpenedSession) -> AsyncOpenAI:
            client = AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"])
            stack.push_async_callback(client.close)
            return client

        yield make


class Agent:
    """`habit`: what an item becomes in the history. `stateful`: names the response it goes on from instead."""

    def __init__(
        self,
        client: AsyncOpenAI,
        *,
        stream: bool = False,
        stateful: bool = False,
        habit: Habit = dict,
        tools: tuple[Any, ...] = (BASH,),
    ) -> None:
        self.client = client
        self.fixed: dict[str, Any] = {"model": "bridle", "tools": list(tools), "instructions": "You are an agent."}
        self.stream = stream
        self.stateful = stateful
        self.habit = habit
        self.input: list[dict[str, Any]] = []
        self.last: Any = None

    async def ask(self, **more: Any) -> Any:
        asked = {**self.fixed, "input": self.input, **more}
        if self.stateful and self.last is not None:
            asked["previous_response_id"] = self.last.id
        if not self.stream:
            self.last = await self.client.responses.create(**asked)
        else:
            events = [event async for event in await self.client.responses.create(**asked, stream=True)]
            self.last = events[-1].response
        echoed = [self.habit(item.to_dict()) for item in self.last.output]
        self.input = [] if self.stateful else [*self.input, *(item for item in echoed if item is not None)]
        return self.last

    async def work(self, task: str, most: int = 10) -> Any:
        self.input.append({"role": "user", "content": task})
        for _ in range(most):
            response = await self.ask()
            calls = [item for item in response.output if item.type.endswith("_call")]
            if not calls:
                return response
            self.input += [
                {"type": f"{item.type}_output", "call_id": item.call_id, "output": f"result of {item.call_id}"}
                for item in calls
            ]
        raise AssertionError(f"still calling after {most} turns")


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda item: {name: value for name, value in item.items() if name not in names}


def silent(item: dict[str, Any]) -> dict[str, Any] | None:
    return None if item["type"] == "reasoning" else item


def anonymous(item: dict[str, Any]) -> dict[str, Any]:
    """As OpenCode sends it: no ids of items, messages without a type."""
    dropped = ("id", "status", "type") if item["type"] == "message" else ("id", "status")
    return without(*dropped)(item)


def reordered(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"arguments": item["arguments"].replace('": "', '":"')} if "arguments" in item else item


def rewritten(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"arguments": item["arguments"].replace("}", ', "more": 1}')} if "arguments" in item else item


HABITS: dict[str, tuple[Habit, str]] = {
    "as it was": (dict, "exact"),
    "without ids": (anonymous, "exact"),
    "without reasoning": (silent, "reasoning_dropped"),
    "without its text": (lambda item: item | {"summary": []} if "summary" in item else item, "reasoning_dropped"),
    "arguments in another spacing": (reordered, "exact"),
    "arguments rewritten": (rewritten, "args_rewritten"),
}


@pytest.mark.parametrize("name", HABITS)
async def test_a_history_sent_whole_is_spliced_whatever_the_agent_does_to_its_items(  # type: ignore[no-untyped-def]
    grounds, sdk: Sdk, stream: bool, name: str
) -> None:
    habit, echo = HABITS[name]
    async with grounds(*WORK, samples=1) as g:
        agent = Agent(sdk(await g.open()), stream=stream, habit=habit)
        assert (await agent.work("Go.")).output_text == "Done."
        report = await g.checked()
    assert (report.trained, report.lost) == (report.sampled, 0)
    assert g.echoes == [echo, echo]


@pytest.mark.parametrize(("habit", "echo"), [(dict, "exact"), (anonymous, "ambiguous")])
async def test_the_id_of_a_text_tells_which_of_equal_siblings_it_was(  # type: ignore[no-untyped-def]
    grounds, sdk: Sdk, habit: Habit, echo: str
) -> None:
    async with grounds(ScriptTurn(text="The same words."), ScriptTurn(text="Done."), samples=2) as g:
        agent, other = (Agent(sdk(client), habit=habit) for client in [await g.open()] * 2)
        await agent.work("Go.")
        await other.work("Go.")
        await agent.work("And?")
        await g.checked()
    assert [(told.turn, told.echo) for turn in g.turns for told in turn.echoes] == [(0 if echo == "exact" else 1, echo)]


async def test_arguments_come_back_byte_for_byte_as_they_were_sampled(grounds, sdk: Sdk) -> None:  # type: ignore[no-untyped-def]
    odd = '{"b":  "\\u00e9",\n "a": 1.0}'
    said = ScriptTurn(calls=(Call(tool="bash", arguments_text=odd),))
    async with grounds(said, ScriptTurn(text="Done."), samples=1) as g:
        agent = Agent(sdk(await g.open()))
        await agent.work("Go.")
        (call,) = [item for item in agent.input if item.get("type") == "function_call"]
        await g.checked()
    assert call["arguments"] == odd
    assert g.echoes == ["exact"]


async def test_a_freeform_tool_is_called_with_text_and_answered(grounds, sdk: Sdk, stream: bool) -> None:  # type: ignore[no-untyped-def]
    said = ScriptTurn(calls=(Call(tool="patch", arguments={"input": '*** Begin\n"é"'}),))
    async with grounds(said, ScriptTurn(text="Done."), samples=1) as g:
        agent = Agent(sdk(await g.open()), stream=stream, tools=(PATCH,))
        await agent.work("Go.")
        (call,) = [item for item in agent.input if item.get("type") == "custom_tool_call"]
        await g.checked()
    assert call["input"] == '*** Begin\n"é"'
    assert g.echoes == ["exact"]


async def test_a_response_is_gone_on_from_by_its_id(grounds, sdk: Sdk, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(*WORK, ScriptTurn(text="Again."), samples=1) as g:
        agent = Agent(sdk(await g.open()), stream=stream, stateful=True)
        assert (await agent.work("Go.")).output_text == "Done."
        assert (await agent.work("And?")).output_text == "Again."
        await g.checked()
    assert g.echoes == ["exact"] * 3


async def test_the_synchronous_sdk_goes_on_too(grounds) -> None:  # type: ignore[no-untyped-def]
    def talk(session: OpenedSession) -> list[str]:
        with OpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as client:
            first = client.responses.create(model=session.model, input="Go.")
            with client.responses.stream(model=session.model, input="And?", previous_response_id=first.id) as stream:
                return [first.output_text, stream.get_final_response().output_text]

    async with grounds(ScriptTurn(text="One."), ScriptTurn(text="Two."), samples=1) as g:
        assert await asyncio.to_thread(talk, await g.open()) == ["One.", "Two."]
        await g.checked()


async def test_instructions_are_not_carried_over(grounds, sdk: Sdk, renderer: TemplateRenderer) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="One."), ScriptTurn(text="Two."), samples=2) as g:
        client = sdk(await g.open())
        first = await client.responses.create(model="bridle", input="Go.", instructions="You are one.")
        await client.responses.create(
            model="bridle", input="And?", previous_response_id=first.id, instructions="You are another."
        )
        await g.checked()
        one, other = (renderer.vocabulary.decode(entry.prompt.tolist()) for entry in g.journal())
    assert ("You are one." in one, "You are one." in other) == (True, False)
    assert other.index("You are another.") < other.index("Go.") < other.index("One.") < other.index("And?")


async def test_an_unknown_response_is_refused_with_the_code_clients_look_for(grounds, sdk: Sdk) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="One.")) as g:
        session, other = await g.open(), await g.open("other")
        kept = await sdk(session).responses.create(model="bridle", input="Go.", store=False)
        foreign = await sdk(other).responses.create(model="bridle", input="Go.")
        for missing in ("resp_nothing", kept.id, foreign.id):
            with pytest.raises(openai.BadRequestError, match="send the whole input instead") as refused:
                await sdk(session).responses.create(model="bridle", input="And?", previous_response_id=missing)
            assert refused.value.code == "previous_response_not_found"
        await g.finish("other")
        await g.finish()
    assert len(g.turns) == 1, "nothing entered the record"


async def test_going_on_twice_from_one_response_makes_two_branches(grounds, sdk: Sdk) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="One."), ScriptTurn(text="Two."), samples=2) as g:
        client = sdk(await g.open())
        first = await client.responses.create(model="bridle", input="Go.")
        for way in ("Left.", "Right."):
            await client.responses.create(model="bridle", input=way, previous_response_id=first.id)
        await g.checked()
    assert g.echoes == ["exact"]


async def test_the_prompt_of_a_count_is_the_prompt_of_the_turn(grounds, sdk: Sdk) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="One."), ScriptTurn(text="Two.")) as g:
        client = sdk(await g.open())
        first = await client.responses.create(model="bridle", input="Go.")
        more: Any = {"model": "bridle", "input": "And?", "previous_response_id": first.id}
        counted = await client.responses.input_tokens.count(**more)
        second = await client.responses.create(**more)
        assert second.usage is not None
        assert counted.input_tokens == second.usage.input_tokens
        await g.checked()


# --- what is kept ---


def say(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


def asking(*messages: Message, previous: str = "", instructions: int = 0, store: bool = True) -> ModelRequest:
    return ModelRequest("openai_responses", "m", messages, previous=previous, instructions=instructions, store=store)


def answer(name: str, text: str) -> Reply:
    return Reply(name, "m", say("assistant", text), "stop", Usage(1, 1))


async def test_an_answer_of_text_alone_is_known_again_under_other_instructions(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Done."), ScriptTurn(text="Done again.")) as g:
        session = await g.open()
        async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as sdk:
            first = await sdk.responses.create(model="bridle", input="Go.", instructions="Be kind.")
            await sdk.responses.create(
                model="bridle", input="And?", instructions="Be brief.", previous_response_id=first.id
            )
        await g.checked()
    assert g.echoes == ["exact+transplanted"]


def test_a_request_gets_what_it_goes_on_from_between_its_instructions_and_its_own() -> None:
    held = Conversations()
    held.remember(asking(say("system", "A"), say("user", "1"), instructions=1), answer("r1", "2"))
    new = asking(say("system", "B"), say("user", "3"), previous="r1", instructions=1)
    resolved = held.resolve(new)
    assert [message.text for message in resolved.messages] == ["B", "1", "2", "3"]
    held.remember(resolved, answer("r2", "4"))
    assert [message.text for message in held.resolve(asking(previous="r2")).messages] == ["1", "2", "3", "4"]


def test_a_request_without_a_turn_is_gone_on_from_as_a_prompt() -> None:
    held = Conversations()
    held.remember_prompt(asking(say("developer", "A")), "warm")
    assert held.resolve(asking(say("user", "1"), previous="warm")).messages == (say("developer", "A"), say("user", "1"))


def test_what_shall_not_be_stored_is_not_there() -> None:
    held = Conversations()
    held.remember(asking(say("user", "1"), store=False), answer("r1", "2"))
    with pytest.raises(PreviousNotFound):
        held.resolve(asking(previous="r1"))


@pytest.mark.parametrize("stateful", [True, False])
def test_memory_grows_with_the_new_messages_of_a_turn(stateful: bool) -> None:
    """Histories of 400 turns sent whole hold 160,000 messages; what is kept are the 800 different ones."""
    held = Conversations()
    history: list[Message] = []
    for turn in range(400):
        history.append(say("user", f"question {turn}"))
        new = asking(history[-1], previous=f"r{turn - 1}" if turn else "") if stateful else asking(*history)
        held.remember(held.resolve(new), answer(f"r{turn}", f"answer {turn}"))
        history.append(say("assistant", f"answer {turn}"))
    assert held.resolve(asking(previous="r399")).messages == tuple(history)
    assert len(held) == 800
