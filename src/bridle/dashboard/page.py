"""One HTML file with everything in it: no network, no fonts, works from a folder.

Data goes in compressed and as base64, so nothing of it can end the script it stands in; the page writes it as text
nodes alone. A policy in the page's head lets run no script but its own, and load nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import statistics
import struct
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import msgspec
import numpy as np

from bridle.dashboard.figure import AXES, HATCH, WIDTH, Drawing, bar, legend, reasons_legend, swatch, swimlanes
from bridle.dashboard.palette import DARK, LIGHT, VARIABLES, style, variables
from bridle.dashboard.read import View
from bridle.dashboard.view import MARKS, RolloutView
from bridle.tokens import Vocabulary, concatenate

BAR_WIDTH = 190.0


def page(view: View, title: str) -> str:
    assets = resources.files("bridle.dashboard") / "assets"
    script = (assets / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": escape(title),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "STYLE": _style((assets / "page.css").read_text()),
        "HATCH": f'<svg width="0" height="0" aria-hidden="true">{HATCH}</svg>',
        "DATA": "\n".join(
            [
                _data("head", _head(view, title)),
                *(_data(f"rollout-{number}", _rollout(rollout)) for number, rollout in enumerate(view.rollouts)),
            ]
        ),
        "SCRIPT": script,
    }
    html = (assets / "page.html").read_text()
    head, *pieces = html.split("<!--@")
    return head + "".join(parts[name] + rest for name, _, rest in (piece.partition("@-->") for piece in pieces))


def _style(own: str) -> str:
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}{style(VARIABLES)}{own}"
    )


def _data(name: str, content: bytes) -> str:
    packed = base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>'


def _head(view: View, title: str) -> bytes:
    rollouts = view.rollouts
    sampled = max((rollout.sampled for rollout in rollouts), default=0)
    context = max((rollout.context for rollout in rollouts), default=0)
    return msgspec.json.encode(
        {
            "title": title,
            "width": WIDTH,
            "bar_width": BAR_WIDTH,
            "rollouts": [
                {
                    "known": rollout.known,
                    "run": rollout.run,
                    "source": rollout.source,
                    "notice": rollout.notice,
                    "sampled": rollout.sampled,
                    "trained": rollout.trained,
                    "untrained": rollout.untrained,
                    "context": rollout.context,
                    "samples": rollout.samples,
                    "turns": len(rollout.turns),
                    "advantage": rollout.advantage,
                    "bar": bar(rollout, sampled, context, BAR_WIDTH),
                }
                for rollout in rollouts
            ],
            "groups": groups(rollouts),
            "legend": _svg(legend(rollouts)),
            "reasons": _svg(reasons_legend(rollouts)),
            "swatches": {name: swatch(name) for rollout in rollouts for name in ("trained", *rollout.untrained)},
            "marks": MARKS,
            "vocabularies": [
                spelled(vocabulary, [r for r in rollouts if r.vocabulary == number])
                for number, vocabulary in enumerate(view.vocabularies)
            ],
        }
    )


def groups(rollouts: Sequence[RolloutView]) -> list[dict[str, Any]]:
    """Of each group the rewards that count and their baseline. Two runs' groups of one name are two groups."""
    found: dict[tuple[str, str], list[RolloutView]] = {}
    for rollout in rollouts:
        if rollout.known.group:
            found.setdefault((rollout.run, rollout.known.group), []).append(rollout)
    rows = []
    for (run, group), members in found.items():
        rewards = [r.known.reward for r in members if r.known.reward_valid and r.known.reward is not None]
        rows.append(
            {
                "group": group,
                "run": run,
                "rollouts": len(members),
                "rewards": rewards,
                "mean": statistics.fmean(rewards) if rewards else None,
                "deviation": statistics.stdev(rewards) if len(rewards) > 1 else None,
            }
        )
    return rows


def spelled(vocabulary: Vocabulary, rollouts: Sequence[RolloutView]) -> Mapping[str, tuple[str, int]]:
    """Id -> its text and 0, a control token's and 1, or the hexadecimal bytes of what alone is no text and 2."""
    ids = np.unique(concatenate([rollout.tokens.ids for rollout in rollouts]))
    return {str(id): _spelled(vocabulary, int(id)) for id in ids}


def _spelled(vocabulary: Vocabulary, id: int) -> tuple[str, int]:
    spelling = vocabulary.token_bytes(id)
    try:
        return spelling.decode(), int(id in vocabulary.control_ids)
    except UnicodeDecodeError:
        return spelling.hex(), 2


def _svg(drawing: Drawing) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {drawing.height:.0f}" class="drawing">{drawing.body}</svg>'


def _rollout(rollout: RolloutView) -> bytes:
    """Length of the JSON, the JSON, then the arrays; all at multiples of 4, as typed arrays want it."""
    columns = zip(*(msgspec.structs.astuple(node) for node in rollout.nodes), strict=True)
    document = msgspec.json.encode(
        {
            "turns": [{**msgspec.to_builtins(turn), "marks": turn.marks} for turn in rollout.turns],
            "nodes": dict(zip(("parent", "origin", "tokens", "turn", "lead", "offset"), columns, strict=False)),
            "reasons": rollout.tokens.reasons,
            "ids": len(rollout.tokens.ids),
            "sampled": len(rollout.tokens.states),
            "vocabulary": rollout.vocabulary,
            "drawings": {axis: _svg(swimlanes(rollout, axis)) for axis in AXES},
            "timed": rollout.timed,
        }
    )
    document += b" " * (-len(document) % 4)
    tokens = rollout.tokens
    arrays = [tokens.ids.astype("<i4").tobytes(), tokens.logprobs.astype("<f4").tobytes(), tokens.states.tobytes()]
    return b"".join([struct.pack("<I", len(document)), document, *arrays])
