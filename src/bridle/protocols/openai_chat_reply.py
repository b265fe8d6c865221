"""What the OpenAI Chat Completions API answers: the completion, its stream of chunks, errors.

Text and thinking of a reply are flattened into one string each, parts joined by newlines. `created` is 0: protocols
have no clock, and clients only ask for an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridle.errors import BridleError, PromptTooLong
from bridle.messages import FinishReason, Message, ModelRequest, Reply, ToolCall, Usage
from bridle.protocols.arguments import freeform_input
from bridle.protocols.sse import CONTENT_TYPE, DONE, event, unsent

FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "abort": "length",
}
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class OpenAIChatStream:
    """One streamed completion of one or several draws, numbered by `index`."""

    content_type = CONTENT_TYPE

    def __init__(self, request: ModelRequest, reply_id: str) -> None:
        self._request = request
        self._freeform = freeform(request)
        self._head = {"id": reply_id, "object": "chat.completion.chunk", "created": 0, "model": request.model}
        self._draws = [Sent() for _ in range(request.wishes.n)]

    def start(self, usage: Usage) -> bytes:
        return b"".join(
            self._chunk(index, {"role": "assistant", "content": None}) for index in range(self._request.wishes.n)
        )

    def thinking(self, text: str, index: int = 0) -> bytes:
        return self._chunk(index, {"reasoning_content": self._draws[index].add("thinking", text)})

    def text(self, text: str, index: int = 0) -> bytes:
        return self._chunk(index, {"content": self._draws[index].add("text", text)})

    def finish(self, replies: Sequence[Reply]) -> bytes:
        draws = [chunk for index, reply in enumerate(replies) for chunk in self._rest(index, reply)]
        usage = [event(self._head | {"choices": [], "usage": _usage(replies)})] if self._request.include_usage else []
        return b"".join([*draws, *usage, DONE])

    def ping(self) -> bytes:
        """A chunk that adds nothing: the idle timers of several agents count events, not comments."""
        return self._chunk(0, {})

    def error(self, error: BridleError) -> bytes:
        return event(error_body(error))

    def _rest(self, index: int, reply: Reply) -> list[bytes]:
        """What of one draw was not sent, and its end."""
        message, sent = reply.message, self._draws[index]
        chunks = []
        if thinking := unsent("".join(sent.thinking), message.thinking):
            chunks.append(self._chunk(index, {"reasoning_content": thinking}))
        if (text := unsent("".join(sent.text), message.text)) or _content(message) == "":
            chunks.append(self._chunk(index, {"content": text}))
        for position, call in enumerate(message.calls):
            chunks.append(self._chunk(index, {"tool_calls": [{"index": position, **_call(call, self._freeform)}]}))
        if reply.logprobs is not None:
            chunks.append(self._chunk(index, {}, logprobs=_logprobs(reply)))
        chunks.append(self._chunk(index, {}, FINISH_REASONS[reply.finish_reason]))
        return chunks

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None, logprobs: object = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return event(self._head | {"choices": [choice]})


class Sent:
    """What of one draw has gone out. A newline stands between stretches of the same kind, as in `Message.text`."""

    def __init__(self) -> None:
        self.thinking: list[str] = []
        self.text: list[str] = []
        self._last = ""

    def add(self, kind: str, text: str) -> str:
        """-> the text as it goes out."""
        pieces = self.text if kind == "text" else self.thinking
        resumed = pieces and self._last != kind
        pieces.append(f"\n{text}" if resumed else text)
        self._last = kind
        return pieces[-1]


def freeform(request: ModelRequest) -> frozenset[str]:
    """Names of the tools whose calls carry text instead of arguments."""
    return frozenset(tool.name for tool in request.tools if tool.form == "custom")


def completion_body(request: ModelRequest, replies: Sequence[Reply]) -> dict[str, Any]:
    named = freeform(request)
    choices = [
        {
            "index": index,
            "message": _message(reply.message, named),
            "logprobs": _logprobs(reply),
            "finish_reason": FINISH_REASONS[reply.finish_reason],
        }
        for index, reply in enumerate(replies)
    ]
    return {
        "id": replies[0].id,
        "object": "chat.completion",
        "created": 0,
        "model": replies[0].model,
        "choices": choices,
        "usage": _usage(replies),
    }


def _message(message: Message, named: frozenset[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": _content(message)}
    if message.thinking:
        body["reasoning_content"] = message.thinking
    if message.calls:
        body["tool_calls"] = [_call(call, named) for call in message.calls]
    return body


def _content(message: Message) -> str | None:
    return message.text or (None if message.calls else "")


def _call(call: ToolCall, named: frozenset[str]) -> dict[str, Any]:
    if call.name in named:
        custom = {"name": call.name, "input": freeform_input(call.arguments)}
        return {"id": call.id, "type": "custom", "custom": custom}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    if reply.logprobs is None:
        return None
    content = [
        {"token": one.token, "logprob": one.logprob, "bytes": list(one.data), "top_logprobs": []}
        for one in reply.logprobs
    ]
    return {"content": content, "refusal": None}


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    """The prompt is counted once, the answers of all draws together."""
    prompt = replies[0].usage
    output = sum(reply.usage.output for reply in replies)
    return {
        "prompt_tokens": prompt.input,
        "completion_tokens": output,
        "total_tokens": prompt.input + output,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        "completion_tokens_details": {"reasoning_tokens": sum(reply.usage.reasoning for reply in replies)},
    }


def error_body(error: BridleError) -> dict[str, Any]:
    """Clients recognize an overlong prompt by this code and by this sentence."""
    message, code = error.message, error.kind
    if isinstance(error, PromptTooLong):
        code = "context_length_exceeded"
        message = (
            f"This model's maximum context length is {error.maximum} tokens. "
            f"However, your messages resulted in {error.tokens} tokens."
        )
    kind = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
