from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bridle.engines.base import CallRule, Chunk, Engine, GenerateRequest
from bridle.engines.journal import Entry, read_journal
from bridle.engines.script import Script
from bridle.engines.scripted import CHUNK, ScriptedEngine
from bridle.errors import EngineError
from bridle.messages import ModelRequest, Thinking, Tool
from bridle.rendering.constrain import spell_calls
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import Ids, concatenate

LONG = "The function subtracts where it should add, and every test of addition fails for that reason. " * 4
BASH = Tool(
    "bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
)
Ask = Callable[..., GenerateRequest]
Make = Callable[..., ScriptedEngine]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def make(renderer: TemplateRenderer, journal: Path) -> Make:
    def engine(*turns: dict[str, Any], score: str = "none", **rest: Any) -> ScriptedEngine:
        script = msgspec.convert({"threads": [{"turns": turns}], **rest}, Script)
        return ScriptedEngine(script, renderer.vocabulary, renderer.write, journal, score=score)  # type: ignore[arg-type]

    return engine


async def collect(engine: Engine, request: GenerateRequest) -> list[Chunk]:
    async with engine:
        return [chunk async for chunk in engine.generate(request)]


def ids(chunks: list[Chunk]) -> Ids:
    return concatenate([chunk.ids for chunk in chunks])


def entries(journal: Path) -> list[Entry]:
    return list(read_journal(journal))


async def test_the_reply_reads_back_as_scripted(make: Make, ask: Ask, renderer: TemplateRenderer) -> None:
    turn = {"thinking": "look first", "text": "I run it.", "calls": [{"shell": "ls"}, {"shell": "pwd"}]}
    request = ask()
    chunks = await collect(make(turn, resegment=0.5), request)
    assert request.conversation is not None
    parser = renderer.parser(request.thinking_open, request.conversation.tools)
    parser.feed(ids(chunks).tolist())
    message, _ = parser.finish()
    assert message.thinking.strip() == "look first"
    assert message.text.strip() == "I run it."
    assert [(call.name, call.arguments) for call in message.calls] == [
        ("bash", '{"command": "ls"}'),
        ("bash", '{"command": "pwd"}'),
    ]


@pytest.mark.parametrize("turn", [{"text": ""}, {"raw": ""}, {}])
async def test_an_empty_reply_is_its_stop_id(make: Make, ask: Ask, turn: dict[str, Any]) -> None:
    request = ask()
    chunks = await collect(make(turn), request)
    assert ids(chunks).tolist() == [request.sampling.stop_ids[0]]
    assert chunks[-1].finish == "stop"


async def test_a_reply_may_think_and_say_nothing(make: Make, ask: Ask, renderer: TemplateRenderer) -> None:
    parser = renderer.parser(False, ())
    parser.feed(ids(await collect(make({"thinking": "hm"}), ask())).tolist())
    message, _ = parser.finish()
    assert message.parts == (Thinking("hm"),)


async def test_the_journal_says_exactly_what_went_in_and_out(make: Make, ask: Ask, journal: Path) -> None:
    request = ask("r7")
    chunks = await collect(make({"text": LONG}, resegment=0.3), request)
    (entry,) = entries(journal)
    assert entry.rid == "r7"
    assert np.array_equal(entry.prompt, request.ids)
    assert np.array_equal(entry.output, ids(chunks))
    assert (entry.finish, entry.kind, entry.thread, entry.aborted) == ("stop", "main", 0, False)
    assert (entry.forced, entry.how, entry.logprobs) == (True, "forced", None)


async def test_ids_come_in_chunks_and_are_marked_as_forced(make: Make, ask: Ask, renderer: TemplateRenderer) -> None:
    chunks = await collect(make({"text": LONG}), ask())
    assert all(0 < len(chunk.ids) <= CHUNK for chunk in chunks)
    assert all(chunk.ids.dtype == np.int32 and chunk.forced and chunk.logprobs is None for chunk in chunks)
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1].ids[-1] == renderer.stop_ids[0]


async def test_segmentations_are_valid_not_canonical_and_differ_between_siblings(
    make: Make, ask: Ask, renderer: TemplateRenderer
) -> None:
    vocabulary = renderer.vocabulary
    plain = ids(await collect(make({"text": LONG}), ask()))
    drawn = [ids(await collect(make({"text": LONG}, resegment=0.3), ask(rid))) for rid in ("a", "b")]
    assert len({vocabulary.decode(found.tolist()) for found in (plain, *drawn)}) == 1
    assert len({tuple(found.tolist()) for found in (plain, *drawn)}) == 3


async def test_the_same_seed_and_rid_give_the_same_ids(make: Make, ask: Ask) -> None:
    first, again = [ids(await collect(make({"text": LONG}, resegment=0.3), ask())) for _ in range(2)]
    other = ids(await collect(make({"text": LONG}, resegment=0.3, seed=8), ask()))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


async def test_closing_the_iterator_aborts_and_the_journal_has_what_was_given_out(
    make: Make, ask: Ask, journal: Path
) -> None:
    async with make({"text": LONG}) as engine:
        stream = engine.generate(ask())
        given = [await anext(stream), await anext(stream)]
        await stream.aclose()
        (entry,) = entries(journal)
    assert entry.aborted
    assert np.array_equal(entry.output, ids(given))


async def test_an_abort_ends_the_generation_and_leaves_others_alone(make: Make, ask: Ask, journal: Path) -> None:
    async with make({"text": LONG}) as engine:
        stream, other = engine.generate(ask("r1")), engine.generate(ask("r2"))
        given, _ = [await anext(stream)], await anext(other)
        await engine.abort("r1")
        await engine.abort("unknown")
        given += [chunk async for chunk in stream]
        rest = [chunk async for chunk in other]
    assert given[-1].finish == "abort"
    assert len(given[-1].ids) == 0
    assert rest[-1].finish == "stop"
    by_rid = {entry.rid: entry for entry in entries(journal)}
    assert by_rid["r1"].aborted
    assert np.array_equal(by_rid["r1"].output, ids(given))
    assert not by_rid["r2"].aborted


async def test_a_cancelled_consumer_leaves_an_aborted_line(make: Make, ask: Ask, journal: Path) -> None:
    async with make({"text": LONG, "delay_s": 0.01}) as engine:
        given: list[Chunk] = []

        async def consume() -> None:
            stream = engine.generate(ask())
            while True:
                given.append(await anext(stream))

        task = asyncio.create_task(consume())
        while not given:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (entry,) = entries(journal)
    assert entry.aborted
    assert np.array_equal(entry.output, ids(given))


async def test_the_delay_is_taken_before_each_chunk(make: Make, ask: Ask) -> None:
    clock = asyncio.get_running_loop().time
    start = clock()
    chunks = await collect(make({"text": LONG, "delay_s": 0.005}), ask())
    assert clock() - start >= 0.005 * len(chunks)


async def test_a_reply_is_cut_at_max_tokens(make: Make, ask: Ask) -> None:
    chunks = await collect(make({"text": LONG}), ask(max_tokens=20))
    assert len(ids(chunks)) == 20
    assert chunks[-1].finish == "length"


async def test_a_reply_of_exactly_max_tokens_is_not_cut(make: Make, ask: Ask) -> None:
    whole = ids(await collect(make({"text": LONG}), ask()))
    chunks = await collect(make({"text": LONG}), ask(max_tokens=len(whole)))
    assert np.array_equal(ids(chunks), whole)
    assert chunks[-1].finish == "stop"


@pytest.mark.parametrize(
    ("fault", "ending", "finish"),
    [
        ({}, "<|im_end|>", "stop"),
        ({"finish": "length"}, "", "length"),
        ({"no_stop": True}, "", "stop"),
        ({"stop": "<|endoftext|>"}, "<|endoftext|>", "stop"),
    ],
)
@pytest.mark.parametrize("said", [{"text": "done."}, {"raw": "done."}])
async def test_a_turn_ends_as_scripted(
    make: Make,
    ask: Ask,
    renderer: TemplateRenderer,
    said: dict[str, Any],
    fault: dict[str, Any],
    ending: str,
    finish: str,
) -> None:
    chunks = await collect(make({**said, **fault}), ask())
    assert renderer.vocabulary.decode(ids(chunks).tolist()).endswith("done." + ending)
    assert chunks[-1].finish == finish


async def test_control_strings_of_a_raw_text_become_control_ids(
    make: Make, ask: Ask, renderer: TemplateRenderer
) -> None:
    found = ids(await collect(make({"raw": "<tool_call>\n{broken"}, resegment=1.0), ask())).tolist()
    assert found[0] == renderer.vocabulary.controls["<tool_call>"]
    assert renderer.vocabulary.decode(found) == "<tool_call>\n{broken<|im_end|>"


async def test_nothing_is_said_after_a_stop_token_in_a_raw_text(
    make: Make, ask: Ask, renderer: TemplateRenderer
) -> None:
    found = ids(await collect(make({"raw": "a<|im_end|>b"}), ask())).tolist()
    assert renderer.vocabulary.decode(found) == "a<|im_end|>"


async def test_an_unknown_stop_string_is_refused(make: Make, ask: Ask) -> None:
    with pytest.raises(EngineError, match=r"<\|eom\|>.*<\|im_end\|>"):
        await collect(make({"text": "a", "stop": "<|eom|>"}), ask())


async def test_an_alternative_that_is_said_once_is_said_once_in_each_session(make: Make, ask: Ask) -> None:
    engine = make({"alternatives": [{"text": "", "once": True}, {"text": "a word"}]})
    lengths = [
        sum(len(chunk.ids) for chunk in await collect(engine, ask(rid))) for rid in ("s-1-0", "s-1-1", "s-1-2", "s-2-0")
    ]
    assert lengths[0] == lengths[3] == 1
    assert min(lengths[1:3]) > 1


async def test_a_scripted_error_comes_as_often_as_the_script_says(make: Make, ask: Ask) -> None:
    engine = make({"text": "a", "error": "out of memory", "error_times": 2})
    for _ in range(2):
        with pytest.raises(EngineError, match="out of memory"):
            await collect(engine, ask())
    assert [chunk.finish for chunk in await collect(engine, ask())][-1] == "stop"


async def test_a_scripted_error_is_raised_and_journaled(make: Make, ask: Ask, journal: Path) -> None:
    with pytest.raises(EngineError, match="out of memory"):
        await collect(make({"text": "a", "error": "out of memory"}), ask())
    (entry,) = entries(journal)
    assert entry.aborted
    assert len(entry.output) == 0


async def test_a_request_without_a_conversation_is_refused(make: Make, ask: Ask) -> None:
    with pytest.raises(EngineError, match="pass it beside the ids"):
        await collect(make({"text": "a"}), msgspec.structs.replace(ask(), conversation=None))


async def test_fake_scores_make_ids_trainable_and_are_journaled(make: Make, ask: Ask, journal: Path) -> None:
    chunks = await collect(make({"text": LONG}, score="fake"), ask())
    assert not any(chunk.forced for chunk in chunks)
    logprobs = np.concatenate([chunk.logprobs for chunk in chunks if chunk.logprobs is not None])
    assert logprobs.dtype == np.float32
    assert logprobs.shape == ids(chunks).shape
    assert (logprobs < 0).all()
    (entry,) = entries(journal)
    assert entry.logprobs is not None
    assert np.array_equal(entry.logprobs, logprobs)
    assert not entry.forced


@pytest.mark.parametrize("score", ["none", "fake"])
async def test_dropped_logprobs_are_not_excused_as_forced(make: Make, ask: Ask, journal: Path, score: str) -> None:
    chunks = await collect(make({"text": LONG, "drop_logprobs": True}, score=score), ask())
    assert all(chunk.logprobs is None and not chunk.forced for chunk in chunks)
    (entry,) = entries(journal)
    assert not entry.forced
    assert (entry.logprobs is None) is (score == "none")


@pytest.mark.parametrize("score", ["none", "fake"])
async def test_an_extra_logprob_is_one_too_many(make: Make, ask: Ask, score: str) -> None:
    chunks = await collect(make({"text": LONG, "extra_logprob": True}, score=score), ask())
    assert not any(chunk.forced for chunk in chunks)
    counted = sum(len(chunk.logprobs) for chunk in chunks if chunk.logprobs is not None)
    assert counted == len(ids(chunks)) + 1


async def test_the_true_kind_of_a_thread_is_journaled(renderer: TemplateRenderer, ask: Ask, journal: Path) -> None:
    document = {
        "threads": [
            {"kind": "subagent", "when": {"header": "x-agent-id"}, "turns": [{"text": "sub"}]},
            {"turns": [{"text": "main"}]},
        ]
    }
    engine = ScriptedEngine(msgspec.convert(document, Script), renderer.vocabulary, renderer.write, journal)
    async with engine:
        for rid, headers in (("a", {"x-agent-id": "1"}), ("b", {})):
            _ = [chunk async for chunk in engine.generate(ask(rid, headers=headers))]
    assert [(entry.kind, entry.thread) for entry in entries(journal)] == [("subagent", 0), ("main", 1)]


async def test_the_fields_of_a_conversation_other_than_messages_do_not_matter(make: Make, ask: Ask) -> None:
    asked = ask()
    assert isinstance(asked.conversation, ModelRequest)
    streamed = msgspec.structs.replace(asked, conversation=msgspec.structs.replace(asked.conversation, stream=True))
    one = ids(await collect(make({"text": LONG}), asked))
    assert np.array_equal(one, ids(await collect(make({"text": LONG}), streamed)))


TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def asking_json(request: GenerateRequest) -> GenerateRequest:
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, schema=TITLE))


async def test_a_script_that_fits_the_schema_asked_for_is_said_as_constrained(make: Make, ask: Ask) -> None:
    engine = make({"thinking": "a title", "text": '{"title": "x"}'})
    assert engine.facts.constrains
    assert all(chunk.constrained for chunk in await collect(engine, asking_json(ask())))
    assert not any(chunk.constrained for chunk in await collect(engine, ask("r2")))


@pytest.mark.parametrize("turn", [{"text": "A title"}, {"raw": '{"name": "x"}'}, {"thinking": "hm"}])
async def test_a_script_that_does_not_fit_the_schema_asked_for_is_an_error(
    make: Make, ask: Ask, turn: dict[str, Any]
) -> None:
    with pytest.raises(EngineError, match="asks for JSON of a schema, and the script says"):
        await collect(make(turn), asking_json(ask()))


EDIT = Tool("edit", parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
CALLS = {"calls": [{"tool": "edit", "arguments": {"path": "a"}}]}
TWICE = {"calls": [*CALLS["calls"], *CALLS["calls"]]}
RAW = '<tool_call>\n{"name": "edit", "arguments": {"path": "a"}}\n</tool_call>'


@pytest.fixture
def held(ask: Ask, renderer: TemplateRenderer) -> Callable[[int, int | None], GenerateRequest]:
    """-> a request whose answer has so many calls of `edit`."""

    def make(least: int, most: int | None) -> GenerateRequest:
        request, spelling = ask(tools=(EDIT, BASH)), spell_calls(renderer.write, [EDIT])
        assert spelling is not None
        sampling = msgspec.structs.replace(request.sampling, calls=CallRule(spelling, least, most))
        return msgspec.structs.replace(request, sampling=sampling)

    return make


Held = Callable[[int, int | None], GenerateRequest]


@pytest.mark.parametrize(
    ("least", "most", "turn", "constrained"),
    [
        (1, None, CALLS, True),
        (1, None, TWICE, True),
        (1, 1, {"raw": RAW}, True),
        (1, 1, {"text": "cut", "finish": "length"}, True),
        (0, 0, {"text": "Done."}, True),
        (0, 1, CALLS, True),
        (0, 1, {"raw": f"I look.{RAW}"}, True),
        (0, 1, {"text": "Done."}, False),
        (0, None, TWICE, True),
    ],
)
async def test_a_script_that_keeps_the_rule_of_calls_is_constrained_as_a_model_would_be(
    make: Make, held: Held, least: int, most: int | None, turn: dict[str, Any], constrained: bool
) -> None:
    engine = make(turn)
    assert engine.facts.holds_calls
    assert {chunk.constrained for chunk in await collect(engine, held(least, most))} == {constrained}


@pytest.mark.parametrize(
    ("least", "most", "turn", "complaint"),
    [
        (1, None, {"text": "Done."}, "asks for a call of edit, and the script says 'Done.'"),
        (1, None, {"raw": "Done."}, "asks for a call of edit, and the script says 'Done.'"),
        (1, None, {"calls": [{"shell": "ls"}]}, "takes calls of edit, and the script calls bash"),
        (
            1,
            None,
            {"calls": [{"tool": "edit"}]},
            r"takes calls that fit their tool, and the script calls edit with \{\}: \$: path missing",
        ),
        (1, 1, TWICE, "takes one call at most, and the script says edit, edit"),
        (0, 1, {"raw": f"{RAW}{RAW}"}, "takes one call at most, and the script says '<tool_call>"),
        (0, 0, CALLS, "takes no call, and the script says edit"),
        (0, 0, {"raw": RAW}, "takes no call, and the script says '<tool_call>"),
        (0, None, {"calls": [{"shell": "ls"}]}, "takes calls of edit, and the script calls bash"),
    ],
)
async def test_a_script_that_breaks_the_rule_of_calls_is_an_error_that_says_so(
    make: Make, held: Held, least: int, most: int | None, turn: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(EngineError, match=f"the request {complaint}"):
        await collect(make(turn), held(least, most))


async def test_a_script_may_call_tools_where_a_schema_is_asked_for(make: Make, ask: Ask) -> None:
    assert (await collect(make({"calls": [{"shell": "ls"}]}), asking_json(ask())))[-1].finish == "stop"
