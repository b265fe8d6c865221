"""What every engine promises, over each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bridle.engines import NAMES
from bridle.engines.base import Chunk, Engine, GenerateRequest
from bridle.engines.journal import read_journal
from bridle.engines.script import Script
from bridle.engines.scripted import Actor, ScriptedEngine
from bridle.engines.transformers import TransformersEngine
from bridle.registry import resolve
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import concatenate

SCRIPT = msgspec.convert(
    {
        "threads": [{"turns": [{"text": "The sign is wrong, so every sum comes out as a difference." * 2}]}],
        "resegment": 0.3,
    },
    Script,
)
Ask = Callable[..., GenerateRequest]
Open = Callable[[], Engine]


@pytest.fixture(params=["scripted", "scripted-scored", "transformers", "transformers-script"])
def opened(request: pytest.FixtureRequest, model_directory: Path, renderer: TemplateRenderer, tmp_path: Path) -> Open:
    journal = tmp_path / "j"
    vocabulary, writer = renderer.vocabulary, renderer.write
    ways: dict[str, Open] = {
        "scripted": lambda: ScriptedEngine(SCRIPT, vocabulary, writer, journal),
        "scripted-scored": lambda: ScriptedEngine(SCRIPT, vocabulary, writer, journal, score="fake"),
        "transformers": lambda: TransformersEngine(model_directory, journal_path=journal),
        "transformers-script": lambda: TransformersEngine(
            model_directory, actor=Actor(SCRIPT, vocabulary, writer), journal_path=journal
        ),
    }
    return ways[request.param]


async def collect(engine: Engine, request: GenerateRequest) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(request)]


async def test_chunks_are_aligned_and_the_last_alone_says_how_it_ended(opened: Open, ask: Ask) -> None:
    async with opened() as engine:
        chunks = await collect(engine, ask(max_tokens=60))
    assert [chunk.finish is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    for chunk in chunks:
        assert chunk.ids.dtype == np.int32
        assert len(chunk.ids) > 0
        assert (chunk.logprobs is None) is chunk.forced
        if chunk.logprobs is not None:
            assert chunk.logprobs.dtype == np.float32
            assert chunk.logprobs.shape == chunk.ids.shape
            assert (chunk.logprobs <= 0).all()


async def test_a_turn_that_stops_returns_its_stop_id_and_one_cut_by_length_has_none(opened: Open, ask: Ask) -> None:
    async with opened() as engine:
        whole = await collect(engine, ask(max_tokens=60, seed=3))
        ids = concatenate([chunk.ids for chunk in whole]).tolist()
        if whole[-1].finish == "stop":
            assert ids[-1] in ask().sampling.stop_ids
        cut = await collect(engine, ask(max_tokens=3, seed=3))
    assert cut[-1].finish == "length"
    assert concatenate([chunk.ids for chunk in cut]).tolist() == ids[:3]


async def test_requests_at_once_do_not_mix(opened: Open, ask: Ask, tmp_path: Path) -> None:
    requests = [ask(f"r{number}", ("user", f"task {number}"), max_tokens=40) for number in range(4)]
    async with opened() as engine:
        replies = await asyncio.gather(*(collect(engine, request) for request in requests))
    entries = {entry.rid: entry for entry in read_journal(tmp_path / "j")}
    for request, chunks in zip(requests, replies, strict=True):
        assert np.array_equal(entries[request.rid].prompt, request.ids)
        assert np.array_equal(entries[request.rid].output, concatenate([chunk.ids for chunk in chunks]))


async def test_closing_early_aborts_and_the_next_request_is_served(opened: Open, ask: Ask, tmp_path: Path) -> None:
    async with opened() as engine:
        stream = engine.generate(ask("r1", max_tokens=60))
        first = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await engine.abort("r1")
        assert (await collect(engine, ask("r2", max_tokens=60)))[-1].finish is not None
    one, two = read_journal(tmp_path / "j")
    assert (one.rid, one.aborted, one.output.tolist()) == ("r1", True, first.ids.tolist())
    assert (two.rid, two.aborted) == ("r2", False)


async def test_a_stop_text_ends_the_turn_with_the_id_that_completes_it(
    opened: Open, ask: Ask, renderer: TemplateRenderer
) -> None:
    request = ask(max_tokens=60, seed=3)
    spell = renderer.vocabulary.token_bytes
    async with opened() as engine:
        whole = concatenate([chunk.ids for chunk in await collect(engine, request)]).tolist()
        kept = whole[: 1 + max(at for at, id in enumerate(whole[:30]) if spell(id).isascii() and spell(id).isalpha())]
        said = b"".join(map(spell, kept)).decode(errors="replace")
        stops = ("no such text", said[-6:])
        stopping = msgspec.structs.replace(request.sampling, stop=stops)
        chunks = await collect(engine, msgspec.structs.replace(request, sampling=stopping))
    ids = concatenate([chunk.ids for chunk in chunks]).tolist()
    first = next(n for n in range(1, 61) if stops[1] in b"".join(map(spell, whole[:n])).decode(errors="replace"))
    assert ids == whole[:first]
    assert [(chunk.finish, chunk.stopped_by) for chunk in chunks if chunk.finish or chunk.stopped_by] == [
        ("stop", stops[1])
    ]


async def test_a_turn_that_no_stop_text_ended_names_none(opened: Open, ask: Ask) -> None:
    request = ask(max_tokens=20)
    stopping = msgspec.structs.replace(request.sampling, stop=("no such text",))
    async with opened() as engine:
        chunks = await collect(engine, msgspec.structs.replace(request, sampling=stopping))
    assert {chunk.stopped_by for chunk in chunks} == {""}


@pytest.mark.parametrize("name", NAMES)
def test_names_lead_to_engines(name: str) -> None:
    assert {"generate", "abort"} <= set(dir(resolve("engine", NAMES, name)))
