"""Swimlanes and bars as SVG: the page shows these very drawings, a picture is made of them.

A drawing names classes, never colours; what stands in it from outside is escaped where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Literal, NamedTuple, get_args

from bridle.dashboard.palette import REASONS
from bridle.dashboard.view import MARKS, RolloutView, TurnView
from bridle.samples.sample import REASONS as ALL_REASONS

Axis = Literal["tokens", "time"]
AXES: tuple[Axis, ...] = get_args(Axis)

WIDTH = 1120
LEFT = 132
RIGHT = WIDTH - 14
LANE = 40
BAR = 18
LEAST = 5.0
"""Units a draw is wide at least: beside the prompt of a coding agent a draw is a hair."""
HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line x1="1" y1="0" x2="1" y2="5" class="hatched"/></pattern></defs>'
)


class Drawing(NamedTuple):
    height: float
    body: str


class Span(NamedTuple):
    """Where a turn lies: [start, draw) is what its prompt brought, [draw, end) what it drew."""

    start: float
    draw: float
    end: float


def swimlanes(rollout: RolloutView, axis: Axis) -> Drawing:
    spans = SCALES[axis](rollout.turns)
    lanes = [_lane(number, name) for number, name in enumerate(rollout.lanes)]
    links = [_link(rollout.turns, turn, spans) for turn in rollout.turns]
    places = _mark_places(rollout.turns, spans)
    turns = [_turn(turn, spans[turn.seq], places[turn.seq]) for turn in rollout.turns]
    bottom = 8 + LANE * len(rollout.lanes)
    return Drawing(bottom + 24, "".join([*lanes, *links, *turns, _axis(rollout, axis, bottom)]))


def by_tokens(turns: Sequence[TurnView]) -> list[Span]:
    """Laid one behind the other in the order they came, each as wide as what it added and drew."""
    total = sum(turn.added + turn.sampled for turn in turns)
    scale = max(0.0, RIGHT - LEFT - LEAST * len(turns)) / max(total, 1)
    spans, at = [], float(LEFT)
    for turn in turns:
        draw = at + turn.added * scale
        spans.append(Span(at, draw, at := draw + LEAST + turn.sampled * scale))
    return spans


def by_time(turns: Sequence[TurnView]) -> list[Span]:
    last = max((turn.end for turn in turns), default=0.0)
    scale = (RIGHT - LEFT - LEAST) / max(last, 1e-9)
    return [
        Span(start := LEFT + turn.start * scale, start, start + max(LEAST, (turn.end - turn.start) * scale))
        for turn in turns
    ]


SCALES: Mapping[Axis, Callable[[Sequence[TurnView]], list[Span]]] = {"tokens": by_tokens, "time": by_time}


def _lane(number: int, name: str) -> str:
    middle = 8 + LANE * number + LANE / 2 + 5
    return (
        f'<text x="{LEFT - 12}" y="{middle + 4:.1f}" class="r">{escape(_short(name, 21))}</text>'
        f'<line x1="{LEFT}" y1="{middle:.1f}" x2="{RIGHT}" y2="{middle:.1f}" class="line"/>'
    )


def _top(turn: TurnView) -> float:
    return 8 + LANE * turn.lane + (LANE - BAR) / 2 + 5


def _mark_places(turns: Sequence[TurnView], spans: Sequence[Span]) -> list[float]:
    """Of each turn's first mark: over its draw, but beside the marks of the turn before it in its lane."""
    free: dict[int, float] = {}
    places = []
    for turn in turns:
        wide = 12.0 * len(turn.marks)
        place = max(min(spans[turn.seq].draw + 5, RIGHT + 8 - wide), free.get(turn.lane, 0.0))
        if turn.marks:
            free[turn.lane] = place + wide
        places.append(place)
    return places


def _turn(turn: TurnView, span: Span, first: float) -> str:
    top = _top(turn)
    lost = (span.end - span.draw) * (turn.sampled - turn.trained) / turn.sampled if turn.sampled else 0.0
    shapes = [
        _box(span.start, top, span.draw - span.start, BAR, f"new f-{turn.kind}"),
        _box(span.draw, top, span.end - span.draw, BAR, f"f-{turn.kind}"),
        _box(span.end - lost, top, lost, BAR, "hatch"),
    ]
    marks = [_mark(name, first + 12 * place, top - 8) for place, name in enumerate(turn.marks)]
    label = escape(f"turn {turn.seq}, {turn.kind}, {turn.sampled} tokens sampled, {turn.trained} trained")
    return (
        f'<g class="turn" data-turn="{turn.seq}" tabindex="0" role="button" aria-label="{label}">'
        f"{''.join([*shapes, *marks])}</g>"
    )


def _link(turns: Sequence[TurnView], turn: TurnView, spans: Sequence[Span]) -> str:
    """From the turn it goes on from, where that is in another lane."""
    if turn.behind < 0 or turns[turn.behind].lane == turn.lane:
        return ""
    x1, y1 = spans[turn.behind].end, _top(turns[turn.behind]) + BAR / 2
    x2, y2 = spans[turn.seq].start, _top(turn) + BAR / 2
    bent = f"C{x1 + 14:.1f} {y1:.1f} {x2 - 14:.1f} {y2:.1f}"
    return f'<path d="M{x1:.1f} {y1:.1f}{bent} {x2:.1f} {y2:.1f}" class="s-quiet"/>'


def _axis(rollout: RolloutView, axis: Axis, bottom: float) -> str:
    last = max((turn.end for turn in rollout.turns), default=0.0)
    added = sum(turn.added for turn in rollout.turns)
    if axis == "time" and rollout.timed:
        left, right = "time", f"{last:.1f} s"
    elif axis == "time":
        left, right = "order of turns (samples carry no times)", f"{len(rollout.turns)} turns"
    else:
        left = "tokens in the order they came: rendered (light), sampled (solid; at least a sliver)"
        right = f"{added:,} rendered + {rollout.sampled:,} sampled"
    return (
        f'<text x="{LEFT}" y="{bottom + 14}" class="small">{left} →</text>'
        f'<text x="{RIGHT}" y="{bottom + 14}" class="small r">{right}</text>'
    )


def _mark(name: str, x: float, y: float) -> str:
    return MARK_SHAPES[name].replace("<", f'<g transform="translate({x:.1f} {y:.1f})"><', 1) + "</g>"


MARK_SHAPES: Mapping[str, str] = {
    "fork": '<path d="M0 -5L5 0L0 5L-5 0Z" class="f-alarm"/>',
    "transplanted": '<path d="M0 -4.5L5 4.5L-5 4.5Z" class="f-quiet"/>',
    "retry": '<circle r="3.6" class="s-ink" stroke-width="2"/>',
    "undelivered": '<path d="M-4 -4L4 4M4 -4L-4 4" class="s-alarm" stroke-width="2.2"/>',
    "abort": '<rect x="-4" y="-4" width="8" height="8" class="f-alarm"/>',
    "length": '<path d="M-4 0H3M3 -5V5" class="s-ink" stroke-width="2"/>',
    "ill_formed": '<path d="M0 -5V1.5M0 3.5V5.5" class="s-alarm" stroke-width="2.4"/>',
}


def bar(rollout: RolloutView, most_sampled: int, most_context: int, width: float) -> str:
    """What was sampled, by what became of it; below it, thin and on its own scale, the context of the samples."""
    at, shapes = 0.0, []
    for what, tokens in {"trained": rollout.trained, **rollout.untrained}.items():
        wide = width * tokens / max(most_sampled, 1)
        shapes.append(_box(at, 0, wide, 13, swatch(what)))
        shapes.append(_box(at, 0, wide if what != "trained" else 0.0, 13, "hatch"))
        at += wide
    shapes.append(_box(0, 15, width * rollout.context / max(most_context, 1), 3, "f-context"))
    return "".join(shapes)


def swatch(what: str) -> str:
    """The class of "trained", "context" or a reason; reasons that cannot be told apart share that of the first."""
    if what in ("trained", "context"):
        return f"f-{what}"
    first = what.partition(" or ")[0]
    return f"r-{_NUMBERS[first] % len(REASONS)}"


_NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(ALL_REASONS)}


def legend(rollouts: Sequence[RolloutView]) -> Drawing:
    """Of the kinds and marks that these rollouts have."""
    kinds = dict.fromkeys(kind for rollout in rollouts for kind in rollout.kinds)
    marks = {mark for rollout in rollouts for turn in rollout.turns for mark in turn.marks}
    items = [(_box(0, -10, 12, 12, f"f-{kind}"), str(kind)) for kind in kinds]
    if any(rollout.trained < rollout.sampled for rollout in rollouts):
        items.append((_box(0, -10, 12, 12, "f-quiet") + _box(0, -10, 12, 12, "hatch"), "does not train"))
    items += [(_mark(name, 6, -4), words) for name, words in MARKS.items() if name in marks]
    return _flow(items)


def reasons_legend(rollouts: Sequence[RolloutView]) -> Drawing:
    named = dict.fromkeys(reason for rollout in rollouts for reason in rollout.untrained)
    hatched = [(_box(0, -10, 12, 12, swatch(name)) + _box(0, -10, 12, 12, "hatch"), name) for name in named]
    return _flow(
        [
            (_box(0, -10, 12, 12, "f-trained"), "trained"),
            *hatched,
            (_box(0, -5, 12, 3, "f-context"), "context of its samples (own scale)"),
        ]
    )


def _flow(items: Sequence[tuple[str, str]]) -> Drawing:
    x, y, shapes = 0.0, 14.0, []
    for shape, words in items:
        wide = 40 + 6.2 * len(words)
        if x + wide > WIDTH:
            x, y = 0.0, y + 20
        shapes.append(f'<g transform="translate({x:.1f} {y:.1f})">{shape}<text x="18" y="0">{escape(words)}</text></g>')
        x += wide
    return Drawing(y + 8, "".join(shapes))


def _box(x: float, y: float, width: float, height: float, classes: str) -> str:
    if width <= 0:
        return ""
    fill = ' fill="url(#hatch)"' if classes == "hatch" else ""
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" class="{classes}"{fill}/>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
