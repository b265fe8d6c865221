"""Time and memory of building samples from a long session, at one, two and four times its length.

Linear means that both double when the session does. Up to 1,000 turns of 5,000 tokens, a tenth of them sampled.
"""

from __future__ import annotations

import sys
import time
import tracemalloc

import numpy as np

from bridle.samples.linearize import linearize
from bridle.sessions.tree import ROOT, Tree, Turn
from bridle.tokens import EMPTY

TOKENS = 5000
SAMPLED = 500
TURNS = (250, 500, 1000)
REPEATS = 3
SLACK = 1.5
"""A doubling may cost this much more than twice: small runs fit into caches."""


def session(turns: int) -> Tree:
    tree = Tree()
    parent = ROOT
    said, drawn = np.full(TOKENS - SAMPLED, 7, np.int32), np.full(SAMPLED, 8, np.int32)
    logprobs = np.full(SAMPLED, -0.5, np.float32)
    for seq in range(turns):
        node = tree.add_context(parent, b"%d" % seq, said)
        turn = tree.start(Turn(seq, f"t{seq}", node.index, EMPTY, "main", "default", b""))
        turn.sampled, turn.logprobs, turn.versions = drawn, logprobs, ((0, 0),)
        parent = tree.finish(turn).index
    return tree


def measure(turns: int) -> tuple[float, float]:
    """-> (seconds, MiB at the peak)"""
    tree = session(turns)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        linearize(tree)
        seconds.append(time.perf_counter() - begin)
    tracemalloc.start()
    linearize(tree)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), peak / 2**20


def main() -> int:
    measure(10)
    measured = [measure(turns) for turns in TURNS]
    (base_s, base_mib) = measured[0]
    print(f"{'turns':>6} {'tokens':>10} {'seconds':>9} {'ratio':>6} {'MiB':>8} {'ratio':>6}")
    for turns, (s, mib) in zip(TURNS, measured, strict=True):
        print(f"{turns:>6} {turns * TOKENS:>10,} {s:>9.3f} {s / base_s:>6.2f} {mib:>8.1f} {mib / base_mib:>6.2f}")
    growth = TURNS[-1] / TURNS[0]
    linear = all(measured[-1][i] / measured[0][i] < SLACK * growth for i in range(2))
    print(f"linearize: {growth:.0f} x the tokens, {'linear' if linear else 'NOT LINEAR'}")
    return 0 if linear else 1


if __name__ == "__main__":
    sys.exit(main())
