"""A conversation in units, each rendered apart from its history and still with the ids of the whole.

A unit is rendered behind a stub, the shortest conversation that ends where the unit begins, and cut off at the stub's
end. That end is found by a hole: a noncharacter in the stub's last message (its text and its last call), behind which
the template writes what it always writes there. Cost: the unit's text, never the history.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridle.errors import TemplateError
from bridle.messages import Message, Switches, Text, Tool, ToolCall
from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.roles import LEADING, RoleRules
from bridle.rendering.spans import NONCHARACTERS, Guard, Marks, choose_marks, encode_spans
from bridle.tokens import Ids, Vocabulary, concatenate

USER = Message("user", (Text("x"),))
ASSISTANT = Message("assistant", (Text("x"),))
STUB_MARKS = Marks(NONCHARACTERS[0], NONCHARACTERS[1])
"""For texts that hold stubs alone."""


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
        self._guard = Guard(vocabulary, template)

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches, generation: bool = False
    ) -> Ids:
        """The stock rendering."""
        marks = choose_marks(messages, tools)
        forms = self._guard.forms(self.rules.apply(messages, first=True), tools, marks)
        return self._encode(self.template.render(forms.messages, forms.tools, switches, generation), marks)

    def root(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        """How a conversation begins: the stock rendering, or as much of it as the template takes and then units."""
        cut = self.rules.whole_root(messages)
        asked = self.rules.unasked or any(m.role == "user" for m in self.rules.apply(messages, first=True))
        begun = self.whole(messages[:cut], tools, switches) if asked else self._unasked(messages[:cut], tools, switches)
        return concatenate([begun, *(self.unit([message], None) for message in messages[cut:])])

    def unit(self, messages: Sequence[Message], before: Message | None) -> Ids:
        """`before`: the assistant message whose calls the tool results answer."""
        marks = choose_marks([*messages, before or ASSISTANT], ())
        mapped = self.rules.apply(messages, first=False)
        match mapped[0].role:
            case "assistant":
                text = self._assistant(mapped[0], marks)
            case "tool":
                text = self._behind([USER, _stub(before or ASSISTANT)], mapped, marks)
            case _:
                text = self._behind([USER, ASSISTANT], mapped, marks)
        return self._encode(text, marks)

    def closing(self) -> Ids:
        """What the template writes after an assistant's content."""
        return self._encode(self._after_hole([USER, ASSISTANT], STUB_MARKS), STUB_MARKS)

    def generation(self, switches: Switches) -> Ids:
        """The generation prompt."""
        forms = self._guard.forms([USER], (), STUB_MARKS)
        closed = self.template.render(forms.messages, switches=switches)
        opened = self.template.render(forms.messages, switches=switches, generation=True)
        if not opened.startswith(closed):
            raise TemplateError("the chat template changes earlier text when a generation prompt is asked for")
        return self._encode(opened[len(closed) :], STUB_MARKS)

    def _unasked(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        """System messages and tools as they stand before a question, which is cut off again."""
        marks = choose_marks(messages, tools)
        forms = self._guard.forms([*self.rules.apply(messages, first=True), USER], tools, marks)
        text = self.template.render(forms.messages, forms.tools, switches)
        question = self._behind([USER, ASSISTANT], [USER], marks)
        if not text.endswith(question):
            raise TemplateError("the chat template writes a first question otherwise than a later one")
        return self._encode(text.removesuffix(question), marks)

    def _assistant(self, message: Message, marks: Marks) -> str:
        """An assistant message that stands in the middle of a conversation.

        Templates treat the last one apart: they keep its reasoning, or write an empty block where it has none. So one
        with reasoning is rendered as the last, one without is rendered with a follower, which is cut off again.
        """
        if message.thinking:
            return self._behind([USER], [message], marks)
        follower = [Message("tool", (Text("x"),), call_id=call.id) for call in message.calls] or [USER]
        text = self._behind([USER], [message, *follower], marks)
        end = self._behind([USER, _stub(message)], follower, marks)
        if not end or not text.endswith(end):
            raise TemplateError("the chat template writes a message otherwise behind another history")
        return text[: -len(end)]

    def _behind(self, stub: Sequence[Message], messages: Sequence[Message], marks: Marks) -> str:
        """The rendering of `messages` behind `stub`, without the stub's own."""
        own = self._after_hole(stub, marks)
        text = self._after_hole(stub, marks, messages)
        if not text.startswith(own):
            raise TemplateError("the chat template changes the end of a message when another one follows")
        return text[len(own) :]

    def _after_hole(self, stub: Sequence[Message], marks: Marks, more: Sequence[Message] = ()) -> str:
        forms = self._guard.forms([*stub, *more], (), marks).messages
        last = forms[len(stub) - 1]
        last["content"] = marks.hole
        for call in last.get("tool_calls", [])[-1:]:
            call["function"]["arguments"] = {"x": marks.hole}
        text = self.template.render(forms)
        if marks.hole not in text:
            raise TemplateError(f"the chat template does not write {stub[-1].role} messages out")
        return text.rpartition(marks.hole)[2]

    def _encode(self, text: str, marks: Marks) -> Ids:
        return encode_spans(self.vocabulary, text, marks)


def _stub(message: Message) -> Message:
    """The calls of `message` by id and name alone."""
    return Message("assistant", tuple(ToolCall(call.id, call.name, "{}") for call in message.calls))
