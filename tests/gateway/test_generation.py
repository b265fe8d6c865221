"""Engines fail, forget logprobs and stop ids, and cut characters in half: what was drawn is accounted for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openai
import orjson
import pytest

from bridle.engines.base import Chunk, EngineFacts, GenerateRequest
from bridle.engines.script import Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.errors import BridleError, EngineError, EngineUnfit
from bridle.extras import Extras, PerId
from bridle.gateway.app import retry_headers
from bridle.gateway.client import GatewayClient
from bridle.gateway.server import GatewayConfig, serve
from bridle.gateway.turn import Answered
from bridle.rendering.template import TemplateRenderer
from bridle.samples.sample import Sample
from bridle.sessions.records import SessionOptions
from bridle.testing.exchange import exchange
from bridle.testing.ground import ground, shell
from bridle.tokens import EMPTY, Ids, ids_of

PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
LONG = ScriptTurn(text="One word after the other, " * 10)
SHORT = ScriptTurn(text="Short.")
STREAMED = {"model": "bridle", "max_tokens": 4096, "stream": True, "messages": [{"role": "user", "content": "Go."}]}


def every_error(kind: type[BridleError] = BridleError) -> list[type[BridleError]]:
    return [kind, *(found for each in kind.__subclasses__() for found in every_error(each))]


class Failing(ScriptedEngine):
    """Fails the first `times` generations after `chunks` chunks."""

    def __init__(self, *values: Any, times: int, chunks: int) -> None:
        super().__init__(*values, score="fake")
        self.times = times
        self.chunks = chunks

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        failing, self.times = self.times > 0, self.times - 1
        left = self.chunks
        if failing and not left:
            raise EngineError("out of memory")
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                left -= 1
                if failing and not left:
                    raise EngineError("the engine went away")


def said_of(ids: Ids) -> Extras:
    """Numbers that tell which id they are of."""
    counts = ids % 3
    kept = np.concatenate([EMPTY, *(np.full(count, id) for count, id in zip(counts, ids, strict=True))])
    experts = np.stack([ids % 8, ids % 5], axis=1).ravel()
    reference = (-(ids % 97) / 128).astype(np.float32)
    return Extras(PerId(np.full_like(ids, 2), experts), PerId(counts, kept.astype(np.int32)), reference)


def extras_of(sample: Sample) -> list[Any]:
    fields = sample.to_dict()
    return [fields[name] for name in ("routed_experts", "kept_tokens", "reference_logprobs")]


class Talkative(ScriptedEngine):
    """Says more of each id."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                yield msgspec.structs.replace(chunk, extras=said_of(chunk.ids))


def failing(renderer: TemplateRenderer, directory: Path, turn: ScriptTurn, engine_retries: int = 0, **how: int) -> Any:
    script = Script((Thread((turn,)),), resegment=0.4)
    engine = Failing(script, renderer.vocabulary, renderer.write, directory / "journal.jsonl", **how)
    return ground(directory, renderer, script, engine, engine_retries=engine_retries)


async def test_a_failure_before_the_first_id_is_retried_by_the_sdk(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents, protocol: str, stream: bool
) -> None:
    async with failing(renderer, tmp_path, SHORT, times=1, chunks=0) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        assert (await agent.ask()).text == "Short."
        assert g.refusals == 1
        report = await g.checked()
    assert (report.kept_percent, [turn.reason for turn in g.turns]) == (100.0, ["undelivered", None])


async def test_a_failure_before_the_first_id_is_made_good_within_the_turn(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents, protocol: str, stream: bool
) -> None:
    async with failing(renderer, tmp_path, SHORT, engine_retries=2, times=2, chunks=0) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        assert (await agent.ask()).text == "Short."
        assert g.refusals == 0
        report = await g.checked()
    assert (report.kept_percent, [turn.reason for turn in g.turns]) == (100.0, [None])


async def test_a_failed_attempt_in_the_engines_journal_is_no_draw(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    """The engine writes every attempt, all under the turn's one rid, and later prompts name its lines as their base."""
    turns = (shell("ls", error="busy", error_times=2), shell("pwd", error="busy", error_times=1), SHORT)
    async with grounds(*turns, samples=1) as g:
        await agents(protocol, await g.open()).work("Go.")
        report = await g.checked()
        attempts = [(entry.rid, len(entry.output) > 0) for entry in g.journal()]
    assert attempts == [("s-0", False), ("s-0", False), ("s-0", True), ("s-1", False), ("s-1", True), ("s-2", True)]
    assert (report.kept_percent, report.untrained, len(g.turns)) == (100.0, {}, 3)


async def test_a_failure_after_the_first_id_is_not_tried_again(renderer: TemplateRenderer, tmp_path: Path) -> None:
    async with failing(renderer, tmp_path, LONG, engine_retries=2, times=1, chunks=1) as g:
        session = await g.open()
        status, _ = await exchange(g.gateway.url, PATHS["openai"], session.key, {**STREAMED, "stream": False})
        assert status == 503
        report = await g.checked()
    assert (report.generations, report.untrained) == (1, {"undelivered": 16})
    assert g.turns[0].failed


async def test_a_draw_broken_off_without_a_word_is_no_answer(renderer: TemplateRenderer, tmp_path: Path) -> None:
    class Breaking(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    await self.abort(request.rid)
                    yield chunk

    script = Script((Thread((LONG,)),), resegment=0.4)
    engine = Breaking(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl", score="fake")
    async with ground(tmp_path, renderer, script, engine) as g:
        session = await g.open()
        status, _ = await exchange(g.gateway.url, PATHS["openai"], session.key, {**STREAMED, "stream": False})
        report = await g.checked()
    assert (status, report.untrained) == (503, {"undelivered": 16})
    assert g.turns[0].failed == "the engine broke the draw off"


@pytest.mark.parametrize("kind", [cls for cls in every_error() if cls.retryable or cls.status == 429])
def test_no_retryable_status_goes_without_a_time_to_come_back(kind: type[BridleError]) -> None:
    assert "retry-after" in retry_headers(kind("x"))


async def test_a_failure_that_lasts_is_a_503_that_says_when_to_come_back(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, protocol: str
) -> None:
    async with failing(renderer, tmp_path, SHORT, times=9, chunks=0) as g:
        session = await g.open()
        status, body = await exchange(g.gateway.url, PATHS[protocol], session.key, {**STREAMED, "stream": False})
        await g.finish()
    assert status == 503
    assert "out of memory" in orjson.loads(body)["error"]["message"]


async def test_a_failure_in_the_middle_is_told_in_the_stream_and_its_ids_do_not_train(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with failing(renderer, tmp_path, LONG, times=1, chunks=2) as g:
        session = await g.open()
        body = {**STREAMED, "stream": stream}
        status, said = await exchange(g.gateway.url, PATHS[protocol], session.key, body)
        assert status == (200 if stream else 503)
        assert b"the engine went away" in said
        assert b"message_stop" not in said
        assert b"[DONE]" not in said
        await exchange(g.gateway.url, PATHS[protocol], session.key, body)
        report = await g.checked()
    assert report.untrained == {"undelivered": 32}
    assert [turn.reason for turn in g.turns] == ["undelivered", None], "what came in pieces is not served to a retry"


async def test_siblings_of_a_failed_draw_were_not_delivered(renderer: TemplateRenderer, tmp_path: Path) -> None:
    async with failing(renderer, tmp_path, SHORT, times=1, chunks=0) as g:
        session = await g.open()
        body = {**STREAMED, "stream": False, "n": 2}
        status, _ = await exchange(g.gateway.url, PATHS["openai"], session.key, body)
        assert status == 503
        await g.finish()
    assert [turn.reason for turn in g.turns] == ["undelivered", "undelivered"]


@pytest.mark.parametrize(
    ("fault", "reason"), [({"extra_logprob": True}, "bad_logprob"), ({"drop_logprobs": True}, "no_logprob")]
)
async def test_a_draw_with_unusable_logprobs_is_context_and_the_rest_trains(
    grounds, agents, fault, reason: str
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), shell("pwd", **fault), SHORT, samples=1, reasons=(reason,)) as g:
        await agents("anthropic", await g.open()).work("Go.")
        report = await g.checked()
    assert list(report.untrained) == [reason]
    assert [turn.reason for turn in g.turns] == [None, reason, None]


async def test_a_stop_id_that_was_not_returned_is_context_and_told(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", no_stop=True), SHORT, samples=1) as g:
        await agents(protocol, await g.open()).work("Go.")
        report = await g.checked()
        first, second = g.journal()
    closing = g.live().session.tree.turns[1]
    assert (report.kept_percent, g.notes) == (100.0, ["stop_not_returned"])
    held = len(first.prompt) + len(first.output)
    assert second.prompt[held] == closing.stop_id, "the template's own closing id stands there, as context"
    assert g.samples[0].loss_mask[held] == 0


async def test_a_draw_cut_by_length_is_closed_with_context_ids(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Cut off", finish="length"), SHORT, samples=1) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        answer = await agent.ask()
        assert answer.finish in ("max_tokens", "length")
        agent.remember(answer)
        agent.tell("Go on.")
        await agent.ask()
        report = await g.checked()
        first, second = g.journal()
    held = len(first.prompt) + len(first.output)
    assert report.kept_percent == 100.0
    assert second.prompt[held] == g.live().session.tree.turns[1].stop_id
    assert g.samples[0].loss_mask[held] == 0
    assert g.notes == []


async def test_the_clients_length_limit_cuts_a_character_in_half(grounds, agents, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="👩‍👩‍👧‍👦" * 4), resegment=1.0) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        answer = await agent.ask(max_tokens=30)
        assert answer.text.endswith("\ufffd")
        agent.remember(answer)
        agent.tell("Go on.")
        await agent.ask(max_tokens=30)
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert g.echoes == ["exact"]


DEEP = "[" * 1500 + "]" * 1500
ILL_FORMED = {
    "arguments that break off": '<tool_call>\n{"name": "bash", "arguments": {"command": "l</tool_call>',
    "arguments that are no object": '<tool_call>\n{"name": "bash", "arguments": [1]}\n</tool_call>',
    "a call that is not closed": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}',
    "an unknown tool": '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>',
    "no arguments": '<tool_call>\n{"name": "bash"}\n</tool_call>',
    "no call at all": "<tool_call>\nhm\n</tool_call>",
    "thinking that does not end": "<think>\nhm",
    "text behind a call": 'a<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>b<think>\nc\n</think>\n\nd',
    "arguments nested deep": f'<tool_call>\n{{"name": "bash", "arguments": {{"a": {DEEP}}}}}\n</tool_call>',
    "nothing": "",
}
STATUSES = {
    "arguments that break off": ("invalid_json",),
    "arguments that are no object": ("malformed",),
    "a call that is not closed": ("unclosed",),
    "an unknown tool": ("unknown_tool",),
    "no arguments": ("malformed",),
    "no call at all": ("missing_name",),
    "arguments nested deep": ("invalid_json",),
}


@pytest.mark.parametrize("name", ILL_FORMED)
async def test_an_ill_formed_reply_reaches_the_agent_and_its_echo_is_the_draw(  # type: ignore[no-untyped-def]
    grounds, agents, protocol: str, stream: bool, name: str
) -> None:
    async with grounds(ScriptTurn(raw=ILL_FORMED[name]), SHORT, samples=1) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        answer = await agent.ask()
        agent.remember(answer)
        if answer.calls:
            agent.results([(answer.calls[0][0], "no such thing")])
        else:
            agent.tell("Go on.")
        await agent.ask()
        report = await g.checked()
        marked = [[turn.ill_formed for turn in g.turns], [sample.ill_formed for sample in g.samples]]
        g.recover()
    assert marked == [[STATUSES.get(name, ()), ()], [("s-0",) if name in STATUSES else ()]]
    assert [turn.ill_formed for turn in g.turns] == marked[0], "the log holds it too"
    assert g.fidelity.totals.ill_formed == (name in STATUSES)
    assert report.kept_percent == 100.0
    assert g.fidelity.totals.forks == 0
    if protocol == "anthropic" and name == "arguments nested deep":
        assert orjson.loads(answer.calls[0][2])["INVALID_JSON"].startswith('{"a": [[[')
    if protocol == "anthropic" and name == "arguments that break off":
        assert orjson.loads(answer.calls[0][2]) == {"INVALID_JSON": '{"command": "l'}


async def test_what_an_engine_says_of_each_id_is_carried_to_its_place_in_the_sample(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents
) -> None:
    script = Script((Thread((shell("ls"), SHORT)),), resegment=0.4)
    engine = Talkative(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl", score="fake")
    async with ground(tmp_path, renderer, script, engine) as g:
        await agents("openai", await g.open()).work("Go.")
        await g.checked()
        served = [extras_of(sample) for sample in g.samples]
        g.recover()
    assert [extras_of(sample) for sample in g.samples] == served, "the log holds it too"
    (sample,) = g.samples
    drawn = sample.loss_mask.astype(bool)
    truly = said_of(np.where(drawn, sample.tokens, 0).astype(np.int32))
    assert sample.reference_logprobs is not None
    assert sample.routed_experts is not None
    assert sample.kept_tokens is not None
    assert np.array_equal(sample.reference_logprobs, truly.reference_logprobs)
    assert np.array_equal(sample.routed_experts.counts, 2 * drawn)
    assert sample.routed_experts.values.tolist() == said_of(sample.tokens[drawn]).routed_experts.values.tolist()
    assert np.array_equal(sample.kept_tokens.counts, np.where(drawn, sample.tokens % 3, 0))
    assert sample.kept_tokens.values.tolist() == truly.kept_tokens.values.tolist()


def test_extras_of_another_number_of_ids_are_no_chunk() -> None:
    with pytest.raises(ValueError, match="2 ids has extras of another number"):
        Chunk(ids_of([1, 2]), None, extras=said_of(ids_of([1])))


async def test_who_looks_on_gets_every_recorded_turn_and_its_failures_change_nothing(  # type: ignore[no-untyped-def]
    renderer: TemplateRenderer, tmp_path: Path, agents, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Answered] = []

    def look(turn: Answered) -> None:
        seen.append(turn)
        raise ValueError("planted")

    script = Script((Thread((shell("ls"), ScriptTurn(error="broken"))),), resegment=0.4)
    engine = ScriptedEngine(script, renderer.vocabulary, renderer.write, score="fake")
    config = GatewayConfig(engine_retries=0)
    async with (
        engine,
        serve(config, renderer, engine, tmp_path, on_turn=look) as gateway,
        GatewayClient(gateway.url, gateway.control_token) as client,
    ):
        agent = agents("openai", await client.open("s", SessionOptions()))
        agent.client.max_retries = 0
        with pytest.raises(openai.InternalServerError, match="broken"):
            await agent.work("Go.")
        assert (await client.finish("s", "", {}))["fidelity"]["totals"]["turns"] == 2
    assert [(turn.turn, turn.kind, turn.reply is None, turn.error is None) for turn in seen] == [
        ("s-0", "main", False, True),
        ("s-1", "main", True, False),
    ]
    assert seen[0].reply is not None
    assert seen[0].reply.message.calls[0].name == "bash"
    assert seen[0].started <= seen[0].recorded
    assert "who looks on failed" in caplog.text


async def test_an_engine_that_returns_no_stop_ids_is_refused(renderer: TemplateRenderer, tmp_path: Path) -> None:
    engine = Failing(Script((Thread((SHORT,)),)), renderer.vocabulary, renderer.write, times=0, chunks=0)
    engine.facts = EngineFacts("blind", "m", 1000, returns_stop_id=False)
    with pytest.raises(EngineUnfit, match="blind"):
        async with serve(GatewayConfig(), renderer, engine, tmp_path):
            pass


async def test_a_defect_in_one_draw_leaves_other_sessions_alone(
    grounds, agents, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        bad, good = await g.open("bad"), await g.open("good")

        def defect(*values: object) -> None:
            raise ValueError("planted")

        monkeypatch.setattr(g.live("bad").session, "mint", defect)
        agent = agents("openai", bad)
        agent.tell("Go.")
        with pytest.raises(openai.InternalServerError, match="could not be recorded"):
            await agent.ask()
        assert g.refusals == 1
        await agents("openai", good).work("Go.")
        await g.finish("bad")
        assert [turn.reason for turn in g.turns] == ["lost_in_crash"]
        await g.finish("good")
