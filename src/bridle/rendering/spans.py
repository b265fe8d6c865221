"""Injection-safe encoding: no body can forge structure, and the ids are still those of the stock rendering.

Bodies are marked before the template sees them: a noncharacter is put into every control string they hold, and at every
edge where they could complete one together with what the template writes next to them. Every unbroken control string in
the rendered text is therefore the template's own. The text is cut there and nowhere else, the marks are taken out, and
each span is encoded whole: BPE merges across the seam between scaffold and body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Tool
from bridle.rendering.chat_template import CallStyle, ChatTemplate, Protect, as_said, message_form, tool_form
from bridle.tokens import Ids, Vocabulary, concatenate, ids_of

NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that Unicode promises never to assign. A body may hold some all the same, so they are chosen per text."""

ANY_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")


class Marks(NamedTuple):
    """Two noncharacters that no body holds. `hole` stands in for a body whose place is looked for."""

    mark: str
    hole: str

    def remove(self, text: str) -> str:
        return text.replace(self.mark, "")


class Forms(NamedTuple):
    """Messages and tools as a template wants them, bodies marked."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


class Guard:
    """Marks the bodies of conversations for one vocabulary and one template."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        controls = sorted(vocabulary.controls)
        if short := [control for control in controls if len(control) < 2]:
            raise ConfigError(
                f"the added token {short[0]!r} is a single character: text that holds it cannot be told from the "
                "template's own use of it, so this vocabulary cannot be used"
            )
        self._first = re.compile(_first_of_any(controls))
        self._prefixes = frozenset(control[:cut] for control in controls for cut in range(1, len(control)))
        self._suffixes = frozenset(control[cut:] for control in controls for cut in range(1, len(control)))
        scaffold = "\0".join(piece for piece in vocabulary.split(template.source) if isinstance(piece, str))
        self._middles = frozenset(middle for control in controls for middle in _middles(control, scaffold))
        self._longest = max(map(len, controls), default=0)
        self._style = template.calls

    def protect(self, text: str, mark: str) -> str:
        """-> `text` with a mark inside every control string and at every edge that could become part of one."""
        broken = self._first.sub(lambda found: found.group() + mark, text)
        lengths = range(1, min(len(text), self._longest) + 1)
        before = text in self._middles or any(text[:length] in self._suffixes for length in lengths)
        after = any(text[-length:] in self._prefixes for length in lengths)
        return f"{mark if before else ''}{broken}{mark if after else ''}"

    def forms(self, messages: Sequence[Message], tools: Sequence[Tool], marks: Marks) -> Forms:
        return _forms(messages, tools, lambda text: self.protect(text, marks.mark), self._style)


def _forms(
    messages: Sequence[Message], tools: Sequence[Tool], protect: Protect, style: CallStyle = CallStyle()
) -> Forms:
    messages = as_said(messages, style)
    names = {call.id: call.name for message in messages for call in message.calls}
    try:
        shown = [tool_form(tool, protect) for tool in tools]
    except RecursionError as error:
        raise TemplateError("the schema of a tool is nested too deeply; flatten it") from error
    return Forms([message_form(message, protect, names, style) for message in messages], shown)


def choose_marks(messages: Sequence[Message], tools: Sequence[Tool]) -> Marks:
    """-> two noncharacters that stand in none of the bodies."""
    found: set[str] = set()

    def collect(text: str) -> str:
        found.update(ANY_NONCHARACTER.findall(text))
        return text

    _forms(messages, tools, collect)
    for message in messages:
        # As text they hold what parsing them loses: of two equal keys the first one's value.
        found.update(character for call in message.calls for character in ANY_NONCHARACTER.findall(call.arguments))
    free = [character for character in NONCHARACTERS if character not in found]
    if len(free) < 2:
        raise TemplateError("the text holds nearly all of the noncharacters U+FDD0 to U+FDEF; remove some of them")
    return Marks(free[0], free[1])


def _first_of_any(controls: Sequence[str]) -> str:
    """A pattern for the first character of every control string, overlapping ones too."""
    rests: dict[str, list[str]] = {}
    for control in controls:
        rests.setdefault(control[0], []).append(re.escape(control[1:]))
    return "|".join(f"{re.escape(first)}(?={'|'.join(found)})" for first, found in rests.items()) or "(?!)"


def _middles(control: str, scaffold: str) -> set[str]:
    """Inner pieces of a control string that the template could complete on both sides, as `<{{ key }}>` does.

    `scaffold`: the template's source without the control strings it writes out whole."""
    starts = [cut for cut in range(1, len(control)) if control[:cut] in scaffold]
    ends = [cut for cut in range(1, len(control)) if control[cut:] in scaffold]
    return {control[start:end] for start in starts for end in ends if start < end}


def encode_spans(vocabulary: Vocabulary, text: str, marks: Marks) -> Ids:
    """Rendered, marked text -> ids. Control ids come from unbroken control strings alone."""
    pieces = vocabulary.split(text)
    return concatenate(
        [ids_of([piece]) if isinstance(piece, int) else vocabulary.encode(marks.remove(piece)) for piece in pieces]
    )
