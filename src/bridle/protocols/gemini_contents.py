"""From a Gemini conversation to messages: what was said by whom, and which call a function response answers.

Everything the model said between two contents of the user's is one message, in whatever pieces it stands there: the
chat sessions of Google's clients keep a streamed answer as one content for each chunk. It is cut where signatures name
another turn: Gemini CLI takes the note away that stood between an answer cut short and the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Document, Image, Message, Note, Part, Text, Thinking, ToolCall
from bridle.protocols.arguments import from_object
from bridle.protocols.gemini_wire import (
    Blob,
    Content,
    FileData,
    FunctionCall,
    FunctionResponse,
    WirePart,
    standard_base64,
    unsealed,
)
from bridle.protocols.wire import file_parts, texts

Run = Sequence[tuple[int, Content]]
"""Contents of one side in a row, each with its index."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call of the turn before: the id it has here, the id the client knows it by ("" for none), its function."""

    id: str
    client_id: str
    name: str


def system_message(instruction: str | Content | list[WirePart] | None, notes: list[Note]) -> Iterator[Message]:
    if isinstance(instruction, str):
        parts: tuple[Part, ...] = texts(instruction)
    else:
        wire = instruction.parts if isinstance(instruction, Content) else instruction
        where = "systemInstruction"
        parts = tuple(part for at, one in enumerate(wire or ()) for part in _read(one, f"{where}.parts[{at}]", notes))
    if parts:
        yield Message("system", parts)


def conversation(contents: Sequence[Content], notes: list[Note]) -> Iterator[Message]:
    unnamed = count()
    calls: list[Called] = []
    for by_model, run in groupby(enumerate(contents), key=lambda pair: pair[1].role == "model"):
        if by_model:
            for row in _rows(run):
                said, calls = _said(row, unnamed, notes)
                yield said
        else:
            yield from _told(list(run), calls, notes)


# --- the model's side -------------------------------------------------------------------------------------------------


def _rows(run: Iterable[tuple[int, Content]]) -> Iterator[Run]:
    """The contents of one turn each. Behind a call they stay together: a response may name that call."""
    row: list[tuple[int, Content]] = []
    turn = ""
    for index, content in run:
        own = _turn(content)
        if turn and own and own != turn and not any(part.function_call for _, said in row for part in said.parts or ()):
            yield row
            row, turn = [], ""
        row.append((index, content))
        turn = turn or own
    yield row


def _turn(content: Content) -> str:
    signatures = (unsealed(part.thought_signature).signature for part in content.parts or ())
    return next(filter(None, signatures), "")


def _said(run: Run, unnamed: Iterator[int], notes: list[Note]) -> tuple[Message, list[Called]]:
    parts: list[Part] = []
    calls: list[Called] = []
    signature = ""
    for index, content in run:
        for position, wire in enumerate(content.parts or ()):
            identity = unsealed(wire.thought_signature)
            signature = signature or identity.signature
            if wire.function_call is not None:
                called = _called(wire.function_call, identity.call, unnamed)
                calls.append(called)
                parts.append(ToolCall(called.id, called.name, from_object(wire.function_call.args or {})))
            elif wire.text is not None:
                _grow(parts, Thinking(wire.text) if wire.thought else Text(wire.text))
            else:
                parts.extend(_read(wire, f"contents[{index}].parts[{position}]", notes))
    form = "list" if len(run) > 1 else ""
    return Message("assistant", _signed(parts, signature), form=form), calls


def _called(call: FunctionCall, sealed_id: str, unnamed: Iterator[int]) -> Called:
    """The id comes from the signature, else from the client, else from the call's place in the conversation, so that
    it is the same in every request."""
    known = call.id or ""
    return Called(sealed_id or known or f"unnamed{next(unnamed)}", known, call.name)


def _grow(parts: list[Part], piece: Text | Thinking) -> None:
    """Pieces of one kind in a row are one part: they are the chunks of a stream, joined or not."""
    last = parts[-1] if parts else None
    if isinstance(last, Text | Thinking) and type(last) is type(piece):
        parts[-1] = msgspec.structs.replace(last, text=last.text + piece.text)
    elif piece.text:
        parts.append(piece)


def _signed(parts: Sequence[Part], signature: str) -> tuple[Part, ...]:
    """The turn's signature stands on whatever part carried it; here it belongs to the thinking, sent back or not."""
    if not signature:
        return tuple(parts)
    if not any(isinstance(part, Thinking) for part in parts):
        return (Thinking("", signature), *parts)
    return tuple(
        msgspec.structs.replace(part, signature=signature) if isinstance(part, Thinking) else part for part in parts
    )


# --- the user's side --------------------------------------------------------------------------------------------------


def _told(run: Run, calls: Sequence[Called], notes: list[Note]) -> Iterator[Message]:
    """Function responses become messages of their own; what stands between them stays where it stands."""
    answers = iter(_answered(run, calls))
    for index, content in run:
        parts: list[Part] = []
        results = False
        for position, wire in enumerate(content.parts or ()):
            where = f"contents[{index}].parts[{position}]"
            if wire.function_call is not None:
                raise BadRequest(f'{where}.functionCall: only a content with role "model" holds calls')
            if wire.function_response is None:
                parts.extend(_read(wire, where, notes))
                continue
            if parts:
                yield Message("user", tuple(parts))
            parts, results = [], True
            yield _result(wire.function_response, next(answers))
        if parts or not results:
            yield Message("user", tuple(parts))


def _answered(run: Run, calls: Sequence[Called]) -> list[str]:
    """-> the id of the call that each response answers, by id where both sides have one, else by name and order."""
    responses = [
        (f"contents[{index}].parts[{position}].functionResponse", wire.function_response)
        for index, content in run
        for position, wire in enumerate(content.parts or ())
        if wire.function_response is not None
    ]
    by_id = {call.client_id: call for call in calls if call.client_id} | {call.id: call for call in calls}
    found = [by_id.get(response.id or "") for _, response in responses]
    left = [call for call in calls if call not in found]
    for at, (where, response) in enumerate(responses):
        if found[at] is None:
            call = next((call for call in left if call.name == response.name), None)
            if call is None:
                raise BadRequest(f"{where}: no call of {_short(response.name)} waits for it; {_waiting(left)}")
            left.remove(call)
            found[at] = call
    return [call.id for call in found if call is not None]


def _waiting(calls: Sequence[Called]) -> str:
    names = ", ".join(_short(call.name) for call in calls[:5]) or "none"
    return f"calls of the turn before without a response: {names}{' …' if len(calls) > 5 else ''}"


def _short(name: str | None) -> str:
    return repr((name or "")[:60])


def _result(response: FunctionResponse, call_id: str) -> Message:
    """`output` and `error` are Google's own words for what a function gave; without them all of it is the output."""
    said: Any = response.response or ""
    is_error = isinstance(said, dict) and said.keys() == {"error"}
    if isinstance(said, dict) and len(said) == 1 and said.keys() <= {"output", "error"}:
        (said,) = said.values()
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    files = [part for wire in response.parts or () for part in _file(wire.inline_data or wire.file_data)]
    return Message("tool", (*texts(text), *files), call_id=call_id, is_error=is_error)


# --- parts of either side ---------------------------------------------------------------------------------------------


def _read(wire: WirePart, where: str, notes: list[Note]) -> Iterator[Part]:
    if wire.text is not None:
        yield from texts(wire.text)
    elif (file := wire.inline_data or wire.file_data) is not None:
        yield from _file(file)
    elif wire.executable_code is not None or wire.code_execution_result is not None:
        notes.append(Note("code_execution_dropped", f"{where} left out: it was run by the provider"))
    elif wire.thought_signature is None:
        notes.append(Note("part_dropped", f"{where} left out: nothing in it is known here"))


def _file(file: Blob | FileData | None) -> Iterator[Part]:
    match file:
        case Blob():
            data = standard_base64(file.data)
            if file.mime_type.startswith("image/"):
                yield Image(file.mime_type, data)
            else:
                yield from file_parts(file.mime_type, data, file.display_name or "")
        case FileData():
            kind = file.mime_type or ""
            is_image = kind.startswith("image/")
            yield Image(kind, file.file_uri) if is_image else Document(kind, file.file_uri, file.display_name or "")
