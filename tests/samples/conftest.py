"""A tree grown turn by turn, with what an engine would remember of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest

from bridle.engines.base import Chunk, GenerateRequest, Sampling
from bridle.engines.journal import Journal
from bridle.engines.script import Expect
from bridle.exporters.jsonl import JsonlExporter
from bridle.messages import FinishReason, Kind
from bridle.samples.linearize import Options, Result, linearize
from bridle.sessions.tree import ROOT, Origin, Tree, Turn, TurnReason
from bridle.tokens import Ids, ids_of


@dataclass
class Drawn:
    """`prompt`: what was consumed, as it was then. `logprobs`: what the engine knows, also where the turn lost them."""

    turn: Turn
    prompt: Ids
    logprobs: np.ndarray | None
    true_kind: Kind


@dataclass
class Growth:
    tree: Tree = field(default_factory=Tree)
    drawn: list[Drawn] = field(default_factory=list)

    def say(self, parent: int, *ids: int, origin: Origin = "prompt", turn: int = -1) -> int:
        key = b"%d" % len(self.tree.nodes)
        return self.tree.add_context(parent, key, ids_of(ids), origin, turn).index

    def draw(
        self,
        parent: int,
        *ids: int,
        kind: Kind = "main",
        true_kind: Kind | None = None,
        reason: TurnReason | None = None,
        delivered: bool = True,
        lead: tuple[int, ...] = (),
        finish: FinishReason = "stop",
        versions: tuple[tuple[int, int], ...] = ((0, 0),),
    ) -> int:
        """-> the node to continue from. Every token of a growth has its own logprob."""
        seq = len(self.tree.turns)
        turn = self.tree.start(Turn(seq, f"t{seq}", parent, ids_of(lead), kind, "test", b"%d" % seq))
        logprobs = -(np.arange(len(ids), dtype=np.float32) + 1 + 256 * seq) / 1024
        prompt = self.tree.prompt(turn)
        turn.sampled, turn.finish_reason, turn.versions = ids_of(ids), finish, versions
        turn.logprobs = logprobs if reason in (None, "constrained", "undelivered") else None
        turn.reason, turn.delivered = reason, delivered
        turn.stop_id = ids[-1] if ids and finish == "stop" else None
        self.tree.finish(turn)
        self.drawn.append(Drawn(turn, prompt, None if reason == "forced" else logprobs, true_kind or kind))
        return turn.end

    def start(self, parent: int, kind: Kind = "main") -> Turn:
        """A turn whose end was never recorded."""
        seq = len(self.tree.turns)
        return self.tree.start(Turn(seq, f"t{seq}", parent, ids_of(()), kind, "test", b""))

    def write(
        self, directory: Path, options: Options = Options(), expect: Expect | None = None, session: str = "r0"
    ) -> Result:
        """A run directory as a run leaves it: the engine's journal, samples, fidelity."""
        result = linearize(self.tree, options)
        with Journal(directory / "journal.jsonl", expect) as journal:
            for drawn in self.drawn:
                self.remember(journal, drawn)
        folder = directory / "rollouts" / session
        JsonlExporter().write(result.samples, folder / "samples.jsonl")
        (folder / "fidelity.json").write_bytes(msgspec.json.encode(result.fidelity))
        return result

    def remember(self, journal: Journal, drawn: Drawn) -> None:
        turn = drawn.turn
        request = GenerateRequest(turn.id, drawn.prompt, Sampling(max_tokens=999, stop_ids=()))
        how = "forced" if turn.reason == "forced" else "drawn"
        with journal.recording(request, how=how, kind=drawn.true_kind, thread=0) as recording:
            finish = "stop" if turn.delivered else "abort"
            recording.give(Chunk(turn.sampled, drawn.logprobs, finish=finish), drawn.logprobs)

    def build(self, **options: Any) -> Result:
        return linearize(self.tree, Options(**options))

    def rows(self, **options: Any) -> list[tuple[list[int], list[int]]]:
        """(tokens, mask) of each sample, in order."""
        return [(s.tokens.tolist(), s.loss_mask.tolist()) for s in self.build(**options).samples]


REASONS = [None, None, None, "forced", "no_logprob", "bad_logprob", "constrained", "undelivered", "duplicate_draw"]
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "on": st.integers(0, 10**6),
            "before_stop": st.booleans(),
            "said": st.integers(0, 3),
            "moved": st.booleans(),
            "lead": st.integers(0, 2),
            "drawn": st.integers(0, 4),
            "kind": st.sampled_from(["main", "main", "subagent", "auxiliary"]),
            "reason": st.sampled_from(REASONS),
            "delivered": st.sampled_from([True, True, True, False]),
            "finish": st.sampled_from(["stop", "length"]),
            "again": st.booleans(),
        }
    ),
    max_size=14,
)


def grow(growth: Any, steps: list[dict[str, Any]]) -> None:
    """`again`: behind the prompt of the turn before. Ids repeat on purpose, logprobs never do."""
    prompt, lead = ROOT, ()
    for number, step in enumerate(steps):
        if not (step["again"] and number):
            parent = step["on"] % (len(growth.tree.nodes) + 1) - 1
            parent = leave_before_stop(growth.tree, parent) if step["before_stop"] and parent != ROOT else parent
            ids = [number % 3] * step["said"]
            moved = {"origin": "transplanted", "turn": step["on"] % number} if step["moved"] and number else {}
            prompt = growth.say(parent, *ids, **moved) if ids else parent
            lead = (3,) * step["lead"]
        drawn = [4 + step["on"] % 2] * step["drawn"]
        fields = {name: step[name] for name in ("kind", "reason", "delivered", "finish")}
        growth.draw(prompt, *drawn, lead=lead, **fields)


def leave_before_stop(tree: Tree, node: int) -> int:
    turn = tree.nodes[node].turn if tree.nodes[node].origin == "sampled" else -1
    return tree.split_stop(tree.turns[turn]) if turn >= 0 and tree.turns[turn].stop_id is not None else node


@pytest.fixture
def growth() -> Growth:
    return Growth()


@pytest.fixture(scope="session")
def growth_type() -> type[Growth]:
    """For tests that grow many."""
    return Growth


@pytest.fixture(scope="session")
def grown() -> Callable[[Callable[[Any], Any]], Growth]:
    """`grown(draw)`: a growth of any shape, `draw` being hypothesis's."""

    def any_growth(draw: Callable[[Any], Any]) -> Growth:
        growth = Growth()
        grow(growth, draw(STEPS))
        return growth

    return any_growth
