"""What one chat template does, found out by trying it on a few synthetic conversations before anything is served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Note, Role, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import TemplateFacts
from bridle.rendering.chat_template import ChatTemplate, message_form, tool_form
from bridle.rendering.units import RoleRules, Units, cut_units
from bridle.tokens import Ids, concatenate

SWITCHES = (None, True, False)


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


# --- the roles it takes -----------------------------------------------------------------------------------------------


def find_roles(template: ChatTemplate) -> tuple[RoleRules, tuple[Note, ...]]:
    """A role that the template refuses, leaves out, or has never heard of gets a rule that applies in place."""
    notes = []
    developer: Role = "developer"
    late_system: Role = "system"
    if "developer" not in template.source or not _writes(template, [("developer", "alpha"), ("user", "beta")]):
        developer = "system"
        notes.append(Note("role_mapped", "developer messages are rendered as system messages"))
    if not _writes(template, [("user", "alpha"), ("assistant", "beta"), ("system", "gamma"), ("user", "delta")]):
        late_system = "user"
        notes.append(Note("role_mapped", "system messages that are not first are rendered as user messages"))
    if not _writes(template, [("user", "alpha"), ("user", "beta")]):
        notes.append(Note("role_mapped", "a second user message in a row is rendered as if an answer stood before it"))
    return RoleRules(developer, late_system), tuple(notes)


def _writes(template: ChatTemplate, conversation: Sequence[tuple[Role, str]]) -> bool:
    messages = [message_form(Message(role, (Text(text),)), str, {}) for role, text in conversation]
    try:
        rendered = template.render(messages)
    except TemplateError:
        return False
    return all(text in rendered for _, text in conversation)


# --- whether it can be extended ---------------------------------------------------------------------------------------


def probe(units: Units, notes: tuple[Note, ...]) -> TemplateFacts:
    """`notes`: what `find_roles` found."""
    why_not = next(_obstacles(units, two_users=not any("in a row" in note.detail for note in notes)), "")
    fingerprint = f"{units.template.fingerprint}{units.vocabulary.fingerprint}"
    return TemplateFacts(
        fingerprint=hashlib.sha256(fingerprint.encode()).hexdigest()[:16],
        extendable=not why_not,
        why_not=why_not,
        strips_reasoning=_strips_reasoning(units.template),
        root_depends_on_thinking=_root_depends(units),
        has_tools=_shows_tools(units.template),
        role_rules=notes,
    )


def _obstacles(units: Units, two_users: bool) -> Iterator[str]:
    """Each reason why histories cannot be extended, the first one found first."""
    closing = units.closing()
    if len(closing) and not _begins_at_control(units, closing):
        yield "text stands behind a message, before the token that closes it or begins the next one"
    conversations = {"a plain conversation": PLAIN, "a tool loop": LOOP, "two tool loops": LOOPS}
    conversations["a user message behind tool results"] = TALKED_INTO
    if two_users:
        conversations["two user messages in a row"] = TWO_USERS
    if not _strips_reasoning(units.template):
        conversations["earlier reasoning"] = REASONED
    for name, messages in conversations.items():
        for tools in ((), (TOOL,)):
            for thinking in SWITCHES:
                if reason := _obstacle(units, messages, tools, thinking):
                    yield f"{name}, {'with' if tools else 'without'} tools, thinking={thinking}: {reason}"


def _obstacle(units: Units, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool | None) -> str:
    try:
        whole = units.whole(messages, tools, thinking, generation=True)
        parts = [*_part_ids(units, messages, tools, thinking), units.generation(thinking)]
    except TemplateError as error:
        return error.message
    if not all(_begins_at_control(units, part) for part in parts[1:]):
        return "a message or the generation prompt does not begin with a control token"
    if not np.array_equal(whole, concatenate(parts)):
        return "the messages rendered apart are not the conversation rendered whole"
    return ""


def _part_ids(units: Units, messages: Sequence[Message], tools: Sequence[Tool], thinking: bool | None) -> Iterator[Ids]:
    root, *rest = cut_units(messages)
    yield units.whole(root, tools, thinking)
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


def _root_depends(units: Units) -> bool:
    roots = [units.whole([SYSTEM, user("one")], (TOOL,), thinking) for thinking in SWITCHES]
    return not all(np.array_equal(roots[0], root) for root in roots[1:])


def _shows_tools(template: ChatTemplate) -> bool:
    messages = [message_form(user("one"), str, {})]
    return TOOL.name in template.render(messages, [tool_form(TOOL, str)])
