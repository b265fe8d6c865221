from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from bridle.engines.base import CallRule, Chunk, GenerateRequest, Sampling
from bridle.engines.grammar import Grammars
from bridle.engines.journal import Entry, read_journal
from bridle.engines.schema import misfit
from bridle.engines.script import Script
from bridle.engines.scripted import Actor
from bridle.engines.tiny_model import TinyModel, make_model
from bridle.engines.transformers import Draw, LocalModel, TransformersEngine, narrow
from bridle.errors import BadRequest, ConfigError, EngineError
from bridle.messages import Tool
from bridle.rendering.constrain import spell_calls
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import Ids, concatenate, ids_of

Ask = Callable[..., GenerateRequest]
Act = Callable[[Script], Actor]


@pytest.fixture(scope="module")
def model(model_directory: Path) -> LocalModel:
    return LocalModel(model_directory)


@pytest.fixture
async def engine(model_directory: Path, tmp_path: Path) -> AsyncIterator[TransformersEngine]:
    async with TransformersEngine(model_directory, journal_path=tmp_path / "j") as opened:
        yield opened


async def collect(engine: TransformersEngine, request: GenerateRequest) -> tuple[Ids, np.ndarray, list[Chunk]]:
    chunks = [chunk async for chunk in engine.generate(request)]
    logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    return concatenate([chunk.ids for chunk in chunks]), np.concatenate(logprobs or [np.zeros(0)]), chunks


def rescored(model: LocalModel, prompt: Ids, output: Ids, temperature: float = 1.0) -> np.ndarray:
    whole = concatenate([prompt, output])
    return model.score(whole, np.arange(len(prompt), len(whole)), temperature)


def with_sampling(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **changes))


def entries(path: Path) -> list[Entry]:
    return list(read_journal(path / "j"))


async def test_the_model_says_its_context_length(engine: TransformersEngine) -> None:
    assert engine.facts.context_length == 131072
    assert engine.facts.returns_stop_id


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
async def test_captured_logprobs_are_those_of_one_full_pass(
    engine: TransformersEngine, model: LocalModel, ask: Ask, temperature: float
) -> None:
    request = ask(temperature=temperature, max_tokens=60)
    ids, logprobs, _ = await collect(engine, request)
    assert logprobs.shape == ids.shape
    assert engine.facts.logprobs == "processed"
    assert np.abs(logprobs - rescored(model, request.ids, ids, temperature)).max() < 1e-4


async def test_the_journal_says_exactly_what_went_in_and_out(
    engine: TransformersEngine, ask: Ask, tmp_path: Path
) -> None:
    request = ask(max_tokens=20)
    ids, logprobs, _ = await collect(engine, request)
    (entry,) = entries(tmp_path)
    assert np.array_equal(entry.prompt, request.ids)
    assert np.array_equal(entry.output, ids)
    assert entry.logprobs is not None
    assert np.array_equal(entry.logprobs, logprobs)
    assert (entry.how, entry.kind, entry.aborted, entry.forced) == ("drawn", None, False, False)


def test_ids_are_drawn_from_the_softmax_of_the_logits(model: LocalModel) -> None:
    prompt, temperature, draws = ids_of([5, 400, 77, 12]), 0.8, 1200
    logits, _ = model.logits(prompt, 1)
    expected = np.exp(np.asarray(logits[-1] / temperature, np.float64))
    expected /= expected.sum()
    drawn = [Draw(model, prompt, Sampling(1, (), temperature), seed).step(None)[0] for seed in range(draws)]
    counts = np.bincount(drawn, minlength=len(expected))
    likely = np.argsort(expected)[-10:]
    spread = np.sqrt(draws * expected * (1 - expected))
    assert (np.abs(counts - draws * expected)[likely] < 4 * spread[likely]).all()
    surprise, entropy = -np.log(expected[drawn]).mean(), -(expected * np.log(expected)).sum()
    assert abs(surprise - entropy) < 4 * np.sqrt((expected * np.log(expected) ** 2).sum() / draws)


async def test_a_seed_repeats_a_draw_and_without_one_the_rid_decides(engine: TransformersEngine, ask: Ask) -> None:
    async def draw(rid: str, seed: int | None) -> list[int]:
        return (await collect(engine, ask(rid, max_tokens=8, seed=seed)))[0].tolist()

    assert await draw("a", 5) == await draw("b", 5)
    assert await draw("a", 5) != await draw("a", 6)
    assert await draw("a", None) == await draw("a", None)
    assert await draw("a", None) != await draw("b", None)


async def test_a_drawn_stop_id_ends_the_turn_and_is_returned(engine: TransformersEngine, ask: Ask) -> None:
    request = ask(max_tokens=30, seed=1)
    ids, _, _ = await collect(engine, request)
    stop = int(ids[9])
    first = ids.tolist().index(stop)
    sampling = msgspec.structs.replace(request.sampling, stop_ids=(stop,))
    stopped, _, chunks = await collect(engine, msgspec.structs.replace(request, sampling=sampling))
    assert stopped.tolist() == ids.tolist()[: first + 1]
    assert chunks[-1].finish == "stop"


async def test_max_tokens_ends_the_turn_by_length(engine: TransformersEngine, ask: Ask) -> None:
    ids, _, chunks = await collect(engine, ask(max_tokens=5, seed=2))
    assert len(ids) == 5
    assert [chunk.finish for chunk in chunks] == [None] * 4 + ["length"]


async def test_the_end_of_the_context_ends_the_turn(tmp_path: Path) -> None:
    make_model(tmp_path / "m", 300, TinyModel(context_length=12))
    async with TransformersEngine(tmp_path / "m") as engine:
        ids, _, chunks = await collect(engine, GenerateRequest("r", ids_of(range(8)), Sampling(100, ())))
        assert len(ids) == 4
        assert chunks[-1].finish == "length"
        with pytest.raises(EngineError, match="no room in a context of 12"):
            await collect(engine, GenerateRequest("r", ids_of(range(12)), Sampling(100, ())))


@pytest.mark.parametrize("wish", [{"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -2}, {"temperature": -0.1}])
async def test_sampling_that_means_nothing_is_refused(
    engine: TransformersEngine, ask: Ask, wish: dict[str, float]
) -> None:
    with pytest.raises(BadRequest, match="top_p above 0"):
        await collect(engine, with_sampling(ask(), **wish))


@pytest.mark.parametrize("wish", [{"top_p": 0.5}, {"top_k": 5}, {"top_k": 40, "top_p": 0.8}])
def test_a_narrowed_draw_takes_the_likeliest_and_its_logprob_is_of_the_whole_softmax(
    model: LocalModel, wish: dict[str, Any]
) -> None:
    prompt, temperature, draws = ids_of([5, 400, 77, 12]), 0.8, 250
    logits, _ = model.logits(prompt, 1)
    whole = np.exp(np.asarray(logits[-1] / temperature, np.float64))
    whole /= whole.sum()
    order = np.argsort(-whole)[: wish.get("top_k", len(whole))]
    mass = np.cumsum(whole[order]) / whole[order].sum()
    kept = order[: 1 + int(np.searchsorted(mass, wish.get("top_p", 1.0)))] if "top_p" in wish else order
    sampling = Sampling(1, (), temperature, **wish)
    drawn = [Draw(model, prompt, sampling, seed).step(None) for seed in range(draws)]
    assert {id for id, _ in drawn} <= set(kept.tolist())
    expected = whole[kept] / whole[kept].sum()
    counts = np.array([sum(id == likely for id, _ in drawn) for likely in kept[:5]])
    spread = np.sqrt(draws * expected[:5] * (1 - expected[:5]))
    assert (np.abs(counts - draws * expected[:5]) < 4 * spread + 1).all()
    assert max(abs(logprob - np.log(whole[id])) for id, logprob in drawn) < 1e-4


def test_a_draw_is_narrowed_to_the_fewest_likeliest_that_hold_the_mass() -> None:
    logprobs = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05]).log()

    def kept(top_k: int, top_p: float) -> list[int]:
        return narrow(logprobs, top_k, top_p).isfinite().nonzero()[:, 0].tolist()

    assert kept(-1, 1.0) == kept(0, 1.0) == kept(9, 1.0) == [0, 1, 2, 3, 4]
    assert kept(2, 1.0) == [1, 3]
    assert [kept(-1, mass) for mass in (0.01, 0.39, 0.41, 0.66, 0.99)] == [[1], [1], [1, 3], [1, 2, 3], [0, 1, 2, 3, 4]]
    assert kept(2, 0.61) == [1], "of the two that are left it holds 0.62"


async def test_captured_logprobs_of_a_narrowed_draw_are_those_of_one_full_pass(
    engine: TransformersEngine, model: LocalModel, ask: Ask
) -> None:
    request = with_sampling(ask(max_tokens=30), temperature=0.7, top_p=0.6, top_k=20)
    ids, logprobs, _ = await collect(engine, request)
    assert np.abs(logprobs - rescored(model, request.ids, ids, 0.7)).max() < 1e-4


async def test_a_greedy_draw_is_the_likeliest_ids_and_has_no_logprobs(
    engine: TransformersEngine, model: LocalModel, ask: Ask, tmp_path: Path
) -> None:
    request = ask(max_tokens=8, temperature=0.0)
    ids, logprobs, chunks = await collect(engine, request)
    whole = concatenate([request.ids, ids])
    logits, _ = model.logits(whole[:-1], len(ids))
    assert logits.argmax(-1).tolist() == ids.tolist()
    assert len(logprobs) == 0
    assert all(chunk.logprobs is None for chunk in chunks)
    assert entries(tmp_path)[0].logprobs is None


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["bug", "feature"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "lines"],
    "additionalProperties": False,
}


async def test_an_answer_held_to_a_schema_is_json_of_it_and_ends_by_itself(
    engine: TransformersEngine, model: LocalModel, ask: Ask, renderer: TemplateRenderer
) -> None:
    for number in range(4):
        request = with_sampling(ask(f"r{number}", max_tokens=200), schema=SCHEMA)
        ids, logprobs, chunks = await collect(engine, request)
        assert (chunks[-1].finish, int(ids[-1]) in renderer.stop_ids) == ("stop", True)
        text = renderer.vocabulary.decode(ids.tolist()[:-1])
        assert misfit(text, SCHEMA) == ""
        assert json.dumps(json.loads(text), ensure_ascii=False).startswith('{"name": "')
        assert all(chunk.constrained for chunk in chunks)
        assert np.abs(logprobs - rescored(model, request.ids, ids)).max() < 1e-4


async def test_a_schema_holds_for_what_comes_behind_the_reasoning_that_the_prompt_opens(
    model: LocalModel, ask: Ask, renderer: TemplateRenderer, model_directory: Path
) -> None:
    end = renderer.vocabulary.controls["</think>"]
    grammars = Grammars(renderer.vocabulary, renderer.stop_ids)
    request = ask()
    draw = Draw(model, request.ids, request.sampling, 1, grammars.schema(SCHEMA, end))
    thought = [draw.step(None)[0] for _ in range(6)]
    draw.step(end)
    said = []
    while not said or said[-1] not in renderer.stop_ids:
        said.append(draw.step(None)[0])
    assert not renderer.vocabulary.decode(thought).startswith('{"name"')
    assert misfit(renderer.vocabulary.decode(said[:-1]), SCHEMA) == ""


async def test_an_open_reasoning_block_is_not_held_to_the_schema(
    engine: TransformersEngine, ask: Ask, renderer: TemplateRenderer
) -> None:
    end = renderer.vocabulary.controls["</think>"]
    request = with_sampling(ask(max_tokens=30, seed=4), schema=SCHEMA)
    free, _, _ = await collect(engine, with_sampling(request, schema=None))
    opened = msgspec.structs.replace(request, thinking_open=True, thinking_end=end)
    ids, _, _ = await collect(engine, opened)
    before_stop = [id for id in free.tolist() if id not in request.sampling.stop_ids]
    assert ids.tolist()[: len(before_stop)] == before_stop
    unstopped = with_sampling(opened, stop_ids=tuple(set(ids.tolist())))
    ids, _, chunks = await collect(engine, unstopped)
    assert not set(ids.tolist()) & set(unstopped.sampling.stop_ids), "it would end before the answer begins"
    assert (len(ids), chunks[-1].finish) == (30, "length")


@pytest.mark.parametrize("schema", [{"type": "array", "uniqueItems": True}, {"$ref": "#/nowhere"}, {"type": "text"}])
async def test_a_schema_that_cannot_be_held_to_is_refused_with_the_reason(
    engine: TransformersEngine, ask: Ask, schema: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest, match=r"response_format: .*(uniqueItems|nowhere|Invalid type: text)"):
        await collect(engine, with_sampling(ask(), schema=schema))


READ = Tool(
    "read",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "maxLength": 6},
            "line": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
)


def held_to(renderer: TemplateRenderer, least: int, most: int | None, *tools: Tool) -> CallRule:
    spelling = spell_calls(renderer.write, tools or (READ,))
    assert spelling is not None
    return CallRule(spelling, least, most)


@pytest.mark.parametrize("most", [None, 1])
async def test_an_answer_that_needs_a_call_is_calls_that_fit_and_ends_by_itself(
    engine: TransformersEngine, model: LocalModel, ask: Ask, renderer: TemplateRenderer, most: int | None
) -> None:
    counts = {0}
    for number in range(4 if most else 60):
        if not most and max(counts) > 1:
            break
        rule = held_to(renderer, 1, most)
        request = with_sampling(ask(f"r{number}", max_tokens=2000, temperature=0.8), calls=rule)
        ids, logprobs, chunks = await collect(engine, request)
        assert (chunks[-1].finish, int(ids[-1]) in renderer.stop_ids) == ("stop", True)
        parser = renderer.parser(False, (READ,))
        parser.feed(ids.tolist())
        message, _ = parser.finish()
        assert message.parts == message.calls
        assert {(call.name, call.status, misfit(call.arguments, READ.parameters)) for call in message.calls} == {
            ("read", "ok", "")
        }
        assert all(chunk.constrained for chunk in chunks)
        assert np.abs(logprobs - rescored(model, request.ids, ids, 0.8)).max() < 1e-4
        counts.add(len(message.calls))
    assert counts == {0, 1} if most else max(counts) > 1


async def test_an_answer_that_may_not_call_never_draws_what_begins_a_call(
    engine: TransformersEngine, model: LocalModel, ask: Ask, renderer: TemplateRenderer
) -> None:
    request = ask(max_tokens=40, seed=4)
    free, _, _ = await collect(engine, request)
    begins = int(free[7])
    rule = held_to(renderer, 0, 0)
    rule = msgspec.structs.replace(rule, spelling=msgspec.structs.replace(rule.spelling, mark=begins))
    ids, logprobs, chunks = await collect(engine, with_sampling(request, calls=rule))
    before = free.tolist().index(begins)
    assert ids.tolist()[:before] == free.tolist()[:before]
    assert begins not in ids
    assert all(chunk.constrained for chunk in chunks)
    assert np.abs(logprobs - rescored(model, request.ids, ids)).max() < 1e-4


async def test_an_answer_that_may_call_once_is_drawn_freely_until_it_calls(
    model: LocalModel, engine: TransformersEngine, ask: Ask, renderer: TemplateRenderer
) -> None:
    request = ask(max_tokens=30, seed=4)
    free, _, _ = await collect(engine, request)
    rule = held_to(renderer, 0, 1)
    ids, _, chunks = await collect(engine, with_sampling(request, calls=rule))
    assert ids.tolist() == free.tolist()
    assert not any(chunk.constrained for chunk in chunks)

    held = Grammars(renderer.vocabulary, renderer.stop_ids).calls(rule, request)
    draw = Draw(model, request.ids, request.sampling, 1, held)
    said = [draw.step(None)[0] for _ in range(5)]
    assert not draw.constrained
    said.append(draw.step(renderer.vocabulary.controls["<tool_call>"])[0])
    while said[-1] not in renderer.stop_ids:
        said.append(draw.step(None)[0])
    assert draw.constrained
    parser = renderer.parser(False, (READ,))
    parser.feed(said)
    message, _ = parser.finish()
    assert [(call.name, call.status) for call in message.calls] == [("read", "ok")]


async def test_a_script_that_calls_as_asked_is_forced_and_constrained(
    model_directory: Path, act: Act, ask: Ask, renderer: TemplateRenderer
) -> None:
    turn = {"calls": [{"tool": "read", "arguments": {"path": "a.py"}}]}
    actor = act(msgspec.convert({"threads": [{"turns": [turn]}]}, Script))
    async with TransformersEngine(model_directory, actor=actor) as engine:
        request = with_sampling(ask(tools=(READ,)), calls=held_to(renderer, 1, 1))
        assert {chunk.constrained for chunk in (await collect(engine, request))[2]} == {True}
        with pytest.raises(EngineError, match="takes no call, and the script says read"):
            await collect(engine, with_sampling(request, calls=held_to(renderer, 0, 0)))


async def test_calls_that_cannot_be_held_to_their_schema_are_refused_with_the_reason(
    engine: TransformersEngine, ask: Ask, renderer: TemplateRenderer
) -> None:
    rule = held_to(renderer, 1, None, Tool("read", parameters={"$ref": "#/nowhere"}))
    with pytest.raises(BadRequest, match="tools: .*nowhere"):
        await collect(engine, with_sampling(ask(), calls=rule))


async def test_an_id_the_model_does_not_hold_is_an_engine_error(engine: TransformersEngine) -> None:
    with pytest.raises(EngineError, match="the model failed at id 0 of r9"):
        await collect(engine, GenerateRequest("r9", ids_of([10**6]), Sampling(4, ())))


async def test_an_abort_ends_the_generation(engine: TransformersEngine, ask: Ask, tmp_path: Path) -> None:
    stream = engine.generate(ask(max_tokens=1000))
    given = [await anext(stream), await anext(stream)]
    await engine.abort("r1")
    given += [chunk async for chunk in stream]
    assert (len(given), given[-1].finish) == (3, "abort")
    (entry,) = entries(tmp_path)
    assert entry.aborted
    assert np.array_equal(entry.output, concatenate([chunk.ids for chunk in given]))


async def test_a_cancelled_request_frees_the_engine_for_the_next(
    engine: TransformersEngine, ask: Ask, tmp_path: Path
) -> None:
    given: list[Chunk] = []

    async def consume() -> None:
        stream = engine.generate(ask("r1", max_tokens=100_000))
        while True:
            given.append(await anext(stream))

    task = asyncio.create_task(consume())
    waiting = asyncio.create_task(collect(engine, ask("r2", max_tokens=3)))
    while not given:
        await asyncio.sleep(0.005)
    assert not waiting.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ids, _, _ = await waiting
    assert len(ids) == 3
    first, second = entries(tmp_path)
    assert (first.rid, first.aborted) == ("r1", True)
    assert np.array_equal(first.output, concatenate([chunk.ids for chunk in given]))
    assert (second.rid, second.aborted) == ("r2", False)


async def test_the_event_loop_stays_free_while_the_model_works(engine: TransformersEngine) -> None:
    prompt = ids_of(np.arange(3000) % 500)
    task = asyncio.create_task(collect(engine, GenerateRequest("r", prompt, Sampling(3, ()))))
    beats = 0
    while not task.done():
        await asyncio.sleep(0.002)
        beats += 1
    await task
    assert beats > 5


async def test_a_script_goes_through_the_model_and_carries_its_true_logprobs(
    model_directory: Path, model: LocalModel, act: Act, ask: Ask, renderer: TemplateRenderer, tmp_path: Path
) -> None:
    turns = [{"text": "I run the tests.", "calls": [{"shell": "python3 -m unittest -q"}]}]
    actor = act(msgspec.convert({"threads": [{"kind": "subagent", "turns": turns}], "resegment": 0.3}, Script))
    request = ask(temperature=0.7)
    async with TransformersEngine(model_directory, actor=actor, journal_path=tmp_path / "j") as engine:
        ids, logprobs, chunks = await collect(engine, request)
    assert np.array_equal(ids, actor.line(request).ids)
    assert np.abs(logprobs - rescored(model, request.ids, ids, 0.7)).max() < 1e-4
    assert not any(chunk.forced for chunk in chunks)
    assert chunks[-1].finish == "stop"
    assert chunks[-1].ids.tolist() == [renderer.stop_ids[0]]
    (entry,) = entries(tmp_path)
    assert (entry.how, entry.kind, entry.forced) == ("forced-through-model", "subagent", False)
    assert entry.logprobs is not None
    assert np.array_equal(entry.logprobs, logprobs)


@pytest.mark.parametrize(
    ("fault", "logprobs", "finish"),
    [({"drop_logprobs": True}, 0, "stop"), ({"extra_logprob": True}, 1, "stop"), ({"finish": "length"}, 0, "length")],
)
async def test_faults_of_a_script_show_here_too(
    model_directory: Path, act: Act, ask: Ask, fault: dict[str, object], logprobs: int, finish: str
) -> None:
    actor = act(msgspec.convert({"threads": [{"turns": [{"text": "done", **fault}]}]}, Script))
    async with TransformersEngine(model_directory, actor=actor) as engine:
        ids, found, chunks = await collect(engine, ask())
    expected = 0 if "drop_logprobs" in fault else len(ids) + logprobs
    assert len(found) == expected
    assert chunks[-1].finish == finish


async def test_an_error_of_a_script_is_raised(model_directory: Path, act: Act, ask: Ask) -> None:
    actor = act(msgspec.convert({"threads": [{"turns": [{"error": "out of memory"}]}]}, Script))
    async with TransformersEngine(model_directory, actor=actor) as engine:
        with pytest.raises(EngineError, match="out of memory"):
            await collect(engine, ask())


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        LocalModel(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, 300)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot load the model"):
        LocalModel(tmp_path)


def test_missing_weights_are_refused_not_filled_with_random_numbers(tmp_path: Path) -> None:
    make_model(tmp_path / "one", 300, TinyModel(layers=1))
    make_model(tmp_path / "two", 300)
    (tmp_path / "one" / "config.json").write_text((tmp_path / "two" / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"lack 11 weights of the model: model\.layers\.1"):
        LocalModel(tmp_path / "one")
