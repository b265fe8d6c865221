"""What a server without Bridle would feed the model: the stock template over the messages, its text encoded whole.

An oracle for conversations whose texts hold no control strings. Of the renderer nothing is used but the compiled
template: messages take their form here, and the tokenizer is the library's own, control tokens and all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bridle.errors import TemplateError
from bridle.messages import Message, Switches, Tool, ToolCall
from bridle.rendering.chat_template import ChatTemplate, load_template
from bridle.tokens import Vocabulary

Encode = Callable[[str], list[int]]


class Stock:
    def __init__(self, template: ChatTemplate, encode: Encode) -> None:
        self._template = template
        self.encode = encode
        # Some templates want the arguments of a call as JSON text, most as an object, some write either.
        self._as_text = not self._takes_objects()

    @classmethod
    def load(cls, directory: Path) -> Stock:
        tokenizer = Tokenizer.from_str((directory / "tokenizer.json").read_text())
        return cls(load_template(directory), lambda text: tokenizer.encode(text, add_special_tokens=False).ids)

    @classmethod
    def quick(cls, directory: Path, vocabulary: Vocabulary) -> Stock:
        """Without loading the tokenizer a second time: `vocabulary` was held to it when it was loaded."""
        return cls(load_template(directory), lambda text: vocabulary.encode_split(text).tolist())

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches, generation: bool) -> str:
        """Raises TemplateError where the template refuses."""
        calls = {call.id: call for message in messages for call in message.calls}
        forms = [self._form(message, calls) for message in messages]
        return self._template.render(forms, [_tool(tool) for tool in tools], switches, generation)

    def ids(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> list[int]:
        """With the generation prompt."""
        return self.encode(self.text(messages, tools, switches, True))

    def _form(self, message: Message, calls: dict[str, ToolCall]) -> dict[str, Any]:
        form: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.thinking:
            # Templates read it under either name.
            form |= {"reasoning_content": message.thinking, "thinking": message.thinking}
        if message.calls:
            form["tool_calls"] = [self._call(call) for call in message.calls]
        if message.role == "tool":
            call = calls.get(message.call_id, ToolCall(message.call_id, "", ""))
            form |= {"tool_call_id": call.said or call.id, "name": call.name}
        return form

    def _call(self, call: ToolCall) -> dict[str, Any]:
        shown: Any = call.arguments
        if not self._as_text:
            try:
                parsed = json.loads(call.arguments)
                shown = parsed if isinstance(parsed, dict) else shown
            except ValueError:
                pass
        # A model that names its calls itself (Kimi) is shown those names.
        return {"type": "function", "id": call.said or call.id, "function": {"name": call.name, "arguments": shown}}

    def _takes_objects(self) -> bool:
        self._as_text = False
        question = {"role": "user", "content": "x"}
        answer = {
            "role": "assistant",
            "content": "",
            "tool_calls": [self._call(ToolCall("callaaaa1", "f", '{"a": 1}'))],
        }
        try:
            self._template.render([question, answer])
        except TemplateError:
            self._as_text = True
            text = {
                "role": "assistant",
                "content": "",
                "tool_calls": [self._call(ToolCall("callaaaa1", "f", '{"a": 1}'))],
            }
            try:
                self._template.render([question, text])
            except TemplateError:
                return True
            return False
        return True


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
