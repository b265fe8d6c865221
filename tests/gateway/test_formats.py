"""Answers held to a JSON schema, as official SDKs ask for them: the schema reaches the engine, the value comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from google import genai
from google.genai import types
from openai import OpenAI
from pydantic import BaseModel

from bridle.engines.base import EngineFacts, GenerateRequest
from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer
from bridle.testing.ground import ground


class City(BaseModel):
    name: str
    people: int | None


SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
FITS = ScriptTurn(text='{"name": "Köln", "people": 1000000}', thinking="A city.")
MISFIT = ScriptTurn(text="Cologne is a city.")
KOELN = City(name="Köln", people=1_000_000)
Ask = Callable[[OpenedSession, bool], City]


def responses_format(session: OpenedSession, stream: bool) -> City:
    wanted: Any = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}
    with OpenAI(api_key=session.key, base_url=session.base_urls["openai"], max_retries=0) as client:
        asked: Any = {"model": session.model, "input": "Which?", "text": wanted}
        if stream:
            events = client.responses.create(**asked, stream=True)
            text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        else:
            text = client.responses.create(**asked).output_text
    return City.model_validate_json(text)


def responses_parsed(session: OpenedSession, stream: bool) -> City:
    with OpenAI(api_key=session.key, base_url=session.base_urls["openai"], max_retries=0) as client:
        asked: Any = {"model": session.model, "input": "Which?", "text_format": City}
        if stream:
            with client.responses.stream(**asked) as events:
                return events.get_final_response().output_parsed  # type: ignore[no-any-return]
        return client.responses.parse(**asked).output_parsed  # type: ignore[no-any-return]


def chat_parsed(session: OpenedSession, stream: bool) -> City:
    with OpenAI(api_key=session.key, base_url=session.base_urls["openai"], max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "Which?"}]
        asked: Any = {"model": session.model, "messages": messages, "response_format": City}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                return events.get_final_completion().choices[0].message.parsed  # type: ignore[no-any-return]
        return client.chat.completions.parse(**asked).choices[0].message.parsed  # type: ignore[no-any-return]


def gemini(session: OpenedSession, stream: bool, **wanted: Any) -> City:
    config = types.GenerateContentConfig(response_mime_type="application/json", **wanted)
    options = types.HttpOptions(base_url=session.base_urls["gemini"])
    with genai.Client(api_key=session.key, http_options=options) as client:
        asked: Any = {"model": session.model, "contents": "Which?", "config": config}
        if stream:
            chunks = list(client.models.generate_content_stream(**asked))
            return City.model_validate_json("".join(chunk.text or "" for chunk in chunks))
        answer = client.models.generate_content(**asked)
        return answer.parsed if isinstance(answer.parsed, City) else City.model_validate_json(answer.text or "")


ASKS: dict[str, Ask] = {
    "responses, text.format": responses_format,
    "responses, parsed": responses_parsed,
    "chat, parsed": chat_parsed,
    "gemini, responseSchema of a class": lambda session, stream: gemini(session, stream, response_schema=City),
    "gemini, responseSchema in capitals": lambda session, stream: gemini(
        session,
        stream,
        response_schema={
            "type": "OBJECT",
            "properties": {"name": {"type": "STRING"}, "people": {"type": "INTEGER", "nullable": True}},
            "required": ["name", "people"],
        },
    ),
    "gemini, responseJsonSchema": lambda session, stream: gemini(session, stream, response_json_schema=SCHEMA),
}


class Seeing(ScriptedEngine):
    """Keeps the schemas it was given."""

    def __init__(self, *values: Any, constrains: bool = True) -> None:
        super().__init__(*values, score="fake")
        self.schemas: list[Any] = []
        if not constrains:
            self.facts = EngineFacts("plain", "m", 9999)

    def generate(self, request: GenerateRequest) -> Any:
        self.schemas.append(request.sampling.schema)
        return super().generate(request)


@pytest.fixture
def seeing(renderer: TemplateRenderer, tmp_path: Any) -> Callable[..., Any]:
    def make(turn: ScriptTurn, **facts: bool) -> Any:
        script = Script((Thread((turn,)),), Expect(reasons=("constrained", "undelivered")), resegment=0.4, seed=3)
        engine = Seeing(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl", **facts)
        return engine, ground(tmp_path, renderer, script, engine)

    return make


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_a_schema_reaches_the_engine_as_json_schema_and_the_answer_is_its_value(
    seeing: Any, ask: Ask, stream: bool
) -> None:
    engine, place = seeing(FITS)
    async with place as g:
        assert await asyncio.to_thread(ask, await g.open(), stream) == KOELN
        report = await g.checked()
    (schema,) = engine.schemas
    assert schema["type"] == "object"
    assert schema["required"] == ["name", "people"]
    assert schema["properties"]["name"]["type"] == "string"
    assert "integer" in str(schema["properties"]["people"])
    assert [turn.reason for turn in g.turns] == ["constrained"], "a draw that was held to a schema does not train"
    assert report.trained == 0


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_an_engine_that_cannot_hold_to_a_schema_is_no_reason_to_answer_without(
    seeing: Any, ask: Ask, stream: bool
) -> None:
    engine, place = seeing(FITS, constrains=False)
    async with place as g:
        with pytest.raises((openai.BadRequestError, genai.errors.ClientError), match="cannot hold an answer to a JSON"):
            await asyncio.to_thread(ask, await g.open(), stream)
        await g.finish()
    assert (g.turns, engine.schemas) == ((), [])


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_an_answer_of_another_form_never_arrives(seeing: Any, ask: Ask) -> None:
    _, place = seeing(MISFIT)
    async with place as g:
        with pytest.raises((openai.InternalServerError, genai.errors.ServerError)):
            await asyncio.to_thread(ask, await g.open(), False)
        await g.finish()
    assert {turn.reason for turn in g.turns} == {"undelivered"}
