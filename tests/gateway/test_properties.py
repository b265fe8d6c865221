"""Random conversations with random habits, forks, retries and segmentations: the checker says ok every time."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from bridle.engines.calls import Call
from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer
from bridle.samples.linearize import document
from bridle.sessions.tree import Tree
from bridle.testing.exchange import exchange
from bridle.testing.ground import Ground, ground, linearize_log
from bridle.tokens import concatenate

TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TEXTS = st.sampled_from(["", "ok", "I look.\n", " a  b ", "<|im_end|> quoted", "👩‍👧 é", "x" * 40, "line\n\n\nline"])

turns = st.builds(
    ScriptTurn,
    thinking=st.none() | TEXTS,
    text=TEXTS.map(lambda text: text or "said"),
    calls=st.lists(st.builds(lambda c: Call(shell=c), TEXTS), max_size=3).map(tuple),
    finish=st.sampled_from(["stop", "stop", "stop", "length"]),
    no_stop=st.sampled_from([False, False, False, True]),
    stop=st.sampled_from([None, None, None, "<|endoftext|>"]),
    drop_logprobs=st.sampled_from([False, False, False, False, True]),
)
MOVES = (
    "on",
    "on",
    "on",
    "again",
    "retry",
    "edit",
    "drop",
    "form",
    "compact",
    "ephemeral",
    "late",
    "back",
    "foreign",
    "end",
)
moves = st.lists(st.tuples(st.sampled_from(MOVES), st.booleans()), min_size=1, max_size=9)


class Walker:
    """An agent without principles, in the openai protocol."""

    def __init__(self, g: Ground, session: OpenedSession) -> None:
        self.g = g
        self.session = session
        self.history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
        self.stretches: list[list[dict[str, Any]]] = []

    async def ask(self, extra: tuple[dict[str, Any], ...] = (), **headers: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": "bash", "parameters": TOOL}}]
        body = {"model": "bridle", "messages": [*self.history, *extra], "tools": tools}
        status, answer = await exchange(self.g.gateway.url, "/v1/chat/completions", self.session.key, body, **headers)
        assert status == 200, answer
        return dict(orjson.loads(answer)["choices"][0]["message"])

    def take(self, message: dict[str, Any], backwards: bool = False) -> None:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
            for number, call in enumerate(message.get("tool_calls") or [])
        ]
        stretch = [message, *(reversed(results) if backwards else results)]
        self.stretches.append(stretch)
        self.history += stretch or []
        if not results:
            self.history.append({"role": "user", "content": "Go on."})

    async def move(self, name: str, backwards: bool) -> None:
        match name:
            case "on":
                self.take(await self.ask(), backwards)
            case "again":
                await self.ask()
                self.take(await self.ask(), backwards)
            case "retry":
                await self.ask()
                self.take(await self.ask(x_stainless_retry_count="1"))
            case "edit":
                message = await self.ask()
                self.take({**message, "content": f"{message['content'] or ''} edited"}, backwards)
            case "drop":
                message = await self.ask()
                kept = {key: value for key, value in message.items() if key != "tool_calls"}
                self.take({**kept, "content": message["content"] or "nothing"})
            case "form":
                message = await self.ask()
                message.pop("reasoning_content", None)
                text = message["content"]
                self.take({**message, "content": [{"type": "text", "text": text}] if text else ""}, backwards)
            case "compact":
                newest = self.stretches[-1] if self.stretches else []
                self.history = [{"role": "user", "content": "Summary."}, *newest, {"role": "user", "content": "Go."}]
            case "ephemeral":
                self.take(await self.ask(({"role": "user", "content": "<note>"},)))
            case "late":
                self.history.append({"role": "system", "content": "A late word."})
            case "back":
                self.history = self.history[: max(1, len(self.history) // 2)]
                while self.history[-1]["role"] != "user":
                    self.history.pop()
            case "foreign":
                self.history += [{"role": "assistant", "content": "I said so."}, {"role": "user", "content": "So?"}]
            case "end":
                self.take(await self.ask(({"role": "assistant", "content": "So "},)))


# Without shrinking: an example takes half a second, and what is printed is small as it is.
@pytest.mark.slow
@settings(
    max_examples=25,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(turns, min_size=1, max_size=4), moves, st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 99))
def test_whatever_an_agent_does_every_token_is_accounted_for(
    renderer: TemplateRenderer, said: list[ScriptTurn], walk: list[tuple[str, bool]], resegment: float, seed: int
) -> None:
    script = Script((Thread(tuple(said)),), Expect(reasons=("no_logprob",)), resegment=resegment, seed=seed)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(scenario(renderer, Path(directory), script, walk))


async def scenario(renderer: TemplateRenderer, directory: Path, script: Script, walk: list[tuple[str, bool]]) -> None:
    async with ground(directory, renderer, script) as g:
        walker = Walker(g, await g.open())
        await walker.move("on", False)
        for name, backwards in walk:
            await walker.move(name, backwards)
        finished = await g.client.finish("s", "finished", {})
        await g.checked()
        replayed = document(linearize_log(directory, "s"))
        assert orjson.loads(orjson.dumps(replayed["fidelity"])) == finished["fidelity"]
        for again, sample in zip(replayed["samples"], finished["samples"], strict=True):
            assert all(again[name] == sample[name] for name in ("tokens", "loss_mask", "logprobs"))
        prompts_are_spliced_and_rendered(g, g.live().session.tree)
        opening, closing = (renderer.vocabulary.controls[control] for control in ("<|im_start|>", "<|im_end|>"))
        for entry in g.journal():
            prompt = entry.prompt.tolist()
            assert prompt.count(opening) == prompt.count(closing) + 1, "every message is closed once"


def prompts_are_spliced_and_rendered(g: Ground, tree: Tree) -> None:
    """Every engine prompt is a path of the tree; what was sampled on it stands there as the engine gave it out."""
    journal = {entry.rid: entry for entry in g.journal()}
    for turn in tree.turns:
        entry = journal[turn.id]
        assert np.array_equal(tree.prompt(turn), entry.prompt)
        assert np.array_equal(turn.sampled, entry.output)
        for index in tree.path(turn.parent):
            node = tree.nodes[index]
            if node.origin == "sampled" and node.lead:
                given = journal[tree.turns[node.turn].id]
                spliced = concatenate([given.prompt, given.output])[: node.length]
                assert np.array_equal(entry.prompt[: node.length], spliced)
            if node.origin == "transplanted":
                drawn = journal[tree.turns[node.turn].id].output.tolist()
                stop = tree.turns[node.turn].stop_id
                body = drawn if stop is None else drawn[:-1]
                assert entry.prompt[: node.length].tolist()[node.length - len(body) :] == body
