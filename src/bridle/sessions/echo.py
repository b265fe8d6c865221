"""How an assistant message came back, compared with the draw it once was: the closed echo table.

Agents re-serialize, strip and rewrite what a model said before they send it back. These classes say whether the echo is
still that draw (its sampled ids are spliced) or no longer (the branch forks and the echo is rendered as context).
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from bridle.messages import Message, ToolCall

EchoClass = Literal[
    "exact",
    "form",
    "whitespace",
    "reasoning_dropped",
    "args_rewritten",
    "renamed_invalid",
    "split",
    "ambiguous",
    "text_edited",
    "call_dropped",
    "call_added",
    "foreign",
]
"""In order of severity. "foreign": an assistant message no draw of this session can have been."""

SEVERITY: dict[EchoClass, int] = {name: rank for rank, name in enumerate(get_args(EchoClass))}
FORKS: frozenset[EchoClass] = frozenset({"text_edited", "call_dropped", "call_added", "foreign"})


def classify(said: Message, echoed: Message) -> EchoClass:
    """The most severe difference between what was said and what came back."""
    return max(
        (_calls(said, echoed), _text(said, echoed), _thinking(said, echoed), "form" if echoed.form else "exact"),
        key=lambda name: SEVERITY[name],
    )


def named_as(said: Message, echoed: Message, *, proved: bool) -> Message:
    """`echoed` with the ids of the calls it echoes, where a client dropped them or put its own in their place.

    Calls are then equal by name and order; unless it is `proved` otherwise that this is the draw, by arguments too."""
    before, after = said.calls, echoed.calls
    theirs = {call.id for call in after}
    # Results name calls by their ids: with one id for two, nobody knows which is answered.
    if not after or not len(before) == len(after) == len(theirs) or theirs & {call.id for call in before}:
        return echoed
    pairs = list(zip(before, after, strict=True))
    if any(call.name != now.name or not (proved or _equal(call, now)) for call, now in pairs):
        return echoed
    if any(not _equal(call, now) and any(_equal(other, now) for other in before) for call, now in pairs):
        # In another order: a result would be put behind the call it does not answer.
        return echoed
    ids = iter([call.id for call in before])
    parts = [msgspec.structs.replace(p, id=next(ids)) if isinstance(p, ToolCall) else p for p in echoed.parts]
    return msgspec.structs.replace(echoed, parts=tuple(parts), form="ids")


def _equal(call: ToolCall, now: ToolCall) -> bool:
    """In value: whoever drops ids decodes and encodes arguments too."""
    try:
        return bool(msgspec.json.decode(call.arguments) == msgspec.json.decode(now.arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return call.arguments == now.arguments


def _calls(said: Message, echoed: Message) -> EchoClass:
    before = {call.id: call for call in said.calls}
    after = {call.id: call for call in echoed.calls}
    if len(after) != len(echoed.calls) or after.keys() - before.keys():
        return "call_added"
    if before.keys() - after.keys():
        return "call_dropped"
    if any(call.name != before[name].name for name, call in after.items()):
        return "renamed_invalid"
    if any(_compact(call.arguments) != _compact(before[name].arguments) for name, call in after.items()):
        return "args_rewritten"
    return "exact"


def _compact(arguments: str) -> bytes:
    """Without the spaces between tokens, which a protocol that carries arguments as an object cannot keep."""
    try:
        return msgspec.json.format(arguments.encode(), indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return arguments.encode()


def _text(said: Message, echoed: Message) -> EchoClass:
    return _compare(said.text, echoed.text)


def _thinking(said: Message, echoed: Message) -> EchoClass:
    if said.thinking.strip() and not echoed.thinking.strip():
        return "reasoning_dropped"
    return _compare(said.thinking, echoed.thinking)


def _compare(said: str, echoed: str) -> EchoClass:
    if said == echoed:
        return "exact"
    # Protocols and agents join, trim and re-wrap text parts, so white space carries no evidence of an edit.
    return "whitespace" if "".join(said.split()) == "".join(echoed.split()) else "text_edited"
