"""The official SDKs' synchronous clients, which most scripts use, against a live gateway: in a thread, as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from anthropic import Anthropic, APIStatusError as AnthropicError
from google import genai
from openai import APIError as OpenAIError, OpenAI

from bridle.engines.script import ScriptTurn
from bridle.gateway import app
from bridle.gateway.client import OpenedSession
from bridle.sessions.records import Limits
from bridle.testing.ground import shell

pytestmark = pytest.mark.slow

SCHEMA: Any = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
WORK = (shell("ls", "pwd", text="Looking.", thinking="Hm."), shell("cat a"), ScriptTurn(text="Done.", thinking="Seen."))
SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 6, delay_s=0.05)
T = TypeVar("T")
Talk = Callable[[OpenedSession, bool], str]
"""Works until nothing is called any more, streaming or not -> the last text. Clients keep their default retries."""


def anthropic(session: OpenedSession, stream: bool, **options: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    tool: Any = {"name": "bash", "description": "run", "input_schema": SCHEMA}
    with Anthropic(api_key=session.key, base_url=session.base_urls["anthropic"], **options) as client:
        asked: Any = {"model": session.model, "max_tokens": 4096, "tools": [tool], "messages": messages}
        while True:
            if stream:
                with client.messages.stream(**asked) as events:
                    message: Any = events.get_final_message()
            else:
                message = client.messages.create(**asked)
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return str(message.content[-1].text)
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]
            messages.append({"role": "user", "content": results})


def chat(session: OpenedSession, stream: bool, **options: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    tool: Any = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": SCHEMA}}
    with OpenAI(api_key=session.key, base_url=session.base_urls["openai"], **options) as client:
        asked: Any = {"model": session.model, "tools": [tool], "messages": messages}
        while True:
            if stream:
                with client.chat.completions.stream(**asked) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            messages.append(message.to_dict())
            if not message.tool_calls:
                return str(message.content)
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]


def responses(session: OpenedSession, stream: bool, **options: Any) -> str:
    items: list[Any] = [{"role": "user", "content": "Go."}]
    tool: Any = {"type": "function", "name": "bash", "description": "run", "parameters": SCHEMA, "strict": False}
    with OpenAI(api_key=session.key, base_url=session.base_urls["openai"], **options) as client:
        asked: Any = {"model": session.model, "tools": [tool], "input": items}
        while True:
            if stream:
                with client.responses.stream(**asked) as events:
                    response: Any = events.get_final_response()
            else:
                response = client.responses.create(**asked)
            items += [item.to_dict(warnings=False) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]


def gemini(session: OpenedSession, stream: bool) -> str:
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Go."}]}]
    declared = genai.types.FunctionDeclaration(name="bash", description="run", parameters_json_schema=SCHEMA)
    config = genai.types.GenerateContentConfig(
        tools=[genai.types.Tool(function_declarations=[declared])],
        automatic_function_calling=genai.types.AutomaticFunctionCallingConfig(disable=True),
    )
    options = genai.types.HttpOptions(
        base_url=session.base_urls["gemini"], retry_options=genai.types.HttpRetryOptions(attempts=3, initial_delay=0.1)
    )
    with genai.Client(api_key=session.key, http_options=options) as client:
        asked: Any = {"model": session.model, "contents": contents, "config": config}
        while True:
            answers = (
                list(client.models.generate_content_stream(**asked))
                if stream
                else [client.models.generate_content(**asked)]
            )
            said: list[Any] = [answer.candidates[0].content for answer in answers]  # type: ignore[index]
            contents += said
            calls = [part.function_call for content in said for part in content.parts if part.function_call]
            if not calls:
                return "".join(part.text or "" for content in said for part in content.parts)
            contents.append(
                {
                    "role": "user",
                    "parts": [
                        {"function_response": {"id": call.id, "name": call.name, "response": {"output": "ok"}}}
                        for call in calls
                    ],
                }
            )


TALKS: dict[str, Talk] = {"anthropic": anthropic, "chat": chat, "responses": responses, "gemini": gemini}


@pytest.fixture(params=TALKS)
def talk(request: pytest.FixtureRequest) -> Talk:
    return TALKS[request.param]


async def test_a_synchronous_client_works_to_the_end_and_its_session_is_one_sample(  # type: ignore[no-untyped-def]
    grounds, talk: Talk, stream: bool
) -> None:
    async with grounds(*WORK, samples=1) as g:
        assert await asyncio.to_thread(talk, await g.open(), stream) == "Done."
        report = await g.checked()
    assert (report.generations, report.kept_percent, report.untrained) == (3, 100.0, {})


async def test_a_synchronous_client_comes_back_after_a_failure_by_itself(  # type: ignore[no-untyped-def]
    grounds, talk: Talk, stream: bool
) -> None:
    turn = ScriptTurn(text="Short.", error="the engine restarts", error_times=1)
    async with grounds(turn, samples=1, engine_retries=0) as g:
        assert await asyncio.to_thread(talk, await g.open(), stream) == "Short."
        await g.checked()
        assert g.refusals == 1
    assert [turn.reason for turn in g.turns] == ["undelivered", None]


async def test_a_synchronous_client_comes_back_after_a_pause_by_itself(  # type: ignore[no-untyped-def]
    grounds, talk: Talk, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is held for less than a stream waits before it begins."""
    monkeypatch.setattr(app, "BEGIN_S", 5.0)
    async with grounds(SHORT, samples=1, max_hold_s=0.1) as g:
        session = await g.open()
        await g.client.pause()
        talking = asyncio.create_task(asyncio.to_thread(talk, session, stream))
        while not g.refusals:
            await asyncio.sleep(0.01)
        await g.client.resume()
        assert await talking == "Short."
        await g.checked()


@pytest.mark.parametrize("talk", [anthropic, chat, responses])
async def test_a_synchronous_client_that_ran_out_of_time_joins_its_own_draw(grounds, talk: Any) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        assert await asyncio.to_thread(talk, session, False, timeout=0.25, max_retries=9) == SLOW.text
        report = await g.checked()
    assert (report.generations, report.untrained) == (1, {})


async def test_a_synchronous_client_ends_at_a_limit_at_once(grounds, talk: Talk, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(*WORK) as g:
        session = await g.open(limits=Limits(turns=1))
        with pytest.raises(Exception, match="has used its 1 turns") as refused:
            await asyncio.to_thread(talk, session, stream)
        assert isinstance(refused.value, (AnthropicError, OpenAIError, genai.errors.ClientError))
        assert g.refusals == 1, "it did not come back"
        await g.checked()
    assert len(g.turns) == 1


@pytest.mark.parametrize("ask", [anthropic, chat, responses])
async def test_an_error_in_a_stream_is_the_synchronous_clients_own_error(  # type: ignore[no-untyped-def]
    grounds, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream had begun: held for longer than it waits for its first word."""
    monkeypatch.setattr(app, "BEGIN_S", 0.01)
    async with grounds(SHORT, max_hold_s=0.2) as g:
        session = await g.open()
        await g.client.pause()
        if ask is responses:
            # This SDK hands the failed response over and raises nothing.
            with pytest.raises(RuntimeError, match=r"response\.completed"):
                await asyncio.to_thread(ask, session, True)
        else:
            with pytest.raises((AnthropicError, OpenAIError), match="paused for more than 0.2 s"):
                await asyncio.to_thread(ask, session, True)
        await g.client.resume()
        await g.finish()


async def test_counts_and_models_are_the_synchronous_clients_too(grounds) -> None:  # type: ignore[no-untyped-def]
    def look(session: OpenedSession) -> tuple[list[str], list[int]]:
        text: Any = [{"role": "user", "content": "Go."}]
        with (
            Anthropic(api_key=session.key, base_url=session.base_urls["anthropic"]) as claude,
            OpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as openai,
        ):
            models = [claude.models.list().data[0].id, openai.models.list().data[0].id]
            counts = [
                claude.messages.count_tokens(model=session.model, messages=text).input_tokens,
                openai.responses.input_tokens.count(model=session.model, input=text).input_tokens,
            ]
        return models, counts

    async with grounds(SHORT) as g:
        models, counts = await asyncio.to_thread(look, await g.open())
        await g.finish()
    assert models == ["bridle", "bridle"]
    assert counts[0] == counts[1] > 0
    assert g.turns == ()
