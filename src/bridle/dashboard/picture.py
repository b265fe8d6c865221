"""The page's drawings one below the other as one SVG, and that as PNG, for papers and pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bridle.dashboard.figure import (
    HATCH,
    WIDTH,
    Axis,
    Drawing,
    bar,
    legend,
    reasons_legend,
    swimlanes,
)
from bridle.dashboard.palette import LIGHT, style
from bridle.dashboard.view import RolloutView
from bridle.errors import ConfigError

MARGIN = 20
MOST_LANES = 6
MOST_BARS = 40
"""Rollouts drawn at most; the picture says how many there are."""
ZOOM = 2.0
BAR_LEFT = 300
BAR_WIDTH = 520.0


def svg(rollouts: Sequence[RolloutView], axis: Axis) -> str:
    drawings = [legend(rollouts[:MOST_LANES])]
    for rollout in rollouts[:MOST_LANES]:
        drawings += [_title(_named(rollout)), swimlanes(rollout, axis)]
    if len(rollouts) > 1:
        drawings += [_title(f"{len(rollouts)} rollouts: sampled tokens"), reasons_legend(rollouts), _bars(rollouts)]
    y, groups = float(MARGIN), []
    for drawing in drawings:
        groups.append(f'<g transform="translate({MARGIN} {y:.1f})">{drawing.body}</g>')
        y += drawing.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * MARGIN}" height="{y + MARGIN:.0f}">'
        f'<style>{style(LIGHT)}</style>{HATCH}<rect width="100%" height="100%" class="f-paper"/>{"".join(groups)}</svg>'
    )


def png(drawn: str) -> bytes:
    """Raises ConfigError where resvg or any font is missing."""
    try:
        import resvg_py
    except ImportError as error:
        raise ConfigError("a picture needs resvg: pip install 'bridle[view]', or write the page alone") from error
    if not has_fonts():
        raise ConfigError("this machine has no fonts to write with; install some, for example fonts-dejavu-core")
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn, zoom=ZOOM))


def has_fonts() -> bool:
    """Without one, every word would be missing, and nothing else says so."""
    import resvg_py

    blank, written = (
        resvg_py.svg_to_bytes(
            svg_string=f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><style>{style(LIGHT)}</style>'
            f'<text y="15">{words}</text></svg>'
        )
        for words in ("", "M")
    )
    return blank != written


def _title(words: str) -> Drawing:
    return Drawing(32, f'<text x="0" y="26" class="head">{escape(words)}</text>')


def _named(rollout: RolloutView) -> str:
    known = rollout.known
    reward = "no reward" if known.reward is None else f"reward {known.reward:g}"
    agent = f"{known.harness} {known.harness_version}".strip()
    lost = ", ".join(f"{tokens:,} {reason}" for reason, tokens in rollout.untrained.items())
    trains = f"{rollout.trained:,} of {rollout.sampled:,} sampled tokens train{f' ({lost})' if lost else ''}"
    said = [_row(rollout), agent, reward, known.cause, trains]
    return " · ".join(word for word in said if word)


def _bars(rollouts: Sequence[RolloutView]) -> Drawing:
    sampled = max(rollout.sampled for rollout in rollouts)
    context = max(rollout.context for rollout in rollouts)
    rows = [
        f'<g transform="translate(0 {24 * number})">'
        f'<text x="{BAR_LEFT - 12}" y="11" class="r">{escape(_row(rollout))}</text>'
        f'<g transform="translate({BAR_LEFT} 0)">{bar(rollout, sampled, context, BAR_WIDTH)}</g>'
        f'<text x="{BAR_LEFT + BAR_WIDTH + 12:g}" y="11" class="small">{escape(_numbers(rollout))}</text></g>'
        for number, rollout in enumerate(rollouts[:MOST_BARS])
    ]
    left = len(rollouts) - len(rows)
    if left:
        rows.append(f'<text x="{BAR_LEFT}" y="{24 * len(rows) + 11}" class="small">and {left} more</text>')
    return Drawing(24 * len(rows) + 6, "".join(rows))


def _row(rollout: RolloutView) -> str:
    name = f"{rollout.run}/{rollout.known.id}" if rollout.run else rollout.known.id
    return name if len(name) <= 44 else f"…{name[-43:]}"


def _numbers(rollout: RolloutView) -> str:
    reward = "–" if rollout.known.reward is None else f"{rollout.known.reward:g}"
    return f"{rollout.sampled:,} sampled, {rollout.context:,} context, reward {reward}, {rollout.known.cause}"
