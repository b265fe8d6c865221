"""A conversation in units, each rendered apart from its history and still with the ids of the whole.

A unit is rendered behind a stub, the shortest conversation that ends where the unit begins, and cut off at the stub's
end. That end is found by a hole: a noncharacter in the stub's last message (its text and its last call), behind which
the template writes what it always writes there. Cost: the unit's text, never the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Role, Switches, Text, Tool, ToolCall
from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.history import find_strips
from bridle.rendering.roles import LEADING, RoleRules
from bridle.rendering.spans import NONCHARACTERS, Forms, Guard, Marks, choose_marks, encode_spans
from bridle.tokens import Ids, Vocabulary, concatenate

USER = Message("user", (Text("x"),))
ASSISTANT = Message("assistant", (Text("x"),))
CALLED = Message("assistant", (ToolCall("callaaaa1", "x", "{}"),))
CALLED_TWICE = Message("assistant", (*CALLED.parts, ToolCall("callbbbb2", "x", "{}")))
RESULT = Message("tool", (Text("x"),), "callaaaa1")
STUB_MARKS = Marks(NONCHARACTERS[0], NONCHARACTERS[1])
"""For texts that hold stubs alone."""
SHOWN = 80
"""Characters of a rendering that an error quotes."""
ENDS = 256
"""Ends of stubs held: a few for every setting of the switches."""


def cut_units(messages: Sequence[Message]) -> list[list[Message]]:
    """-> the root (leading system and developer messages and the first message after them), then one unit per message,
    consecutive tool results together."""
    leading = 0
    while leading < len(messages) and messages[leading].role in LEADING:
        leading += 1
    units = [list(messages[: leading + 1])]
    for message in messages[leading + 1 :]:
        if message.role == "tool" and units[-1][-1].role == "tool":
            units[-1].append(message)
        else:
            units.append([message])
    return units


class Units:
    """Renders one template's conversations whole or in units."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate, rules: RoleRules) -> None:
        self.vocabulary = vocabulary
        self.template = template
        self.rules = rules
        self.strips = find_strips(template)
        self._guard = Guard(vocabulary, template)
        self._held_end = lru_cache(ENDS)(self._after_hole)
        self._prompt = lru_cache(ENDS)(self._find_prompt)

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches, generation: bool = False
    ) -> Ids:
        """The stock rendering."""
        forms, marks = self._shown(messages, tools)
        if generation:
            return self._encode(self.template.render(forms.messages, forms.tools, switches, generation), marks)
        return self._encode(self._render(forms, switches), marks)

    def prompted(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> tuple[Ids, Ids]:
        """The stock rendering that asks for an answer, in two: from where one that asks for none parts with it, it is
        the generation prompt, whatever that depends on."""
        forms, marks = self._shown(messages, tools)
        closed, opened = (
            self._encode(self.template.render(forms.messages, forms.tools, switches, generation), marks)
            for generation in (False, True)
        )
        common = min(len(closed), len(opened))
        differ = np.flatnonzero(closed[:common] != opened[:common])
        at = int(differ[0]) if len(differ) else common
        return opened[:at], opened[at:]

    def _shown(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Forms, Marks]:
        marks = choose_marks(messages, tools)
        shown = [piece for one in self.rules.apply(messages, first=True) for piece in self.rules.pieces(one)]
        return self._guard.forms(shown, tools, marks), marks

    def root(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        """How a conversation begins: the stock rendering, or as much of it as the template takes and then units."""
        cut = self.rules.whole_root(messages)
        asked = self.rules.unasked or any(m.role == "user" for m in self.rules.apply(messages, first=True))
        begun = self.whole(messages[:cut], tools, switches) if asked else self._unasked(messages[:cut], tools, switches)
        return concatenate([begun, *(self.unit([message], None, switches) for message in messages[cut:])])

    def unit(
        self,
        messages: Sequence[Message],
        before: Message | None,
        switches: Switches = Switches(),
        behind: Role = "user",
        settled: bool = False,
    ) -> Ids:
        """`before`: the assistant message whose calls the tool results answer. `behind`: the role of the message before
        the unit. `settled`: as it is written once the template drops reasoning."""
        marks = choose_marks([*messages, before or ASSISTANT], ())
        mapped = self.rules.apply(messages, first=False)
        texts: list[str] = []
        match mapped[0].role:
            case "assistant":
                for piece in self.rules.pieces(mapped[0]):
                    texts.append(self._assistant(piece, marks, switches, "user" if texts else behind, settled))
            case "tool" if self.rules.calls.shown and self.rules.calls.parallel:
                texts.append(self._behind([USER, _stub(before)], mapped, marks, switches))
            case "tool":
                called = [_stub(before, message.call_id) for message in mapped]
                texts += [
                    self._behind([USER, one], [m], marks, switches) for one, m in zip(called, mapped, strict=True)
                ]
            case role:
                for message in mapped:
                    stub = self._stub("assistant" if texts else behind, role)
                    texts.append(self._behind(stub, [message], marks, switches))
        return concatenate([self._encode(text, marks) for text in texts])

    def closing(self, called: bool = False) -> Ids:
        """What the template writes after an assistant's content; `called`: after its calls."""
        plain = self._end([USER, ASSISTANT], STUB_MARKS, Switches())
        return self._encode(self._call_closing(plain) if called and self.rules.calls.shown else plain, STUB_MARKS)

    def _call_closing(self, plain: str) -> str:
        """What closes an answer where it does so, else what stands behind the last call and between no two."""
        text = self._end([USER, CALLED], STUB_MARKS, Switches())
        if text.endswith(plain):
            return plain
        pieces = self.vocabulary.split(text)
        if not self.rules.calls.parallel:
            last = max((at for at, piece in enumerate(pieces) if isinstance(piece, int)), default=len(pieces))
            return self._spelled(pieces[last:])
        forms = self._guard.forms([USER, CALLED_TWICE], (), STUB_MARKS)
        for call in forms.messages[-1]["tool_calls"]:
            call["function"]["arguments"] = self._holed(STUB_MARKS)
        _, first, second, *_ = self._render(forms, Switches()).split(STUB_MARKS.hole)
        return self._beyond(first, second)

    def generation(self, switches: Switches, behind: Role = "user") -> Ids:
        """The generation prompt. `behind`: the role of the last message."""
        return self._encode(self._prompt(switches, behind == "tool" and self.rules.results == "tool"), STUB_MARKS)

    # --- the end of a rendering ---------------------------------------------------------------------------------------

    def _render(self, forms: Forms, switches: Switches) -> str:
        """Without generation prompt, as it stands before one."""
        if not self._ends_apart:
            return self.template.render(forms.messages, forms.tools, switches)
        opened = self.template.render(forms.messages, forms.tools, switches, generation=True)
        prompt = self._prompt(switches, forms.messages[-1]["role"] == "tool")
        if not opened.endswith(prompt):
            raise TemplateError("the chat template does not write the same generation prompt behind every conversation")
        return opened.removesuffix(prompt)

    @cached_property
    def _ends_apart(self) -> bool:
        """Whether a conversation that asks for no answer ends otherwise than the same one that does: with `eos_token`
        behind it, or the last answer closed by another token. No model is asked anything behind such an end."""

        def text(*messages: Message, generation: bool = False) -> str:
            return self.template.render(self._guard.forms(messages, (), STUB_MARKS).messages, generation=generation)

        try:
            if not text(USER, generation=True).startswith(text(USER)):
                return True
            longer = text(USER, ASSISTANT, USER)
            if longer.startswith(text(USER, ASSISTANT)):
                return False
            opened, prompt = text(USER, ASSISTANT, generation=True), self._prompt(Switches(), False)
            return opened.endswith(prompt) and longer.startswith(opened.removesuffix(prompt))
        except TemplateError:
            return False

    def _find_prompt(self, switches: Switches, answered: bool) -> str:
        """The generation prompt. `answered`: behind tool results."""
        conversation = [USER, CALLED, RESULT] if answered else [USER]
        forms = self._guard.forms(conversation, (), STUB_MARKS).messages
        closed = self.template.render(forms, switches=switches)
        opened = self.template.render(forms, switches=switches, generation=True)
        if opened.startswith(closed):
            return opened[len(closed) :]
        # An end of its own where no answer is asked for: they part at a control token, and the probe proves the rest.
        return self._beyond(closed, opened)

    # --- messages apart from their history ----------------------------------------------------------------------------

    def _unasked(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        """System messages and tools as they stand before a question, which is cut off again."""
        marks = choose_marks(messages, tools)
        forms = self._guard.forms([*self.rules.apply(messages, first=True), USER], tools, marks)
        text = self._render(forms, switches)
        question = self._behind([USER, ASSISTANT], [USER], marks, switches)
        if not text.endswith(question):
            raise TemplateError("the chat template writes a first question otherwise than a later one")
        return self._encode(text.removesuffix(question), marks)

    def _assistant(self, message: Message, marks: Marks, switches: Switches, behind: Role, settled: bool) -> str:
        """An assistant message that stands in the middle of a conversation.

        Templates treat the last one apart: they keep its reasoning, or write an empty block where it has none. So one
        with reasoning is rendered as the last, one without is rendered with a follower, which is cut off again.
        """
        stub = self._stub(behind, "assistant")
        if message.thinking and not settled:
            return self._behind(stub, [message], marks, switches)
        follower = [USER]
        if message.calls and self.rules.results == "tool":
            follower = [Message("tool", (Text("x"),), call_id=call.id) for call in message.calls]
            follower += [ASSISTANT, USER] if settled else []
        text = self._behind(stub, [message, *follower], marks, switches)
        end = self._behind([*stub, _stub(message)], follower, marks, switches)
        if not end or not text.endswith(end):
            raise TemplateError("the chat template writes a message otherwise behind another history")
        return text[: -len(end)]

    def _stub(self, behind: Role, role: Role) -> list[Message]:
        """The shortest conversation that ends where a message of `role` begins."""
        if behind == "tool" and self.rules.results == "tool" and (role != "user" or self.rules.users_behind_results):
            return [USER, CALLED, RESULT]
        return [USER] if role == "assistant" else [USER, ASSISTANT]

    def _behind(self, stub: Sequence[Message], messages: Sequence[Message], marks: Marks, switches: Switches) -> str:
        """The rendering of `messages` behind `stub`, without the stub's own."""
        own = self._end(stub, marks, switches)
        text = self._after_hole(tuple(stub), marks, switches, tuple(messages))
        if not text.startswith(own):
            alone, followed = (marks.remove(end[:SHOWN]) for end in (own, text))
            raise TemplateError(
                f"the chat template changes the end of a message when another one follows: the {stub[-1].role} message "
                f"ends {alone!r} when it is the last and {followed!r} before one of role {messages[0].role}"
            )
        return text[len(own) :]

    def _end(self, stub: Sequence[Message], marks: Marks, switches: Switches) -> str:
        return self._held_end(tuple(stub), marks, switches)

    def _after_hole(
        self, stub: tuple[Message, ...], marks: Marks, switches: Switches, more: tuple[Message, ...] = ()
    ) -> str:
        forms = self._guard.forms([*stub, *more], (), marks)
        last = forms.messages[len(stub) - 1]
        if "tool_calls" in last and self.rules.calls.shown:
            last["tool_calls"][-1]["function"]["arguments"] = self._holed(marks)
        else:
            last["content"] = marks.hole
        rendered = self._render(forms, switches)
        if marks.hole not in rendered:
            raise TemplateError(f"the chat template does not write {stub[-1].role} messages out")
        return rendered.rpartition(marks.hole)[2]

    def _beyond(self, one: str, other: str) -> str:
        """What is left of `other` where the two part, at a control token or the text behind one."""
        first, second = self.vocabulary.split(one), self.vocabulary.split(other)
        common = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
        return self._spelled(second[sum(1 for _ in common) :])

    def _holed(self, marks: Marks) -> str | dict[str, str]:
        return f'{{"x": "{marks.hole}"}}' if self.rules.calls.arguments == "text" else {"x": marks.hole}

    def _spelled(self, pieces: Sequence[str | int]) -> str:
        return "".join(self.vocabulary.decode([piece]) if isinstance(piece, int) else piece for piece in pieces)

    def _encode(self, text: str, marks: Marks) -> Ids:
        return encode_spans(self.vocabulary, text, marks)


def _stub(message: Message | None, answered: str = "") -> Message:
    """The calls of `message` by id and name alone; `answered`: that one call."""
    calls = [call for call in (message.calls if message else ()) if not answered or call.id == answered]
    named = tuple(ToolCall(call.id, call.name, "{}", said=call.said) for call in calls)
    return Message("assistant", named) if named else ASSISTANT
