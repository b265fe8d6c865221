"""Messages of the OpenAI Chat Completions API and what they are in a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from bridle.errors import BadRequest
from bridle.messages import Message, Part, Thinking, ToolCall
from bridle.protocols.arguments import freeform_arguments
from bridle.protocols.wire import DATA_URL, file_parts, linked_file, linked_image, texts

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class TextPart(msgspec.Struct, tag="text"):
    text: str


class RefusalPart(msgspec.Struct, tag="refusal"):
    refusal: str


class ImageUrl(msgspec.Struct):
    url: str


class ImagePart(msgspec.Struct, tag="image_url"):
    image_url: ImageUrl


class File(msgspec.Struct):
    file_data: str | None = None
    filename: str | None = None


class FilePart(msgspec.Struct, tag="file"):
    file: File


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class CalledCustom(msgspec.Struct):
    name: str
    input: str


class Call(msgspec.Struct):
    """The type of a call may be missing: not every client sends it."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class SystemTurn(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextPart]


class DeveloperTurn(msgspec.Struct, tag_field="role", tag="developer"):
    content: str | list[TextPart]


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextPart | ImagePart | FilePart]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextPart | RefusalPart] | UnsetType | None = UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None
    function_call: CalledFunction | None = None


class ToolTurn(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[TextPart | ImagePart | FilePart]


class FunctionTurn(msgspec.Struct, tag_field="role", tag="function"): ...


Turn = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn | FunctionTurn
KNOWN = {
    "messages[].role": "system, developer, user, assistant, tool",
    "messages[].content[].type": (
        "text, image_url, file in user and tool messages; text, refusal in assistant messages; text in system messages"
    ),
    "messages[].tool_calls[].type": "function, custom",
}


def message(turn: Turn, at: str) -> Message:
    """`at`: where the turn stands, for errors."""
    match turn:
        case SystemTurn(content):
            return Message("system", _parts(content, at))
        case DeveloperTurn(content):
            return Message("developer", _parts(content, at))
        case UserTurn(content):
            return Message("user", _parts(content, at))
        case AssistantTurn():
            return _assistant(turn, at)
        case ToolTurn(call_id, content):
            return Message("tool", _parts(content, at), call_id=call_id)
        case FunctionTurn():
            raise BadRequest(f'{at}.role: "function" is no longer spoken; answer tool_calls with role "tool"')


def _assistant(turn: AssistantTurn, at: str) -> Message:
    """Reasoning comes back in the field it was read from, which is one of two."""
    if turn.function_call is not None:
        raise BadRequest(f"{at}.function_call: no longer spoken; use tool_calls")
    reasoning = turn.reasoning_content or turn.reasoning
    parts = (
        *([Thinking(reasoning)] if reasoning else []),
        *(_parts(turn.content, at) if turn.content else ()),
        *(_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(turn.tool_calls or [])),
    )
    return Message("assistant", parts, form=_form(turn))


def _call(call: Call, at: str) -> ToolCall:
    match call:
        case Call(type="function", function=CalledFunction(name, arguments)):
            return ToolCall(call.id, name, arguments)
        case Call(type="custom", custom=CalledCustom(name, text)):
            return ToolCall(call.id, name, freeform_arguments(text))
    raise BadRequest(f"{at}.{call.type}: required, but missing")


def _form(turn: AssistantTurn) -> str:
    """Own form: a string; without text null beside calls and "" alone."""
    match turn.content:
        case list():
            return "list"
        case UnsetType():
            return "absent"
        case None:
            return "" if turn.tool_calls else "null"
        case "":
            return "string" if turn.tool_calls else ""
    return ""


def _parts(content: str | Sequence[TextPart | RefusalPart | ImagePart | FilePart], at: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return texts(content)
    return tuple(part for index, wire in enumerate(content) for part in _part(wire, f"{at}.content[{index}]"))


def _part(wire: TextPart | RefusalPart | ImagePart | FilePart, at: str) -> Iterator[Part]:
    match wire:
        case TextPart(text):
            yield from texts(text)
        case ImagePart(image_url):
            yield linked_image(image_url.url)
        case FilePart(file):
            yield from _file(file, at)


def _file(file: File, at: str) -> Sequence[Part]:
    if file.file_data is None:
        raise BadRequest(f"{at}.file.file_data: required, because no files are kept here; send the file itself")
    if DATA_URL.fullmatch(file.file_data):
        return linked_file(file.file_data, file.filename or "")
    return file_parts("", file.file_data, file.filename or "")
