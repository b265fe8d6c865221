"""What one chat template does, found out by trying it on a few synthetic conversations before anything is served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Note, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Switch, TemplateFacts
from bridle.rendering.chat_template import ChatTemplate, message_form, tool_form
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
LOOP = [
    SYSTEM,
    user("one"),
    assistant("look", CALL),
    result("callaaaa1", "\nfound\n"),
    assistant("", CALL, OTHER_CALL),
    result("callaaaa1", ""),
    result("callbbbb2", "second"),
]
LOOPS = [*LOOP, assistant("done"), user("again"), assistant("", OTHER_CALL), result("callbbbb2", "third")]
TALKED_INTO = [*LOOP, user("stop that"), assistant("fine"), user("go on")]
TWO_USERS = [user("one"), user("two"), assistant("three"), user("four"), user("five")]
REASONED = [user("one"), assistant("two", thinking="why"), user("three"), assistant("four", thinking="how"), user("5")]


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


def probe(units: Units, notes: tuple[Note, ...] = ()) -> TemplateFacts:
    """`notes`: what else is told of the template."""
    why_not = next(_obstacles(units), "")
    fingerprint = f"{units.template.fingerprint}{units.vocabulary.fingerprint}"
    return TemplateFacts(
        fingerprint=hashlib.sha256(fingerprint.encode()).hexdigest()[:16],
        extendable=not why_not,
        why_not=why_not,
        strips_reasoning=_strips_reasoning(units.template),
        switches=_switches(units.template),
        root_switches=_root_switches(units),
        has_tools=_shows_tools(units.template),
        role_rules=(*units.rules.all_notes, *notes),
    )


def _obstacles(units: Units) -> Iterator[str]:
    """Each reason why histories cannot be extended, the first one found first."""
    closing = units.closing()
    if len(closing) and not _begins_at_control(units, closing):
        yield "text stands behind a message, before the token that closes it or begins the next one"
    conversations = {"a plain conversation": PLAIN, "a tool loop": LOOP, "two tool loops": LOOPS}
    if units.rules.users_behind_results:
        conversations["a user message behind tool results"] = TALKED_INTO
    if units.rules.two_users:
        conversations["two user messages in a row"] = TWO_USERS
    if not _strips_reasoning(units.template):
        conversations["earlier reasoning"] = REASONED
    for name, messages in conversations.items():
        for tools in ((), (TOOL,)):
            for switches in settings(units.template):
                if reason := _obstacle(units, messages, tools, switches):
                    yield f"{name}, {'with' if tools else 'without'} tools, {_said(switches)}: {reason}"


def _obstacle(units: Units, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> str:
    try:
        whole = units.whole(messages, tools, switches, generation=True)
        parts = [*_part_ids(units, messages, tools, switches), units.generation(switches)]
    except TemplateError as error:
        return error.message
    if not all(_begins_at_control(units, part) for part in parts[1:]):
        return "a message or the generation prompt does not begin with a control token"
    if not np.array_equal(whole, concatenate(parts)):
        return "the messages rendered apart are not the conversation rendered whole"
    return ""


def _part_ids(units: Units, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Iterator[Ids]:
    root, *rest = cut_units(messages)
    yield units.root(root, tools, switches)
    before: Message | None = None
    for unit in rest:
        yield units.unit(unit, before)
        before = unit[0] if unit[0].role == "assistant" else before


def _begins_at_control(units: Units, ids: Ids) -> bool:
    return len(ids) > 0 and int(ids[0]) in units.vocabulary.control_ids


# --- other facts ------------------------------------------------------------------------------------------------------


def _strips_reasoning(template: ChatTemplate) -> bool:
    try:
        rendered = template.render([message_form(message, str, {}) for message in REASONED])
    except TemplateError:
        return True
    return "why" not in rendered or "how" not in rendered


def _root_switches(units: Units) -> tuple[Switch, ...]:
    roots = {found: units.whole([SYSTEM, user("one")], (TOOL,), found) for found in settings(units.template)}
    pairs = [(a, b) for a, b in combinations(roots, 2) if not np.array_equal(roots[a], roots[b])]
    names: list[Switch] = []
    if any(a.effort == b.effort for a, b in pairs):
        names.append("thinking")
    if any(a.thinking == b.thinking for a, b in pairs):
        names.append("effort")
    return tuple(names)


def _shows_tools(template: ChatTemplate) -> bool:
    messages = [message_form(user("one"), str, {})]
    return TOOL.name in template.render(messages, [tool_form(TOOL, str)])
