"""A model's own weights: what it samples in a conversation is scored again in finished samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bridle.engines.base import Sampling
from bridle.rendering.base import Renderer
from bridle.samples.audit import TOLERANCE, Audit, audit
from bridle.samples.linearize import linearize
from bridle.samples.sample import Sample
from bridle.tokens import Ids, ids_of
from bridle.verify.conversations import Writer, chat, tool_loop
from bridle.verify.player import Asked, Drawn, Player, Sampler
from bridle.verify.report import Finding, Ledger, Report

if TYPE_CHECKING:
    from bridle.engines.transformers import LocalModel

TOKENS = 24
"""Sampled in a turn."""


def has_weights(directory: Path) -> bool:
    return (directory / "config.json").is_file() and any(directory.glob("*.safetensors"))


def audit_weights(
    renderer: Renderer, directory: Path, seed: int = 0, device: str = "cpu", tolerance: float = TOLERANCE
) -> Audit:
    """Conversations in which the model says what it likes. Raises ConfigError for weights that cannot be loaded."""
    from bridle.engines.transformers import LocalModel

    model = LocalModel(directory, device)
    player = Player(renderer, seed, sampler=_sampler(model, renderer.stop_ids, seed))
    samples: list[Sample] = []
    for make in (chat, tool_loop):
        played = player.play(make(Writer(seed, f"weights {make.__name__}")))
        samples += linearize(played.session.tree, facts=played.session.facts).samples
    return audit(samples, {0: model.score}, tolerance, seed)


def _sampler(model: LocalModel, stop_ids: tuple[int, ...], seed: int) -> Sampler:
    from bridle.engines.transformers import Draw

    def sample(prompt: Ids, asked: Asked) -> Drawn:
        draw = Draw(model, prompt, Sampling(TOKENS, stop_ids), seed + len(prompt))
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < TOKENS and not (ids and ids[-1] in stop_ids):
            id, logprob = draw.step(None)
            ids.append(id)
            logprobs.append(logprob)
        stop = ids[-1] if ids[-1] in stop_ids else None
        return Drawn(ids_of(ids), "length" if stop is None else "stop", stop, logprobs=np.array(logprobs, np.float32))

    return sample


def audited(report: Report, renderer: Renderer, directory: Path, seed: int = 0, device: str = "cpu") -> Report:
    """`report` with what its weights say."""
    found = audit_weights(renderer, directory, seed, device)
    ledger = Ledger()
    ledger.passed("logprobs", found.audited - (not found.ok))
    if not found.ok:
        ledger.fails("logprobs", Finding("weights", -1, found.verdict, found.render()[-1]))
    return msgspec.structs.replace(report, rows=(*report.rows, *ledger.rows()), audit=found.to_dict())
