"""Items of the OpenAI Responses API and what they are in a conversation.

One answer is several items here. What comes back in a row is one message again, as it was one draw: a result names a
call of the message before it, so calls of one turn must not be told apart. The row is cut where the ids of items name
different turns (Codex keeps what it had of a stream that broke off), and where text begins anew behind text without a
call; a session puts such pieces together if they were one draw after all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Message, Note, Part, Role, Text, Thinking, ToolCall, signed
from bridle.protocols.arguments import freeform_arguments
from bridle.protocols.base import Said
from bridle.protocols.wire import file_parts, linked_file, linked_image, read, texts

OWN_ID = re.compile(r"(?P<kind>msg|rs|fc|ctc|cmp)_(?P<turn>[A-Za-z0-9]+)_(?P<part>\d+)")
"""What `item_id` writes. Agents make ids of their own for what they say, none of this form."""

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class InputText(msgspec.Struct, tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag="output_text"):
    text: str


class PlainText(msgspec.Struct, tag="text"):
    text: str


class Refusal(msgspec.Struct, tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag="input_image"):
    image_url: str | None = None


class InputFile(msgspec.Struct, tag="input_file"):
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


Content = str | list[InputText | OutputText | PlainText | Refusal | InputImage | InputFile]


class MessageItem(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None


class Words(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct):
    id: str | None = None
    summary: list[Words] | None = None
    content: list[Words] | None = None
    encrypted_content: str | None = None


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None


class CustomCall(msgspec.Struct):
    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None


class LocalShellCall(msgspec.Struct):
    action: dict[str, Any]
    call_id: str | None = None
    id: str | None = None


class CallOutput(msgspec.Struct):
    """The output of a local shell call names its call by `id`."""

    output: Content
    call_id: str | None = None
    id: str | None = None


class ItemReference(msgspec.Struct):
    """An item of an answer by its id."""

    id: str


class Compaction(msgspec.Struct):
    """A summary that was made here, by the identity of its turn."""

    encrypted_content: str


class CompactionTrigger(msgspec.Struct):
    """Asks for a summary of all items before it, in place of an answer."""


Item = (
    MessageItem
    | ReasoningItem
    | FunctionCall
    | CustomCall
    | LocalShellCall
    | CallOutput
    | ItemReference
    | Compaction
    | CompactionTrigger
)


class Head(msgspec.Struct):
    """`type` may be left out of a message, and of nothing else."""

    type: str = "message"


TRIGGER = "compaction_trigger"
HEAD = msgspec.json.Decoder(Head)
ITEMS: dict[str, msgspec.json.Decoder[Any]] = {
    "message": msgspec.json.Decoder(MessageItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
    "function_call": msgspec.json.Decoder(FunctionCall),
    "function_call_output": msgspec.json.Decoder(CallOutput),
    "custom_tool_call": msgspec.json.Decoder(CustomCall),
    "custom_tool_call_output": msgspec.json.Decoder(CallOutput),
    "local_shell_call": msgspec.json.Decoder(LocalShellCall),
    "local_shell_call_output": msgspec.json.Decoder(CallOutput),
    "item_reference": msgspec.json.Decoder(ItemReference),
    "compaction": msgspec.json.Decoder(Compaction),
    "compaction_summary": msgspec.json.Decoder(Compaction),
    TRIGGER: msgspec.json.Decoder(CompactionTrigger),
}
CONTENT = "input_text, input_image, input_file, output_text, text, refusal"
KNOWN = {
    "role": "user, assistant, system, developer",
    "content[].type": CONTENT,
    "output[].type": CONTENT,
}

Names = Mapping[tuple[str, str], str]
"""(namespace, name on the wire) -> the name models see."""


def ends_in_trigger(content: str | Sequence[msgspec.Raw]) -> bool:
    """Whether the last item asks for a summary."""
    if isinstance(content, str) or not content:
        return False
    try:
        return read(bytes(content[-1]), HEAD, {})[0].type == TRIGGER
    except BadRequest:
        return False


def input_messages(
    content: str | Sequence[msgspec.Raw], names: Names, notes: list[Note], said: Said
) -> Iterator[Message]:
    if isinstance(content, str):
        yield Message("user", texts(content))
        return
    row: list[Piece] = []
    for index, raw in enumerate(content):
        item = _item(raw, index, notes)
        if item is None:
            continue
        if (piece := _piece(item, names, index, notes, said)) is None:
            yield from _rows(row)
            row = []
            yield _other(item, index, said)
        elif piece.parts:
            row.append(piece)
    yield from _rows(row)


def item_id(kind: str, turn: str, index: int) -> str:
    """`turn`: the identity that comes back with it, alphanumeric."""
    return f"{kind}_{turn}_{index}"


class Piece(msgspec.Struct, frozen=True):
    """One assistant item. `turn`: the identity its id carries, "" for none."""

    turn: str
    parts: tuple[Part, ...]

    @property
    def calls(self) -> bool:
        return isinstance(self.parts[-1], ToolCall)


def _item(raw: msgspec.Raw, index: int, notes: list[Note]) -> Item | None:
    """None for items of tools that run at the provider, and for those nobody here has heard of."""
    try:
        body = bytes(raw)
        head, _ = read(body, HEAD, {})
        if head.type not in ITEMS:
            notes.append(Note("item_dropped", f"input[{index}]: an item of type {head.type}"))
            return None
        item, mended = read(body, ITEMS[head.type], KNOWN)
    except BadRequest as error:
        raise BadRequest(f"input[{index}]: {error.message}") from error
    notes.extend(mended)
    return item  # type: ignore[no-any-return]


def _piece(item: Item, names: Names, index: int, notes: list[Note], said: Said) -> Piece | None:
    match item:
        case MessageItem(role="assistant"):
            return Piece(_turn(item.id), _seen(item.content, index))
        case ReasoningItem():
            return _reasoning(item, index, notes)
        case FunctionCall():
            return Piece(_turn(item.id), (ToolCall(item.call_id, _name(item, names), item.arguments),))
        case CustomCall():
            arguments = freeform_arguments(item.input)
            return Piece(_turn(item.id), (ToolCall(item.call_id, _name(item, names), arguments),))
        case LocalShellCall():
            action = {key: value for key, value in item.action.items() if key != "type"}
            call = ToolCall(_call_id(item, index), "local_shell", msgspec.json.encode(action).decode())
            return Piece(_turn(item.id), (call,))
        case ItemReference(id) if not id.startswith("cmp_"):
            return Piece(_turn(id), (_part(id, index, said),))
    return None


def _part(id: str, index: int, said: Said) -> Part:
    """What of an answer was sent as the item `id`. Shell actions go by the ids of their calls."""
    own = OWN_ID.fullmatch(id)
    message = said(own["turn"] if own else id)
    for number, part in enumerate(message.parts if message else ()):
        if own["part"] == str(number) if own else isinstance(part, ToolCall) and part.id == id:
            return part
    raise _unknown(id, index)


def _unknown(id: str, index: int) -> BadRequest:
    return BadRequest(
        f"input[{index}]: no item {id!r} in what was answered in this session; send the item itself in its place"
    )


def _reasoning(item: ReasoningItem, index: int, notes: list[Note]) -> Piece:
    """Its text may come back as content or as summary, whichever the client kept."""
    text = "\n".join(words.text for words in item.content or item.summary or ())
    turn = _turn(item.id)
    if not text and not turn and item.encrypted_content:
        notes.append(Note("redacted_thinking", f"input[{index}]: encrypted reasoning without text"))
    signature = turn or item.encrypted_content or ""
    return Piece(turn, (Thinking(text, signature),) if text or signature else ())


def _turn(id: str | None) -> str:
    own = OWN_ID.fullmatch(id or "")
    return own["turn"] if own else ""


def _name(call: FunctionCall | CustomCall, names: Names) -> str:
    return names.get((call.namespace or "", call.name), call.name)


def _call_id(item: LocalShellCall | CallOutput, index: int) -> str:
    if name := item.call_id or item.id:
        return name
    raise BadRequest(f"input[{index}].call_id: required, but missing")


def _rows(pieces: Sequence[Piece]) -> Iterator[Message]:
    """Pieces in a row as messages."""
    row: list[Piece] = []
    for piece in pieces:
        if row and _begins(piece, row):
            yield _assistant(row)
            row = []
        row.append(piece)
    if row:
        yield _assistant(row)


def _begins(piece: Piece, row: Sequence[Piece]) -> bool:
    turn = next((one.turn for one in row if one.turn), "")
    if turn and piece.turn:
        return turn != piece.turn
    # Without ids on both sides. Behind a call it must stay: a result may name that call.
    spoken = any(isinstance(part, Text) for one in row for part in one.parts)
    return spoken and not piece.calls and not any(one.calls for one in row)


def _assistant(row: Sequence[Piece]) -> Message:
    parts = tuple(part for piece in row for part in piece.parts)
    return signed(Message("assistant", parts), next((piece.turn for piece in row if piece.turn), ""))


def _other(item: Item, index: int, said: Said) -> Message:
    match item:
        case MessageItem():
            role: Role = item.role
            return Message(role, _seen(item.content, index))
        case CallOutput():
            return Message("tool", _seen(item.output, index), call_id=_call_id(item, index))
        case ItemReference(id):
            return _summary(_turn(id), id, index, said)
        case Compaction(identity):
            return _summary(identity, identity, index, said)
    raise BadRequest(f"input[{index}]: {TRIGGER} asks to summarize what stands before it, so it must be the last item")


def _summary(identity: str, name: str, index: int, said: Said) -> Message:
    """A message by itself: what follows it was another draw, whether it has an id or not."""
    if (message := said(identity)) is None:
        raise _unknown(name, index)
    return signed(message, identity)


def _seen(content: Content, index: int) -> tuple[Part, ...]:
    if isinstance(content, str):
        return texts(content)
    parts: list[Part] = []
    for position, part in enumerate(content):
        match part:
            case InputText() | OutputText() | PlainText():
                parts.extend(texts(part.text))
            case InputImage():
                parts.append(linked_image(_given(part.image_url, f"input[{index}].content[{position}].image_url")))
            case InputFile():
                parts.extend(_file(part, f"input[{index}].content[{position}].file_data"))
    return tuple(parts)


def _file(part: InputFile, where: str) -> Sequence[Part]:
    title = part.filename or ""
    data = _given(part.file_data or part.file_url, where)
    if part.file_data and not data.startswith("data:"):
        return file_parts("application/octet-stream", data, title)
    return linked_file(data, title)


def _given(value: str | None, where: str) -> str:
    if value is None:
        raise BadRequest(f"{where}: required; files are not kept by their ids here, so send the data or a URL")
    return value
