"""What the Anthropic Messages API answers: the message, its stream of events, errors.

An assistant message of this protocol is a list of blocks, in the order of the reply's parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bridle.errors import BridleError
from bridle.messages import Document, FinishReason, Image, Message, Part, Reply, Text, Thinking, ToolCall, Usage
from bridle.protocols.arguments import as_object
from bridle.protocols.sse import CONTENT_TYPE, event, lacking

STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "abort": "max_tokens",
}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class AnthropicStream:
    """One streamed message. Blocks are numbered as they open; only the newest one is open."""

    content_type = CONTENT_TYPE

    def __init__(self, model: str, reply_id: str, signature: str) -> None:
        self._model = model
        self._reply_id = reply_id
        self._signature = signature
        self._blocks: list[tuple[type[Text] | type[Thinking], list[str]]] = []

    def start(self, usage: Usage) -> bytes:
        message = _head(self._reply_id, self._model, usage)
        return event({"type": "message_start", "message": message}, "message_start")

    def thinking(self, text: str, index: int = 0) -> bytes:
        return self._grow(Thinking, text)

    def text(self, text: str, index: int = 0) -> bytes:
        return self._grow(Text, text)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        self._check_signature(reply.message)
        parts = reply.message.parts
        begun = len(self._blocks)
        whole = [_whole_block(begun + later, part) for later, part in enumerate(parts[begun:])]
        return b"".join([self._complete(parts), *whole, _terminal(reply)])

    def ping(self) -> bytes:
        return event({"type": "ping"}, "ping")

    def error(self, error: BridleError) -> bytes:
        return event(error_body(error), "error")

    def _grow(self, kind: type[Text] | type[Thinking], text: str) -> bytes:
        """More of the newest block, or a new one when the kind changes."""
        before = b""
        if not self._blocks or self._blocks[-1][0] is not kind:
            before = self._close() + _start(len(self._blocks), kind(""))
            self._blocks.append((kind, []))
        self._blocks[-1][1].append(text)
        return before + _delta(len(self._blocks) - 1, kind, text)

    def _close(self) -> bytes:
        """Ends the newest block, signed when it is thinking."""
        if not self._blocks:
            return b""
        index = len(self._blocks) - 1
        signed = _signed(index, self._signature) if self._blocks[-1][0] is Thinking else b""
        return signed + _stop(index)

    def _complete(self, parts: Sequence[Part]) -> bytes:
        """What the streamed blocks still lack."""
        rest = lacking(self._blocks, parts, "block")
        return (_delta(len(self._blocks) - 1, self._blocks[-1][0], rest) if rest else b"") + self._close()

    def _check_signature(self, message: Message) -> None:
        """A block that was closed mid-stream can no longer be signed with what the reply says."""
        for part in message.parts:
            if isinstance(part, Thinking) and part.signature != self._signature:
                raise ValueError(
                    f"thinking is signed {self._signature!r} in the stream, {part.signature!r} in the reply"
                )


def message_body(reply: Reply) -> dict[str, Any]:
    content = [_block(part) for part in reply.message.parts]
    return _head(reply.id, reply.model, reply.usage) | {
        "content": content,
        **_ending(reply),
    }


def _ending(reply: Reply) -> dict[str, str | None]:
    if reply.stop_sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": STOP_REASONS[reply.finish_reason], "stop_sequence": None}


def _head(reply_id: str, model: str, usage: Usage) -> dict[str, Any]:
    return {
        "id": reply_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Thinking():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCall():
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": msgspec.Raw(as_object(part.arguments).encode()),
            }
        case Image() | Document():
            raise ValueError("an assistant message of this protocol holds no images or files")


def _whole_block(index: int, part: Part) -> bytes:
    match part:
        case Text():
            return _start(index, Text("")) + _delta(index, Text, part.text) + _stop(index)
        case Thinking():
            opened = _start(index, Thinking("")) + _delta(index, Thinking, part.text)
            return opened + _signed(index, part.signature) + _stop(index)
        case ToolCall():
            opened = _start(index, ToolCall(part.id, part.name, "{}"))
            return (
                opened
                + _change(index, {"type": "input_json_delta", "partial_json": as_object(part.arguments)})
                + _stop(index)
            )
        case Image() | Document():
            raise ValueError("an assistant message of this protocol holds no images or files")


def _start(index: int, empty: Part) -> bytes:
    return event({"type": "content_block_start", "index": index, "content_block": _block(empty)}, "content_block_start")


def _delta(index: int, kind: type[Text] | type[Thinking], text: str) -> bytes:
    if kind is Text:
        return _change(index, {"type": "text_delta", "text": text})
    return _change(index, {"type": "thinking_delta", "thinking": text})


def _signed(index: int, signature: str) -> bytes:
    return _change(index, {"type": "signature_delta", "signature": signature})


def _change(index: int, delta: dict[str, str]) -> bytes:
    return event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")


def _stop(index: int) -> bytes:
    return event({"type": "content_block_stop", "index": index}, "content_block_stop")


def _terminal(reply: Reply) -> bytes:
    ended = {"type": "message_delta", "delta": _ending(reply), "usage": _usage(reply.usage)}
    return event(ended, "message_delta") + event({"type": "message_stop"}, "message_stop")


def error_body(error: BridleError) -> dict[str, Any]:
    kind = ERROR_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
