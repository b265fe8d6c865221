"""The roles a template takes where it takes them, and the rules for those it does not: in place, nothing is moved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import msgspec

from bridle.errors import TemplateError
from bridle.messages import Message, Note, Role, Text, ToolCall
from bridle.rendering.chat_template import ChatTemplate, message_form

ROLES: tuple[Role, ...] = ("developer", "system", "user", "assistant", "tool")
LEADING: frozenset[Role] = frozenset({"system", "developer"})

DEVELOPER = Note("role_mapped", "developer messages are rendered as system messages")
LATE_SYSTEM = Note("role_mapped", "system messages that are not first are rendered as user messages")
TWO_USERS = Note("role_mapped", "a second user message in a row is rendered as if an answer stood before it")
AFTER_RESULTS = Note("role_mapped", "a user message behind tool results is rendered as if an answer stood before it")
UNASKED = Note("role_mapped", "an answer that begins a conversation is rendered as if a question stood before it")


class RoleRules(msgspec.Struct, frozen=True):
    """The roles under which a template gets what it does not take as it is, and the neighbours it does not take: such a
    message is rendered as a unit of its own, behind the stub that units of its role have."""

    developer: Role = "developer"
    late_system: Role = "system"
    two_users: bool = True
    users_behind_results: bool = True
    unasked: bool = True
    """Whether a conversation may begin without a user message."""

    def apply(self, messages: Sequence[Message], first: bool) -> list[Message]:
        """`first`: `messages` begin the conversation."""
        return [self._apply(message, first and index == 0) for index, message in enumerate(messages)]

    def role(self, role: Role, first: bool) -> Role:
        role = self.developer if role == "developer" else role
        return self.late_system if role == "system" and not first else role

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
            (LATE_SYSTEM, role in LEADING and behind is not None and self.late_system != "system"),
            (TWO_USERS, shown == before == "user" and not self.two_users),
            (AFTER_RESULTS, shown == "user" and before == "tool" and not self.users_behind_results),
            (UNASKED, role == "assistant" and not self.unasked and self._leading(roles, at)),
        )
        return tuple(note for note, applies in rules if applies)

    @property
    def all_notes(self) -> tuple[Note, ...]:
        """Those that some message takes."""
        ends: list[tuple[Role, ...]] = [*product(ROLES), *product(ROLES, ROLES), *product(ROLES, ROLES, ROLES)]
        return tuple(dict.fromkeys(note for roles in ends for note in self.notes(roles, len(roles) - 1)))

    def _leading(self, roles: Sequence[Role], end: int) -> bool:
        return all(self.role(roles[at], at == 0) in LEADING for at in range(end))

    def _apply(self, message: Message, first: bool) -> Message:
        role = self.role(message.role, first)
        return message if role == message.role else msgspec.structs.replace(message, role=role)


USER = Message("user", (Text("alpha"),))
SYSTEM = Message("system", (Text("alpha"),))
CALLED = (
    USER,
    Message("assistant", (ToolCall("callaaaa1", "look", "{}"),)),
    Message("tool", (Text("b"),), "callaaaa1"),
)


def find_roles(template: ChatTemplate) -> RoleRules:
    """A role that the template refuses, leaves out, or has never heard of gets a rule."""

    def writes(*conversation: tuple[Role, str]) -> bool:
        rendered = _rendered(template, [Message(role, (Text(text),)) for role, text in conversation])
        return rendered is not None and all(text in rendered for _, text in conversation)

    knows_developer = "developer" in template.source and writes(("developer", "alpha"), ("user", "beta"))
    late_system = writes(("user", "alpha"), ("assistant", "beta"), ("system", "gamma"), ("user", "delta"))
    return RoleRules(
        developer="developer" if knows_developer else "system",
        late_system="system" if late_system else "user",
        two_users=writes(("user", "alpha"), ("user", "beta")),
        users_behind_results=_rendered(template, CALLED) is None or _rendered(template, [*CALLED, USER]) is not None,
        unasked=_rendered(template, [SYSTEM]) is not None and writes(("assistant", "alpha"), ("user", "beta")),
    )


def _rendered(template: ChatTemplate, messages: Sequence[Message]) -> str | None:
    """-> None where the template refuses."""
    names = {call.id: call.name for message in messages for call in message.calls}
    try:
        return template.render([message_form(message, str, names) for message in messages])
    except TemplateError:
        return None
