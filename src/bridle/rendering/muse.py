"""Replies of Muse Glimmer: messages whose header says to whom they go, `to=self` (reasoning), `to=user`, or a tool.

    <|start|>assistant to=look<|message|><atem:function_calls>
    <atem:invoke name="look">
    <atem:parameter name="path">a b</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

`<|eom|>` ends a message that another one follows, `<|eot|>` the turn. The tags in a call are plain text.
"""

from __future__ import annotations

from bridle.messages import Part, Thinking, ToolCall
from bridle.rendering.calls import Block, Found, Tools
from bridle.rendering.harmony import Header, MessageForm, Use, one_word
from bridle.rendering.parameters import broken_call
from bridle.rendering.tools_xml import XmlCalls

OPEN, CLOSE = "<atem:function_calls>\n", "\n</atem:function_calls>"


class Invokes(XmlCalls):
    """A value begins and ends at its tags: newlines there are its own."""

    call = ('<atem:invoke name="', '">', "</atem:invoke>")
    key = ('<atem:parameter name="', '">', "</atem:parameter>")
    line = ""

    def written(self, call: ToolCall) -> str:
        return self._written(call)


class Muse(MessageForm):
    start = "<|start|>"
    channel = ""
    message = "<|message|>"
    constrain = ""
    ends = ("<|eom|>", "<|eot|>")
    stops = ("<|eot|>",)

    def __init__(self) -> None:
        self._invokes = Invokes()

    def use(self, header: Header) -> Use:
        if header.recipient not in (None, "self", "user"):
            return "call"
        if header.strange:
            return "strange"
        return "thinking" if header.recipient == "self" else "text"

    def head(self, part: Part, called: bool) -> list[str]:
        match part:
            case ToolCall(name=name):
                return [f" to={one_word(name)}"]
            case Thinking():
                return [" to=self"]
            case _:
                return [" to=user"]

    def read(self, recipient: str, block: Block, tools: Tools) -> list[Found]:
        source = block.text
        begun = source.startswith(OPEN)
        inner, end, tail = source.removeprefix(OPEN).rpartition(Invokes.call[2])
        closed = block.closed and begun and tail == CLOSE
        inner += f"{end}{'' if CLOSE.startswith(tail) else tail}" if end else tail
        at = len(OPEN) * begun
        found = self._invokes.read(Block((inner,), closed), tools)
        if not found and recipient:
            return [Found(broken_call(recipient, source, block.closed), 0, len(source))]
        return [one._replace(start=one.start + at, end=one.end + at) for one in found]

    def write(self, call: ToolCall) -> str:
        return f"{OPEN}{self._invokes.written(call)}{CLOSE}"
