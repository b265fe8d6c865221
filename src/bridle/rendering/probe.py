"""What one chat template does, found out by trying it on a few synthetic conversations before anything is served."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, product

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Note, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Switch, TemplateFacts
from bridle.rendering.chat_template import ChatTemplate, message_form, tool_form
from bridle.rendering.history import settled
from bridle.rendering.units import Units, cut_units
from bridle.tokens import Ids, concatenate

EFFORTS = ("low", "medium", "high")


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str, *calls: ToolCall, thinking: str = "") -> Message:
    reasoning = (Thinking(thinking),) if thinking else ()
    return Message("assistant", (*reasoning, *((Text(text),) if text else ()), *calls))


def result(call_id: str, text: str) -> Message:
    return Message("tool", (Text(text),), call_id=call_id)


SYSTEM = Message("system", (Text("Be brief."),))
TOOL = Tool("probe_tool", "Looks around.", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall("callaaaa1", "probe_tool", '{"path": "a"}')
OTHER_CALL = ToolCall("callbbbb2", "probe_tool", '{"path": "b", "deep": {"list": [1, 2.5, null]}}')

PLAIN = [SYSTEM, user("one"), assistant("two"), user("\nthree "), assistant("four\n"), user("five")]
SERIAL = [
    SYSTEM,
    user("one"),
    assistant("", CALL),
    result("callaaaa1", "\nfound\n"),
    assistant("", OTHER_CALL),
    result("callbbbb2", ""),
]
PARALLEL = [
    *SERIAL,
    assistant("", CALL, OTHER_CALL),
    result("callaaaa1", ""),
    result("callbbbb2", "second"),
]
SAYING = [SYSTEM, user("one"), assistant("look", CALL), result("callaaaa1", "found")]
LATER = [assistant("done"), user("again"), assistant("", OTHER_CALL), result("callbbbb2", "third")]
TALKED_INTO = [*SERIAL, user("stop that"), assistant("fine"), user("go on")]
TWO_USERS = [user("one"), user("two"), assistant("three"), user("four"), user("five")]
REASONED = [user("one"), assistant("two", thinking="why"), user("three"), assistant("four", thinking="how"), user("5")]
REASONED_LOOPS = [
    user("one"),
    assistant("", CALL, thinking="why"),
    result("callaaaa1", "found"),
    assistant("two", thinking="how"),
    user("three"),
    assistant("", OTHER_CALL, thinking="what"),
    result("callbbbb2", "second"),
    assistant("", CALL),
    result("callaaaa1", "third"),
]

THOROUGH = (PLAIN, PLAIN[1:], [*SERIAL, *LATER], [*PARALLEL, *LATER], REASONED_LOOPS)
"""Tried with tools and without, at every setting of the switches; the others as they are."""


# --- the switches it has ----------------------------------------------------------------------------------------------


def settings(template: ChatTemplate) -> list[Switches]:
    """What the switches are tried at: none set, then every way to set those the template reads."""
    thinking = (None, True, False) if template.reads_thinking else (None,)
    efforts = ["", *(word for word in EFFORTS if _takes_effort(template, word))]
    return [Switches(*pair) for pair in product(thinking, efforts)]


def _switches(template: ChatTemplate) -> tuple[Switch, ...]:
    names: list[Switch] = ["thinking"] if template.reads_thinking else []
    return (*names, "effort") if template.reads_effort else tuple(names)


def _takes_effort(template: ChatTemplate, word: str) -> bool:
    if not template.reads_effort:
        return False
    try:
        template.render([message_form(user("one"), str, {})], switches=Switches(effort=word), generation=True)
    except TemplateError:
        return False
    return True


def _said(switches: Switches) -> str:
    return f"thinking={switches.thinking}{f', effort={switches.effort}' if switches.effort else ''}"


# --- whether it can be extended ---------------------------------------------------------------------------------------


SameButReasoning = Callable[[Ids, Ids], bool]
"""Whether two renderings of a message differ in reasoning alone (`Replies`)."""


def probe(units: Units, notes: tuple[Note, ...] = (), same: SameButReasoning = np.array_equal) -> TemplateFacts:
    """`notes`: what else is told of the template."""
    why_not, why_not_template = _obstacles(units, same)
    fingerprint = f"{units.template.fingerprint}{units.vocabulary.fingerprint}"
    return TemplateFacts(
        fingerprint=hashlib.sha256(fingerprint.encode()).hexdigest()[:16],
        extendable=not why_not,
        why_not=why_not,
        strips_reasoning=units.strips,
        why_not_template=why_not or why_not_template,
        switches=_switches(units.template),
        root_switches=_root_switches(units),
        has_tools=_shows_tools(units.template),
        has_results=units.rules.results == "tool",
        calls=units.template.calls,
        role_rules=(*units.rules.all_notes, *notes),
    )


def _obstacles(units: Units, same: SameButReasoning) -> tuple[str, str]:
    """The first reason why histories cannot be extended, and the first why they cannot follow the template."""
    closing = units.closing()
    if len(closing) and not _begins_at_control(units, closing):
        return "text stands behind a message, before the token that closes it or begins the next one", ""
    unfollowed = ""
    for name, messages in _conversations(units).items():
        every = messages in THOROUGH
        for tools, switches in product(((), (TOOL,)), settings(units.template)) if every else [((), Switches())]:
            said = f"{name}, {'with' if tools else 'without'} tools, {_said(switches)}"
            keep, template = differences(units, messages, tools, switches, same)
            if keep:
                return f"{said}: {keep}", ""
            unfollowed = unfollowed or (f"{said}: {template}" if template else "")
    return "", unfollowed


def _conversations(units: Units) -> dict[str, list[Message]]:
    """Those whose stock rendering says something: what a template refuses has rules instead."""
    rules = units.rules
    found = {"a plain conversation": PLAIN}
    if rules.calls.shown or rules.results == "tool":
        found |= {"a tool loop": SERIAL, "two tool loops": [*SERIAL, *LATER]}
    if rules.calls.shown and rules.calls.parallel and (rules.results == "tool" or rules.two_users):
        found |= {"parallel calls": PARALLEL, "two loops of parallel calls": [*PARALLEL, *LATER]}
    if rules.calls.shown and rules.calls.beside:
        found |= {"a text beside a call": SAYING, "a text beside a call and more": [*SAYING, *LATER]}
    if rules.results == "tool" and rules.users_behind_results:
        found["a user message behind tool results"] = TALKED_INTO
    if rules.two_users:
        found["two user messages in a row"] = TWO_USERS
    found["earlier reasoning"] = REASONED
    if rules.calls.shown:
        found["reasoning in tool loops"] = REASONED_LOOPS
    system = rules.system == "system" or rules.two_users
    return found if system else {name: [m for m in messages if m != SYSTEM] for name, messages in found.items()}


def differences(
    units: Units,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    switches: Switches,
    same: SameButReasoning = np.array_equal,
) -> tuple[str, str]:
    """-> how the conversation in units differs from the stock rendering, generation prompt included; "" if not at all:
    where histories are kept, and where they follow the template.

    A kept one may differ from one that follows in messages whose reasoning the template drops, and in that alone."""
    try:
        whole = units.whole(messages, tools, switches, generation=True)
        parts = in_units(units, messages, tools, switches)
        generation = units.generation(switches, messages[-1].role)
    except TemplateError as error:
        return error.message, ""
    kept, followed = ([*(part[at] for part in parts), generation] for at in (0, 1))
    if not (_meet_at_controls(units, kept) and _meet_at_controls(units, followed)):
        return "a message or the generation prompt does not begin with a control token", ""
    if not _begin_as_prompted(units, messages, [part for part, _ in parts], switches):
        return "an answer does not begin as the generation prompt does, so what a model says is not behind that", ""
    exact = np.array_equal(whole, concatenate(kept))
    if not np.array_equal(whole, concatenate(followed)):
        why = _parting(units, messages, whole, followed)
        return ("", why) if exact else (why, "")
    alike = exact or all(one is two or same(one, two) for one, two in parts)
    return "" if alike else f"{_parting(units, messages, whole, kept)}, and reasoning is not all that differs", ""


def in_units(
    units: Units, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches
) -> list[tuple[Ids, Ids]]:
    """-> the root and every unit behind it, as a kept history has it and as one that follows the template has."""
    first, *rest = cut_units(messages)
    root = units.root(first, tools, switches)
    parts = [(root, root)]
    before, behind, at = next((m for m in first if m.role == "assistant"), None), first[-1].role, len(first)
    end = settled(messages, units.strips, units.rules)
    for unit in rest:
        kept = followed = units.unit(unit, before, switches, behind)
        if unit[0].role == "assistant":
            before = unit[0]
            followed = units.unit(unit, None, switches, behind, settled=True) if at < end else kept
        parts.append((kept, followed))
        behind, at = unit[-1].role, at + len(unit)
    return parts


def _meet_at_controls(units: Units, parts: Sequence[Ids]) -> bool:
    """Whether every two neighbours meet at a control token: text spans reach from one to the next."""
    present = [part for part in parts if len(part)]
    return all(
        _begins_at_control(units, part) or int(before[-1]) in units.vocabulary.control_ids
        for before, part in pairwise(present)
    )


def _begin_as_prompted(units: Units, messages: Sequence[Message], parts: Sequence[Ids], switches: Switches) -> bool:
    """Whether answers in a history begin with the token that a generation prompt begins with in their place."""
    cut = cut_units(messages)
    opener = units.generation(switches)[:1].tolist()
    for before, unit, part in zip(cut, cut[1:], parts[1:], strict=False):
        if unit[0].role == "assistant":
            prompt = units.generation(switches, before[-1].role)[:1].tolist()
            if prompt == opener and part[: len(opener)].tolist() != opener:
                return False
    return True


def _parting(units: Units, messages: Sequence[Message], whole: Ids, parts: Sequence[Ids]) -> str:
    """Where the two part, in words."""
    joined = concatenate(parts)
    common = min(len(joined), len(whole))
    differ = np.flatnonzero(joined[:common] != whole[:common])
    at = int(differ[0]) if len(differ) else common
    ends = np.cumsum([len(part) for part in parts])
    number = min(int(np.searchsorted(ends, at, side="right")), len(parts) - 1)
    names = ["the beginning", *(unit[0].role for unit in cut_units(messages)[1:]), "the generation prompt"]
    what = names[number] if number in (0, len(parts) - 1) else f"message {number + 1} ({names[number]})"
    wrote, apart = (units.vocabulary.decode(ids[max(at - 3, 0) : at + 9].tolist()) for ids in (whole, joined))
    return (
        f"the messages rendered apart are not the conversation rendered whole: at {what} the template writes "
        f"{wrote!r} here and {apart!r} for the same message behind another history"
    )


def _begins_at_control(units: Units, ids: Ids) -> bool:
    return len(ids) > 0 and int(ids[0]) in units.vocabulary.control_ids


# --- other facts ------------------------------------------------------------------------------------------------------


def _root_switches(units: Units) -> tuple[Switch, ...]:
    """Those that anything but the generation prompt depends on: a conversation held under others is another one."""
    texts = {found: _settled_text(units, found) for found in settings(units.template)}
    pairs = [(a, b) for a, b in combinations(texts, 2) if texts[a] != texts[b]]
    names: list[Switch] = []
    if any(a.effort == b.effort for a, b in pairs):
        names.append("thinking")
    if any(a.thinking == b.thinking for a, b in pairs):
        names.append("effort")
    return tuple(names)


def _settled_text(units: Units, switches: Switches) -> tuple[tuple[int, ...], ...]:
    messages = SERIAL if units.rules.calls.shown else PLAIN
    try:
        parts = [kept for kept, _ in in_units(units, messages, (TOOL,), switches)]
    except TemplateError:
        parts = [units.whole(PLAIN[:2], (TOOL,), switches)]
    return tuple(tuple(part.tolist()) for part in parts)


def _shows_tools(template: ChatTemplate) -> bool:
    messages = [message_form(user("one"), str, {})]
    return TOOL.name in template.render(messages, [tool_form(TOOL, str)])
