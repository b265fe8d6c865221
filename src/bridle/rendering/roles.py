"""The roles a template takes where it takes them, and the rules for those it does not: in place, nothing is moved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import msgspec

from bridle.errors import TemplateError
from bridle.messages import Message, Note, Part, Role, Text, ToolCall
from bridle.rendering.chat_template import CallStyle, ChatTemplate, message_form

ROLES: tuple[Role, ...] = ("developer", "system", "user", "assistant", "tool")
LEADING: frozenset[Role] = frozenset({"system", "developer"})

DEVELOPER = Note("role_mapped", "developer messages are rendered as system messages")
LATE_SYSTEM = Note("role_mapped", "system messages that are not first are rendered as user messages")
TWO_USERS = Note("role_mapped", "a second user message in a row is rendered as if an answer stood before it")
AFTER_RESULTS = Note("role_mapped", "a user message behind tool results is rendered as if an answer stood before it")
SYSTEM_AS_USER = Note("role_mapped", "system messages are rendered as user messages")
RESULTS = Note("role_mapped", "tool results are rendered as user messages")
UNASKED = Note("role_mapped", "an answer that begins a conversation is rendered as if a question stood before it")
CALLS_SPLIT = Note("calls_split", "calls of one message are rendered as messages of one call each")
TEXT_SPLIT = Note("calls_split", "text beside calls is rendered as a message of its own before them")
RESULTS_SPLIT = Note("calls_split", "results of several calls are each rendered behind their own call")
CALLS_NOT_SHOWN = Note(
    "calls_not_shown", "the chat template writes no calls: those that were not sampled here are left out"
)


class RoleRules(msgspec.Struct, frozen=True):
    """The roles under which a template gets what it does not take as it is, and the neighbours it does not take: such a
    message is rendered as a unit of its own, behind the stub that units of its role have. `calls`: how it takes
    calls."""

    developer: Role = "developer"
    late_system: Role = "system"
    two_users: bool = True
    users_behind_results: bool = True
    unasked: bool = True
    """Whether a conversation may begin without a user message."""
    system: Role = "system"
    """Of the first one."""
    results: Role = "tool"
    calls: CallStyle = CallStyle()
    late_developer: bool = True
    """Whether a template that knows developer messages takes a late one; else it is a late system message."""

    def apply(self, messages: Sequence[Message], first: bool) -> list[Message]:
        """`first`: `messages` begin the conversation."""
        return [self._apply(message, first and index == 0) for index, message in enumerate(messages)]

    def role(self, role: Role, first: bool) -> Role:
        if role == "developer":
            role = self.developer if first or self.late_developer else "system"
        if role == "tool":
            return self.results
        return (self.system if first else self.late_system) if role == "system" else role

    def pieces(self, message: Message) -> list[Message]:
        """An assistant message as the messages in which the template takes it."""
        calls = message.calls
        if not calls or (self.calls.parallel and (self.calls.beside or not message.text)):
            return [message]
        said = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        one_each: list[tuple[Part, ...]] = [(call,) for call in calls] if not self.calls.parallel else [calls]
        if not message.text or self.calls.beside:
            one_each[0] = (*said, *one_each[0])
        else:
            one_each.insert(0, said)
        return [msgspec.structs.replace(message, parts=parts) for parts in one_each]

    def whole_root(self, messages: Sequence[Message]) -> int:
        """-> how many of a root's messages the template takes in one."""
        roles = [self.role(message.role, index == 0) for index, message in enumerate(messages)]
        if not self.unasked and "user" not in roles:
            return sum(message.role in LEADING for message in messages)
        in_a_row = (at for at in range(1, len(roles)) if not self.two_users and roles[at - 1 : at + 1] == ["user"] * 2)
        return next(in_a_row, len(roles))

    def notes(self, roles: Sequence[Role], at: int) -> tuple[Note, ...]:
        """The rules that the message at `at` of a conversation of these roles takes."""
        role, behind = roles[at], roles[at - 1] if at else None
        shown = self.role(role, at == 0)
        before = self.role(behind, at == 1) if behind else None
        rules = (
            (DEVELOPER, role == "developer" and self.developer != role),
            (SYSTEM_AS_USER, role in LEADING and behind is None and shown == "user"),
            (LATE_SYSTEM, role in LEADING and behind is not None and shown not in LEADING),
            (RESULTS, role == "tool" and shown != role),
            (TWO_USERS, shown == before == "user" and not self.two_users),
            (AFTER_RESULTS, shown == "user" and before == "tool" and not self.users_behind_results),
            (UNASKED, role == "assistant" and not self.unasked and self._leading(roles, at)),
        )
        return tuple(note for note, applies in rules if applies)

    def call_notes(self, message: Message) -> tuple[Note, ...]:
        """The rules that the calls of a message take."""
        if message.role != "assistant" or not message.calls:
            return ()
        rules = (
            (CALLS_NOT_SHOWN, not self.calls.shown),
            (CALLS_SPLIT, self.calls.shown and not self.calls.parallel and len(message.calls) > 1),
            (TEXT_SPLIT, self.calls.shown and not self.calls.beside and message.text != ""),
        )
        return tuple(note for note, applies in rules if applies)

    def result_notes(self, before: Message | None) -> tuple[Note, ...]:
        """The rule that results of the calls of `before` take where the template knows but one call of a message."""
        several = before is not None and len(before.calls) > 1 and self.results == "tool"
        return (RESULTS_SPLIT,) if several and self.calls.shown and not self.calls.parallel else ()

    @property
    def all_notes(self) -> tuple[Note, ...]:
        """Those that some message takes."""
        ends: list[tuple[Role, ...]] = [*product(ROLES), *product(ROLES, ROLES), *product(ROLES, ROLES, ROLES)]
        notes = [note for roles in ends for note in self.notes(roles, len(roles) - 1)]
        return tuple(dict.fromkeys([*notes, *self.call_notes(CALLING_TWICE), *self.result_notes(CALLING_TWICE)]))

    def _leading(self, roles: Sequence[Role], end: int) -> bool:
        return all(self.role(roles[at], at == 0) in LEADING for at in range(end))

    def _apply(self, message: Message, first: bool) -> Message:
        role = self.role(message.role, first)
        return message if role == message.role else msgspec.structs.replace(message, role=role)


USER = Message("user", (Text("alpha"),))
SYSTEM = Message("system", (Text("alpha"),))
CALL = ToolCall("callaaaa1", "look", '{"path": "a"}')
RESULT = Message("tool", (Text("gamma"),), "callaaaa1")
TALK: tuple[tuple[Role, str], ...] = (("user", "alpha"), ("assistant", "beta"))
CALLED = (USER, Message("assistant", (CALL,)), RESULT)
CALLING_TWICE = Message("assistant", (Text("alpha"), CALL, CALL))


def find_roles(template: ChatTemplate) -> RoleRules:
    """A role that the template refuses, leaves out, or has never heard of gets a rule."""

    def writes(*conversation: tuple[Role, str]) -> bool:
        rendered = _rendered(template, [Message(role, (Text(text),)) for role, text in conversation])
        return rendered is not None and all(text in rendered for _, text in conversation)

    knows_developer = "developer" in template.source and writes(("developer", "alpha"), ("user", "beta"))
    looped = _rendered(template, CALLED)
    results = looped is not None and "gamma" in looped
    users_behind_results = not results or _rendered(template, [*CALLED, USER]) is not None
    late_system = writes(*TALK, ("system", "gamma"), ("user", "delta")) and _begins_alike(template)
    if late_system and results and users_behind_results:
        late_system = _rendered(template, [*CALLED, SYSTEM, USER]) is not None
    return RoleRules(
        developer="developer" if knows_developer else "system",
        late_system="system" if late_system else "user",
        two_users=writes(("user", "alpha"), ("user", "beta")),
        users_behind_results=users_behind_results,
        unasked=_rendered(template, [SYSTEM]) is not None and writes(("assistant", "alpha"), ("user", "beta")),
        system="system" if writes(("system", "alpha"), ("user", "beta")) else "user",
        results="tool" if results else "user",
        calls=template.calls,
        late_developer=not knows_developer or writes(*TALK, ("developer", "gamma"), ("user", "delta")),
    )


def _begins_alike(template: ChatTemplate) -> bool:
    """Whether a late system message leaves alone what stands before it: some templates pull it to the front."""
    talk = [Message(role, (Text(text),)) for role, text in TALK]
    short, long = _rendered(template, talk), _rendered(template, [*talk, SYSTEM, USER])
    return short is not None and long is not None and long.startswith(short[: short.find("beta")])


def _rendered(template: ChatTemplate, messages: Sequence[Message]) -> str | None:
    """-> None where the template refuses."""
    names = {call.id: call.name for message in messages for call in message.calls}
    try:
        return template.render([message_form(message, str, names, template.calls) for message in messages])
    except TemplateError:
        return None
