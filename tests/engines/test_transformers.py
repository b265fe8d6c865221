from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bridle.engines.base import Chunk, GenerateRequest, Sampling
from bridle.engines.journal import Entry, read_journal
from bridle.engines.script import Script
from bridle.engines.scripted import Actor
from bridle.engines.tiny_model import TinyModel, make_model
from bridle.engines.transformers import Draw, LocalModel, TransformersEngine
from bridle.errors import ConfigError, EngineError, EngineUnfit
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
    drawn = [Draw(model, prompt, temperature, seed).step(None)[0] for seed in range(draws)]
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


@pytest.mark.parametrize("wish", [{"top_p": 0.9}, {"top_k": 20}, {"temperature": 0.0}])
async def test_truncated_and_greedy_sampling_are_refused(
    engine: TransformersEngine, ask: Ask, wish: dict[str, float]
) -> None:
    request = ask()
    sampling = msgspec.structs.replace(request.sampling, **wish)
    with pytest.raises(EngineUnfit, match="whole softmax"):
        await collect(engine, msgspec.structs.replace(request, sampling=sampling))


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
