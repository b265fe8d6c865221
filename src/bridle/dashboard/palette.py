"""Colours, the same in the page and in pictures: light and dark, told apart by the colour-blind too.

Kinds are hues of Okabe and Ito. What does not train is hatched besides, so that no fact hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridle.messages import Kind

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1c2128",
    "quiet": "#5c6672",
    "line": "#d8dde3",
    "hatch": "#ffffff",
    "alarm": "#c0262d",
    "main": "#0072b2",
    "subagent": "#009e73",
    "compaction": "#d98200",
    "auxiliary": "#a65a96",
    "trained": "#2b6cb0",
    "context": "#aab4c0",
}
DARK: Mapping[str, str] = {
    "paper": "#14181d",
    "panel": "#1c2229",
    "ink": "#e6e9ed",
    "quiet": "#9aa5b1",
    "line": "#343c46",
    "hatch": "#14181d",
    "alarm": "#ff7b72",
    "main": "#4aa8e0",
    "subagent": "#2fc49a",
    "compaction": "#f0a330",
    "auxiliary": "#cf8cc0",
    "trained": "#5b9bd8",
    "context": "#55606d",
}
REASONS = ("#8c6d46", "#b5533c", "#7a8450", "#6b6ba8", "#a8892c", "#4d8a8a", "#98546f", "#6f7d8c")
"""Of what does not train, by number of the reason in the closed list; further ones begin again."""


def kind(name: Kind) -> str:
    """Its class in a figure."""
    return f"k-{name}"


def style(colours: Mapping[str, str]) -> str:
    """The figures' style with these colours; a page gives variables in their place."""
    fills = "".join(f".f-{name}{{fill:{colours[name]}}}.s-{name}{{stroke:{colours[name]};fill:none}}" for name in LIGHT)
    reasons = "".join(f".r-{number}{{fill:{colour}}}" for number, colour in enumerate(REASONS))
    return (
        f"text{{font-family:'DejaVu Sans','Liberation Sans',Arial,sans-serif;font-size:11px;fill:{colours['ink']}}}"
        f".small{{font-size:10px;fill:{colours['quiet']}}}.head{{font-size:13px;font-weight:bold}}"
        f".r{{text-anchor:end}}.m{{text-anchor:middle}}.new{{opacity:.28}}.line{{stroke:{colours['line']}}}"
        f".hatched{{stroke:{colours['hatch']};stroke-width:1.6}}{fills}{reasons}"
    )


VARIABLES: Mapping[str, str] = {name: f"var(--{name})" for name in LIGHT}


def variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
