"""Official SDKs choose tools, and a model that knows nothing of them answers in the form they asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from bridle.engines.base import EngineFacts
from bridle.engines.schema import misfit
from bridle.engines.script import Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.engines.tiny_model import make_model
from bridle.engines.transformers import TransformersEngine
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.sessions.records import TrainingSampling
from bridle.testing.ground import Ground, ground


def schema(name: str) -> dict[str, Any]:
    text, number = {"type": "string", "maxLength": 5}, {"type": "integer", "minimum": 0, "maximum": 9}
    members = {f"{name}_text": text, f"{name}_number": number}
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


NAMES = ("read", "list", "run")


@dataclass(frozen=True)
class Said:
    """`calls`: names and arguments. `finish`: the protocol's word for how it ended."""

    text: str
    calls: list[tuple[str, dict[str, Any]]]
    finish: str

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.calls}

    @property
    def fits(self) -> bool:
        return all(misfit(json.dumps(arguments), schema(name)) == "" for name, arguments in self.calls)


# --- one question through each SDK ---


async def _messages(session: OpenedSession, stream: bool, **choice: Any) -> Said:
    offered = [{"name": name, "description": name, "input_schema": schema(name)} for name in NAMES]
    asked: Any = {"model": session.model, "max_tokens": 4096, "tools": offered, **choice}
    asked["messages"] = [{"role": "user", "content": "Go."}]
    async with AsyncAnthropic(api_key=session.key, base_url=session.base_urls["anthropic"]) as client:
        if stream:
            async with client.messages.stream(**asked) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**asked)
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [(block.name, dict(block.input)) for block in message.content if block.type == "tool_use"]
    return Said(text, calls, str(message.stop_reason))


async def _chat(session: OpenedSession, stream: bool, **choice: Any) -> Said:
    offered = [{"type": "function", "function": {"name": name, "parameters": schema(name)}} for name in NAMES]
    asked: Any = {"model": session.model, "tools": offered, **choice}
    asked["messages"] = [{"role": "user", "content": "Go."}]
    async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as client:
        if not stream:
            (answer,) = (await client.chat.completions.create(**asked)).choices
            calls = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]
            return Said(answer.message.content or "", _decoded(calls), answer.finish_reason)
        text, finish, parts = "", "", {}  # type: ignore[var-annotated]
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for choice_ in chunk.choices:
                text += choice_.delta.content or ""
                finish = choice_.finish_reason or finish
                for call in choice_.delta.tool_calls or ():
                    name, arguments = parts.get(call.index, ("", ""))
                    parts[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
        return Said(text, _decoded(list(parts.values())), finish)


async def _responses(session: OpenedSession, stream: bool, **choice: Any) -> Said:
    offered = [{"type": "function", "name": name, "parameters": schema(name), "strict": True} for name in NAMES]
    asked: Any = {"model": session.model, "input": "Go.", "tools": offered, **choice}
    async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as client:
        if stream:
            events = [event async for event in await client.responses.create(**asked, stream=True)]
            response = events[-1].response
        else:
            response = await client.responses.create(**asked)
    calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    return Said(response.output_text, _decoded(calls), response.status)


async def _contents(session: OpenedSession, stream: bool, **choice: Any) -> Said:
    declared = [types.FunctionDeclaration(name=name, parameters_json_schema=schema(name)) for name in NAMES]
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=declared)],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(**choice)),
    )
    options = types.HttpOptions(base_url=session.base_urls["gemini"])

    def generate() -> Said:
        with genai.Client(api_key=session.key, http_options=options) as client:
            asked: Any = {"model": session.model, "contents": "Go.", "config": config}
            if stream:
                answers = list(client.models.generate_content_stream(**asked))
            else:
                answers = [client.models.generate_content(**asked)]
        parts = [part for one in answers for part in one.candidates[0].content.parts or ()]  # type: ignore[index,union-attr]
        calls = [(part.function_call.name, part.function_call.args) for part in parts if part.function_call]
        return Said(
            "".join(part.text or "" for part in parts), calls, str(answers[-1].candidates[0].finish_reason.name)
        )  # type: ignore[index,union-attr,arg-type]

    return await asyncio.to_thread(generate)


def _decoded(calls: list[tuple[str, str]]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


Ask = Callable[..., Awaitable[Said]]
FUNCTIONS = [{"type": "function", "name": name} for name in ("list", "run")]
CHAT_FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in ("list", "run")]
CHOICES: dict[str, tuple[Ask, str, dict[str, dict[str, Any]]]] = {
    "anthropic": (
        _messages,
        "tool_use",
        {
            "none": {"tool_choice": {"type": "none"}},
            "required": {"tool_choice": {"type": "any"}},
            "named": {"tool_choice": {"type": "tool", "name": "run"}},
            "one": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        },
    ),
    "openai_chat": (
        _chat,
        "tool_calls",
        {
            "none": {"tool_choice": "none"},
            "required": {"tool_choice": "required"},
            "named": {"tool_choice": {"type": "function", "function": {"name": "run"}}},
            "some": {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": CHAT_FUNCTIONS},
                }
            },
            "one": {"tool_choice": "required", "parallel_tool_calls": False},
        },
    ),
    "openai_responses": (
        _responses,
        "completed",
        {
            "none": {"tool_choice": "none"},
            "required": {"tool_choice": "required"},
            "named": {"tool_choice": {"type": "function", "name": "run"}},
            "some": {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": FUNCTIONS}},
            "one": {"tool_choice": "required", "parallel_tool_calls": False},
        },
    ),
    "gemini": (
        _contents,
        "STOP",
        {
            "none": {"mode": "NONE"},
            "required": {"mode": "ANY"},
            "named": {"mode": "ANY", "allowed_function_names": ["run"]},
            "some": {"mode": "ANY", "allowed_function_names": ["list", "run"]},
        },
    ),
}
MAY = {"required": {"read", "list", "run"}, "one": {"read", "list", "run"}, "named": {"run"}, "some": {"list", "run"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_tokenizer(tmp_path_factory.mktemp("tiny") / "model")
    make_model(directory, load_renderer(directory).vocabulary.size)
    return directory


@pytest.fixture
async def tiny(model: Path, tmp_path: Path) -> AsyncIterator[Ground]:
    """A gateway over random weights."""
    engine = TransformersEngine(model, journal_path=tmp_path / "journal.jsonl")
    async with ground(tmp_path, load_renderer(model), Script((Thread((ScriptTurn(),)),)), engine) as opened:
        yield opened


def about_calls(g: Ground) -> list[str]:
    return [note for note in g.notes if note.startswith("tool_choice")]


@pytest.mark.parametrize("protocol", CHOICES)
async def test_an_answer_has_the_calls_its_client_asked_for(tiny: Ground, protocol: str, stream: bool) -> None:
    ask, called, choices = CHOICES[protocol]
    for name, choice in choices.items():
        longest = TrainingSampling(max_tokens=30 if name == "none" else 800)
        session = await tiny.open(name, thinking=False, sampling=longest)
        said = await ask(session, stream, **choice)
        if name == "none":
            assert said.calls == []
            assert said.finish != called or protocol in ("gemini", "openai_responses"), "they have one word for both"
        else:
            assert (said.text, said.finish, said.fits) == ("", called, True)
            assert said.names
            assert said.names <= MAY[name]
        if name == "one":
            assert len(said.calls) == 1
        await tiny.finish(name)
        assert [turn.reason for turn in tiny.turns] == ["constrained"]
        assert about_calls(tiny) == ["tool_choice_held"]
    tiny.check()


@pytest.mark.parametrize("protocol", CHOICES)
async def test_a_model_that_chooses_for_itself_is_held_to_nothing(tiny: Ground, protocol: str, stream: bool) -> None:
    ask, _, _ = CHOICES[protocol]
    auto: dict[str, Any] = {
        "anthropic": {"tool_choice": {"type": "auto"}},
        "openai_chat": {"tool_choice": "auto", "parallel_tool_calls": True},
        "openai_responses": {"tool_choice": "auto", "parallel_tool_calls": True},
        "gemini": {"mode": "AUTO"},
    }
    session = await tiny.open(thinking=False, sampling=TrainingSampling(max_tokens=20))
    await ask(session, stream, **auto[protocol])
    await tiny.checked()
    assert ([turn.reason for turn in tiny.turns], about_calls(tiny)) == ([None], [])


UNKNOWN: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "tool", "name": "fly"}},
    "openai_chat": {"tool_choice": {"type": "function", "function": {"name": "fly"}}},
    "openai_responses": {"tool_choice": {"type": "function", "name": "fly"}},
    "gemini": {"mode": "ANY", "allowed_function_names": ["fly"]},
}
REFUSALS = (anthropic.BadRequestError, openai.BadRequestError, genai.errors.ClientError)


@pytest.mark.parametrize("protocol", CHOICES)
async def test_a_tool_that_is_not_offered_is_refused(grounds, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Done.")) as g:
        session = await g.open()
        with pytest.raises(REFUSALS, match="no tool is named 'fly'; offered: read, list, run"):
            await CHOICES[protocol][0](session, stream, **UNKNOWN[protocol])
        assert g.live().session.tree.turns == []


@pytest.mark.parametrize("protocol", CHOICES)
async def test_an_engine_that_cannot_hold_an_answer_to_calls_refuses_to_need_one(
    renderer: TemplateRenderer, tmp_path: Path, protocol: str, stream: bool
) -> None:
    script = Script((Thread((ScriptTurn(text="Done."),)),))
    engine = ScriptedEngine(script, renderer.vocabulary, renderer.write, score="fake")
    engine.facts = EngineFacts("unable", "m", 9999)
    ask, _, choices = CHOICES[protocol]
    async with ground(tmp_path, renderer, script, engine) as g:
        with pytest.raises(REFUSALS, match="the engine unable cannot hold an answer to calls; leave the choice"):
            await ask(await g.open(), stream, **choices["required"])
        assert g.live().session.tree.turns == []
        said = await ask(await g.open("recorded", tool_choice="record"), stream, **choices["required"])
        assert (said.text, said.calls) == ("Done.", [])
        await g.finish("recorded")
        assert (about_calls(g), "wishes_overridden" in g.notes) == ([], True)
        assert (await ask(await g.open("none"), stream, **choices["none"])).text == "Done."
        await g.finish("none")
        assert about_calls(g) == ["tool_choice_ignored"]
