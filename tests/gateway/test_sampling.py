"""Whose word holds when a turn is sampled, what is written down of the rest, and what its logprobs are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from bridle.engines.base import EngineFacts, GenerateRequest, Sampling
from bridle.engines.script import Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.gateway.sampling import distribution_of, sampling_of
from bridle.messages import Message, ModelRequest, Text, Wishes
from bridle.rendering.template import TemplateRenderer
from bridle.sessions.records import Distribution, SessionOptions, TrainingSampling
from bridle.testing.ground import ground

SHORT = ScriptTurn(text="Short.")
FACTS = EngineFacts("e", "m", 1000)
GREEDY = Wishes(temperature=0.0)
WISHES = Wishes(temperature=0.3, top_p=0.5, top_k=7, seed=3, max_tokens=900)
TRAINER = {"temperature": 0.7, "max_tokens": 50, "seed": 1}


def decided(precedence: str, wishes: Wishes, room: int = 500) -> tuple[Sampling, dict[str, Any]]:
    """-> the sampling, and what is noted as overridden."""
    options = SessionOptions(sampling=TrainingSampling(**TRAINER, precedence=precedence))  # type: ignore[arg-type]
    request = ModelRequest("openai_chat", "m", (Message("user", (Text("u"),)),), wishes=wishes)
    sampling, notes = sampling_of(options, request, room, (9,), FACTS)
    return sampling, orjson.loads(notes[0].detail) if notes else {}


def test_the_trainer_enforces_its_sampling_and_every_wish_is_noted() -> None:
    sampling, noted = decided("enforce", WISHES)
    assert sampling == Sampling(50, (9,), 0.7, seed=1)
    assert noted == {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "seed": 3, "max_tokens": 900}


@pytest.mark.parametrize("precedence", ["default", "client"])
def test_a_client_that_is_heard_gets_what_it_says(precedence: str) -> None:
    sampling, noted = decided(precedence, WISHES)
    assert sampling == Sampling(500, (9,), 0.3, 0.5, 7, 3)
    assert noted == {"max_tokens": 900}, "there was room for less"


def test_what_a_client_leaves_open_is_the_trainers_or_the_apis() -> None:
    assert decided("default", Wishes()) == (Sampling(50, (9,), 0.7, seed=1), {})
    assert decided("client", Wishes()) == (Sampling(50, (9,), 1.0), {})


@pytest.mark.parametrize("precedence", ["enforce", "default", "client"])
def test_stop_texts_and_a_shorter_length_are_always_followed(precedence: str) -> None:
    sampling, noted = decided(precedence, Wishes(stop=("x", ""), max_tokens=5))
    assert (sampling.stop, sampling.max_tokens, noted) == (("x",), 5, {})


@pytest.mark.parametrize(
    ("wishes", "truncated"),
    [(Wishes(), False), (Wishes(top_p=0.9), True), (Wishes(top_k=5), True), (GREEDY, True), (Wishes(top_p=1.0), False)],
)
def test_a_distribution_without_some_ids_is_truncated(wishes: Wishes, truncated: bool) -> None:
    assert distribution_of(decided("default", wishes)[0], FACTS).truncated is truncated
    assert not distribution_of(decided("enforce", wishes)[0], FACTS).truncated


async def test_the_trainers_sampling_holds_and_the_clients_wishes_are_recorded(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        await agent.ask(temperature=0.2, top_p=0.5, seed=3, parallel_tool_calls=False)
        await g.checked()
    (note,) = [note for turn in g.turns for note in turn.notes]
    wished = {"temperature": 0.2, "top_p": 0.5, "seed": 3, "parallel_calls": False}
    assert (note.what, orjson.loads(note.detail)) == ("wishes_overridden", wished)
    assert g.turns[0].distribution == Distribution()


@pytest.mark.parametrize(("wish", "reason"), [({"top_p": 0.5}, "constrained"), ({"temperature": 0.5}, None)])
async def test_a_draw_from_a_truncated_distribution_does_not_train(grounds, agents, wish, reason: str | None) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, reasons=("constrained",)) as g:
        agent = agents("openai", await g.open(sampling=TrainingSampling(precedence="default")))
        agent.tell("Go.")
        await agent.ask(**wish)
        report = await g.checked()
    assert list(report.untrained) == ([reason] if reason else [])
    assert (g.turns[0].reason, g.turns[0].distribution) == (reason, Distribution(**wish))


class Raw(ScriptedEngine):
    """Gives the model's own logprobs, whatever temperature it draws at."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values, score="fake")
        self.facts = EngineFacts("raw", "m", 9999, logprobs="raw")


@pytest.mark.parametrize(("temperature", "reason"), [(1.0, None), (0.7, "bad_logprob")])
async def test_raw_logprobs_are_of_what_was_drawn_from_at_temperature_one_alone(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents, temperature: float, reason: str | None
) -> None:
    script = Script((Thread((SHORT,)),))
    engine = Raw(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl")
    async with ground(tmp_path, renderer, script, engine) as g:
        agent = agents("openai", await g.open(sampling=TrainingSampling(temperature=temperature)))
        agent.tell("Go.")
        await agent.ask()
        await g.finish()
    assert [turn.reason for turn in g.turns] == [reason]
    assert g.turns[0].distribution == Distribution(temperature, logprobs="raw")


class Constraining(Raw):
    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.facts = EngineFacts("constraining", "m", 9999, constrains=True)
        self.schemas: list[object] = []

    def generate(self, request: GenerateRequest) -> Any:
        self.schemas.append(request.sampling.schema)
        return super().generate(request)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


async def test_a_schema_goes_to_an_engine_that_can_and_is_refused_by_one_that_cannot(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents
) -> None:
    script = Script((Thread((ScriptTurn(text='{"a": "b"}'),)),))
    for kind in (Constraining, Raw):
        engine = kind(script, renderer.vocabulary, renderer.write, tmp_path / kind.__name__ / "journal.jsonl")
        async with ground(tmp_path / kind.__name__, renderer, script, engine) as g:
            agent = agents("openai", await g.open())
            agent.tell("Go.")
            if isinstance(engine, Constraining):
                await agent.ask(response_format=FORMAT)
                assert engine.schemas == [SCHEMA]
            else:
                with pytest.raises(openai.BadRequestError, match="engine raw cannot hold an answer to a JSON schema"):
                    await agent.ask(response_format=FORMAT)
                assert g.live().session.tree.turns == []


async def test_logprobs_a_client_asks_for_are_the_draws_own(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Small é 👍 words."), resegment=0.8) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        completion = await agent.client.chat.completions.create(**agent.request(), logprobs=True)
        (entry,) = g.journal()
        await g.checked()
    told = completion.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in told).decode() == "Small é 👍 words."
    assert [token.logprob for token in told] == pytest.approx(entry.logprobs[:-1].tolist()), "without the stop id"


async def test_a_pinned_switch_holds_against_the_request_and_is_recorded(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        for asked in (False, True):
            agent = agents("openai", await g.open(f"s{asked}", thinking=False))
            agent.tell("Go.")
            await agent.ask(extra_body={"chat_template_kwargs": {"enable_thinking": asked}})
            await g.finish(f"s{asked}")
            assert ("switches_pinned" in g.notes) is asked
        first, second = g.journal()
    assert first.prompt.tolist() == second.prompt.tolist()
