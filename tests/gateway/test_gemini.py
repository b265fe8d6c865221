"""Google's own SDK against a live gateway: whatever a client does with ids and signatures, every token is kept once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from google import genai
from google.genai import errors, types

from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.testing.exchange import exchange
from bridle.testing.ground import Ground, shell

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

LINEAR = (
    shell("ls", thinking="First I look.", text="I look."),
    shell("cat a.py", "cat b.py", text="Two files."),
    shell("sed -i s/a/b/ a.py", thinking="Now I know.\n\nIt is a."),
    ScriptTurn(thinking="Was that all?", text="All done."),
)
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PIXEL = b"\x89PNG"

Wire = dict[str, Any]
Habit = Callable[[list[Wire]], list[Wire]]
MakeClient = Callable[[OpenedSession], Any]


@pytest_asyncio.fixture
async def client_of() -> AsyncIterator[MakeClient]:
    made = []

    def make(session: OpenedSession) -> Any:
        options = types.HttpOptions(base_url=session.base_urls["gemini"])
        made.append(genai.Client(api_key=session.key, http_options=options).aio)
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


def config(**more: Any) -> types.GenerateContentConfig:
    declared = types.FunctionDeclaration(name="bash", description="run", parameters_json_schema=BASH)
    fields: dict[str, Any] = {
        "system_instruction": "You are a coding agent.",
        "tools": [types.Tool(function_declarations=[declared])],
        "thinking_config": types.ThinkingConfig(include_thoughts=True),
        "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
    }
    return types.GenerateContentConfig(**fields | more)


class Agent:
    """Sends its history back as the contents it got, changed by a habit. Answers every call in the same order."""

    def __init__(self, client: Any, model: str, stream: bool, habit: Habit, answer: Habit) -> None:
        self.client = client
        self.model = model
        self.stream = stream
        self.habit = habit
        self.answer = answer
        self.history: list[Wire] = []

    async def work(self, task: str) -> str:
        self.history.append({"role": "user", "parts": [{"text": task}]})
        for _ in range(10):
            said = await self.ask()
            self.history += self.habit(said)
            calls = [part["function_call"] for content in said for part in content["parts"] if "function_call" in part]
            if not calls:
                return "".join(part.get("text", "") for content in said for part in content["parts"])
            results = [
                {"function_response": {"id": call["id"], "name": call["name"], "response": {"output": f"r{number}"}}}
                for number, call in enumerate(calls)
            ]
            self.history += self.answer([{"role": "user", "parts": results}])
        raise AssertionError("still calling tools")

    async def ask(self, *more: Wire) -> list[Wire]:
        asked = {"model": self.model, "contents": [*self.history, *more], "config": config()}
        if self.stream:
            answers = [chunk async for chunk in await self.client.models.generate_content_stream(**asked)]
        else:
            answers = [await self.client.models.generate_content(**asked)]
        contents = [answer.candidates[0].content for answer in answers]
        return [content.model_dump(exclude_none=True) for content in contents]


def as_it_was(contents: list[Wire]) -> list[Wire]:
    return contents


def each(change: Callable[[Wire], Wire | None]) -> Habit:
    """Changes, or leaves out, every part."""

    def changed(contents: list[Wire]) -> list[Wire]:
        parts = [[change(dict(part)) for part in content["parts"]] for content in contents]
        return [{**content, "parts": [p for p in of if p]} for content, of in zip(contents, parts, strict=True)]

    return changed


def with_call(**fields: Any) -> Callable[[Wire], Wire]:
    """Changes the call or the response in a part; None leaves a field out."""

    def change(part: Wire) -> Wire:
        for key in part.keys() & {"function_call", "function_response"}:
            changed = {name: made(part[key]) if callable(made) else made for name, made in fields.items()}
            part[key] = {name: value for name, value in (part[key] | changed).items() if value is not None}
        return part

    return change


def without(*names: str) -> Callable[[Wire], Wire]:
    return lambda part: {name: value for name, value in part.items() if name not in names}


def thoughtless(part: Wire) -> Wire | None:
    return None if part.get("thought") else part


def like_gemini_cli(contents: list[Wire]) -> list[Wire]:
    """Thoughts left out, texts joined with the fields of the first."""
    joined: list[Wire] = []
    for content in contents:
        for part in filter(None, map(thoughtless, map(dict, content["parts"]))):
            if joined and joined[-1].get("text") and "text" in part:
                joined[-1]["text"] += part["text"]
            elif part.get("text") != "" or "thought_signature" in part:
                joined.append(part)
    return [{"role": "model", "parts": joined}]


dropped = with_call(id=None)
invented = with_call(id=lambda call: f"{call['name']}_1723_{call['id'][-1]}")

HABITS: dict[str, tuple[Habit, Habit, set[str]]] = {
    "as it was": (as_it_was, as_it_was, {"exact"}),
    "like Gemini CLI": (like_gemini_cli, as_it_was, {"exact", "reasoning_dropped"}),
    "thoughts left out": (each(thoughtless), as_it_was, {"exact", "reasoning_dropped"}),
    "ids dropped": (each(dropped), each(dropped), {"exact"}),
    "ids dropped from calls alone": (each(dropped), as_it_was, {"exact"}),
    "ids dropped from responses alone": (as_it_was, each(dropped), {"exact"}),
    "ids of the client's own": (each(invented), each(invented), {"exact"}),
    "ids of the client's own, signatures dropped": (
        lambda contents: each(invented)(each(without("thought_signature"))(contents)),
        each(invented),
        {"exact", "form"},
    ),
    "signatures dropped": (each(without("thought_signature")), as_it_was, {"exact"}),
    "ids and signatures dropped": (
        lambda contents: each(dropped)(each(without("thought_signature"))(contents)),
        each(dropped),
        {"exact", "form"},
    ),
    "arguments rewritten": (
        each(with_call(args=lambda call: {"timeout": 5, **call["args"]})),
        as_it_was,
        {"exact", "args_rewritten"},
    ),
    "texts padded": (
        each(lambda part: part | ({"text": f" {part['text']}\n"} if part.get("text") else {})),
        as_it_was,
        {"exact", "whitespace"},
    ),
}


@pytest.mark.parametrize(
    ("name", "stream"), [*((name, number % 2 == 0) for number, name in enumerate(HABITS)), ("as it was", False)]
)
async def test_an_echo_that_still_is_the_draw_keeps_the_session_linear(
    grounds: Any, client_of: MakeClient, name: str, stream: bool
) -> None:
    habit, answer, classes = HABITS[name]
    async with grounds(*LINEAR, samples=1) as g:
        session = await g.open()
        agent = Agent(client_of(session), session.model, stream, habit, answer)
        assert "All done." in await agent.work("Fix the bug.")
        await agent.work("And now?")
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert (report.doubled, report.lost, report.untrained) == (0, 0, {})
    assert g.fidelity.totals.forks == 0
    # A streamed turn comes back as one content for each chunk, which is another form of it.
    assert set(g.echoes) - {"exact", "form"} == classes - {"exact", "form"}
    assert stream or "form" not in set(g.echoes) - classes


async def test_a_turn_sampled_behind_a_note_that_vanishes_is_known_by_its_signature(
    grounds: Any, client_of: MakeClient
) -> None:
    """Gemini CLI asks again with a note after a reply of thoughts alone, and sends neither afterwards."""
    note = {"role": "user", "parts": [{"text": "[System: You previously ...]"}]}
    async with grounds(*LINEAR) as g:
        session = await g.open()
        agent = Agent(client_of(session), session.model, True, like_gemini_cli, as_it_was)
        agent.history.append({"role": "user", "parts": [{"text": "Fix the bug."}]})
        said = await agent.ask(note)
        agent.history += each(dropped)(like_gemini_cli(said))
        response = {"function_response": {"name": "bash", "response": {"output": "x"}}}
        agent.history.append({"role": "user", "parts": [response]})
        await agent.ask()
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert g.echoes == ["reasoning_dropped+transplanted"]


async def test_a_chat_session_that_calls_functions_by_itself_is_one_sample(grounds: Any, client_of: MakeClient) -> None:
    ran = []

    def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        if command.startswith("sed"):
            raise ValueError("no sed here")
        return f"result of {command}"

    async with grounds(*LINEAR, samples=1) as g:
        session = await g.open()
        chat = client_of(session).chats.create(
            model=session.model, config=types.GenerateContentConfig(system_instruction="Work.", tools=[bash])
        )
        answer = await chat.send_message("Fix the bug.")
        assert answer.text == "All done."
        await chat.send_message("And now?")
        report = await g.checked()
    assert ran == ["ls", "cat a.py", "cat b.py", "sed -i s/a/b/ a.py"]
    assert report.kept_percent == 100.0
    assert set(g.echoes) == {"exact", "reasoning_dropped"}, "thoughts were not asked for"


async def test_a_streamed_chat_session_is_one_sample(grounds: Any, client_of: MakeClient) -> None:
    turns = (ScriptTurn(thinking="Hm.", text="One two three."), ScriptTurn(text="Four."), ScriptTurn(text="Five."))
    async with grounds(*turns, samples=1) as g:
        session = await g.open()
        chat = client_of(session).chats.create(model=session.model)
        texts = [
            "".join([chunk.text or "" async for chunk in await chat.send_message_stream(word)])
            for word in ("Count.", "On.", "On.")
        ]
        report = await g.checked()
    assert texts == ["One two three.", "Four.", "Five."]
    assert report.kept_percent == 100.0


async def test_candidates_are_sibling_draws(grounds: Any, client_of: MakeClient) -> None:
    async with grounds(ScriptTurn(text="Short."), samples=2) as g:
        session = await g.open()
        answer = await client_of(session).models.generate_content(
            model=session.model, contents="Go.", config=types.GenerateContentConfig(candidate_count=2)
        )
        report = await g.checked()
    assert [candidate.content.parts[0].text for candidate in answer.candidates] == ["Short.", "Short."]
    assert report.kept_percent == 100.0


async def test_tokens_are_counted_by_the_renderer_and_models_are_served(grounds: Any, client_of: MakeClient) -> None:
    async with grounds(ScriptTurn(text="Short.")) as g:
        session = await g.open()
        client = client_of(session)
        counted = await client.models.count_tokens(model=session.model, contents="Go.")
        answer = await client.models.generate_content(model=session.model, contents="Go.")
        assert counted.total_tokens == answer.usage_metadata.prompt_token_count
        assert answer.model_version == session.model
        models = [model.name async for model in await client.models.list(config={"query_base": True})]
        assert models == [f"models/{session.model}"]
        model = await client.models.get(model=session.model)
        assert model.input_token_limit == g.engine.facts.context_length
        await g.checked()


async def refusal(client: Any, **asked: Any) -> errors.APIError:
    with pytest.raises(errors.ClientError) as caught:
        await client.models.generate_content(**asked)
    return caught.value


async def test_refusals_have_googles_form(grounds: Any, client_of: MakeClient) -> None:
    async with grounds(ScriptTurn(text="Short."), context_length=500) as g:
        session = await g.open()
        client = client_of(session)
        image = types.Part.from_bytes(data=PIXEL, mime_type="image/png")
        told = await refusal(client, model=session.model, contents=["What is it?", image])
        assert (told.code, told.status) == (400, "INVALID_ARGUMENT")
        assert "image" in str(told.message)
        told = await refusal(client, model="gpt-9", contents="Go.")
        assert (told.code, told.status) == (404, "NOT_FOUND")
        told = await refusal(client, model=session.model, contents="word " * 2000)
        assert (told.code, told.status) == (400, "INVALID_ARGUMENT")
        assert "The input token count (" in str(told.message)
        stranger = genai.Client(api_key="no", http_options=types.HttpOptions(base_url=session.base_urls["gemini"])).aio
        told = await refusal(stranger, model=session.model, contents="Go.")
        assert (told.code, told.status) == (403, "PERMISSION_DENIED")
        await stranger.aclose()


async def sent(g: Ground, session: OpenedSession, query: str) -> bytes:
    path = f"/v1beta/models/{session.model}:streamGenerateContent{query}"
    body = {"contents": [{"parts": [{"text": "Go."}]}]}
    status, answer = await exchange(g.gateway.url, path, session.key, body)
    assert status == 200
    return b"".join(answer.split(b"\r\n")[1::2])


async def test_a_stream_without_alt_sse_is_one_json_array(grounds: Any) -> None:
    async with grounds(ScriptTurn(text="One two three.", delay_s=0.05), ping_s=0.02) as g:
        session = await g.open()
        chunks = json.loads(await sent(g, session, ""))
        await g.checked()
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts) == "One two three."
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_thinking_nobody_asked_to_see_does_not_hold_back_keep_alives(grounds: Any) -> None:
    thoughts = " ".join(f"thought {number}" for number in range(40))
    turn = ScriptTurn(thinking=thoughts, text="Short.", delay_s=0.03)
    async with grounds(turn, ping_s=0.1) as g:
        session = await g.open()
        events = (await sent(g, session, "?alt=sse")).decode().split("\n\n")
        await g.checked()
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event]
    texts = [part["text"] for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == "Short."
    assert texts.count("") >= 4
