"""A tree grown turn by turn, with what an engine would remember of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bridle.engines.base import Chunk, GenerateRequest, Sampling
from bridle.engines.journal import Journal
from bridle.engines.script import Expect
from bridle.exporters.jsonl import JsonlExporter
from bridle.messages import FinishReason, Kind
from bridle.samples.linearize import Options, Result, linearize
from bridle.sessions.tree import Origin, Tree, Turn, TurnReason
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


@pytest.fixture
def growth() -> Growth:
    return Growth()


@pytest.fixture(scope="session")
def growth_type() -> type[Growth]:
    """For tests that grow many."""
    return Growth
