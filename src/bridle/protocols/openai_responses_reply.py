"""What the OpenAI Responses API answers: the response, its stream of numbered events, errors.

Items follow the order of the reply's parts. Thinking is told as a reasoning summary, which is the form every client of
this API shows and keeps; `encrypted_content` and the ids of all items carry the turn's identity. `created_at` is 0:
protocols have no clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from bridle.errors import BridleError, InfrastructureError, PromptTooLong
from bridle.messages import Document, FinishReason, Image, ModelRequest, Part, Reply, Text, Thinking, ToolCall, Usage
from bridle.protocols.arguments import freeform_input, is_object
from bridle.protocols.openai_chat_reply import error_body
from bridle.protocols.openai_responses_items import item_id
from bridle.protocols.sse import CONTENT_TYPE, event, lacking

__all__ = ["NAMESPACED", "RESPONSE_ID", "OpenAIResponsesStream", "error_body", "response_body"]

RESPONSE_ID = "resp_"
NAMESPACED = "__"
"""Between a namespace and a tool's name, where the name alone would not be unique."""
CUT: frozenset[FinishReason] = frozenset({"length", "abort"})


class OpenAIResponsesStream:
    """One streamed response. `_items` have been opened, and only the newest is open; `_texts`: what was sent of those
    that hold text or thinking."""

    content_type = CONTENT_TYPE

    def __init__(self, request: ModelRequest, reply_id: str, signature: str) -> None:
        self._request = request
        self._reply_id = reply_id
        self._turn = _identity(signature, reply_id)
        self._sequence = 0
        self._items = 0
        self._texts: list[tuple[type[Text] | type[Thinking], list[str]]] = []

    def start(self, usage: Usage) -> bytes:
        return self._lifecycle("created") + self._lifecycle("in_progress")

    def thinking(self, text: str, index: int = 0) -> bytes:
        return self._grow(Thinking, text)

    def text(self, text: str, index: int = 0) -> bytes:
        return self._grow(Text, text)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        body = response_body(self._request, reply)
        parts, items = reply.message.parts, body["output"]
        begun = self._items
        sent = self._complete(parts)
        whole = [self._whole(number, parts[number], items[number]) for number in range(begun, len(parts))]
        return b"".join([sent, *whole, self._event(f"response.{body['status']}", response=body)])

    def ping(self) -> bytes:
        """Codex's idle timer counts events alone, so it is one that clients have had already. Nothing may come before
        `response.created` but what is no event."""
        return self._lifecycle("in_progress") if self._sequence else b": ping\n\n"

    def error(self, error: BridleError) -> bytes:
        failed = {"code": _failure(error), "message": error_body(error)["error"]["message"]}
        return self._event("response.failed", response=self._head("failed") | {"error": failed})

    def _grow(self, kind: type[Text] | type[Thinking], text: str) -> bytes:
        """More of the newest item, or a new one when the kind changes."""
        before = b""
        if not self._texts or self._texts[-1][0] is not kind:
            before = self._close() + self._open(kind)
        self._texts[-1][1].append(text)
        return before + self._delta(text)

    def _open(self, kind: type[Text] | type[Thinking]) -> bytes:
        number = self._items
        self._items += 1
        self._texts.append((kind, []))
        empty = _item(self._request, self._turn, number, kind(""), "in_progress")
        added = self._event("response.output_item.added", output_index=number, item=empty)
        return added + self._event(f"response.{_PART[kind]}.added", **self._place(), part=_words(kind, ""))

    def _delta(self, text: str) -> bytes:
        kind, _ = self._texts[-1]
        return self._event(f"response.{_TEXT[kind]}.delta", **self._place(), delta=text, **_LOGPROBS[kind])

    def _close(self) -> bytes:
        """Ends the newest item."""
        if not self._texts:
            return b""
        number = self._items - 1
        kind, pieces = self._texts[-1]
        text, place = "".join(pieces), self._place()
        item = _item(self._request, self._turn, number, kind(text), "completed")
        return b"".join(
            [
                self._event(f"response.{_TEXT[kind]}.done", **place, text=text, **_LOGPROBS[kind]),
                self._event(f"response.{_PART[kind]}.done", **place, part=_words(kind, text)),
                self._event("response.output_item.done", output_index=number, item=item),
            ]
        )

    def _complete(self, parts: Sequence[Part]) -> bytes:
        """What the streamed items still lack."""
        rest = lacking(self._texts, parts, "item")
        if rest:
            self._texts[-1][1].append(rest)
        return (self._delta(rest) if rest else b"") + self._close()

    def _whole(self, number: int, part: Part, item: dict[str, Any]) -> bytes:
        if isinstance(part, Text | Thinking):
            opened = self._open(type(part))
            self._texts[-1][1].append(part.text)
            return opened + (self._delta(part.text) if part.text else b"") + self._close()
        self._items += 1
        field, name = _CALLED[item["type"]]
        opening = item | {"status": "in_progress"} | ({field: ""} if name else {})
        events = [self._event("response.output_item.added", output_index=number, item=opening)]
        if name:
            place = {"item_id": item["id"], "output_index": number}
            events.append(self._event(f"response.{name}.delta", **place, delta=item[field]))
            events.append(self._event(f"response.{name}.done", **place, **{field: item[field]}))
        events.append(self._event("response.output_item.done", output_index=number, item=item))
        return b"".join(events)

    def _place(self) -> dict[str, Any]:
        number = self._items - 1
        kind, _ = self._texts[-1]
        return {"item_id": _id(kind, self._turn, number), "output_index": number, _INDEX[kind]: 0}

    def _lifecycle(self, status: str) -> bytes:
        return self._event(f"response.{status}", response=self._head("in_progress"))

    def _head(self, status: str) -> dict[str, Any]:
        return _head(self._request, self._reply_id, self._request.model, status)

    def _event(self, name: str, **fields: Any) -> bytes:
        data = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event(data, name)


def response_body(request: ModelRequest, reply: Reply) -> dict[str, Any]:
    cut = reply.finish_reason in CUT
    turn = _identity(reply.signature or next(iter(reply.message.signatures), ""), reply.id)
    if request.kind == "compaction":
        output = [summary_item(turn)]
    else:
        output = [_item(request, turn, number, part, "completed") for number, part in enumerate(reply.message.parts)]
    body = _head(request, reply.id, reply.model, "incomplete" if cut else "completed")
    reason = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
    return body | reason | {"output": output, "usage": _usage(reply.usage)}


def summary_item(turn: str) -> dict[str, Any]:
    """A summary, told by the identity of its turn alone."""
    return {"id": item_id("cmp", turn, 0), "type": "compaction", "encrypted_content": turn}


_PART: dict[type, str] = {Text: "content_part", Thinking: "reasoning_summary_part"}
_TEXT: dict[type, str] = {Text: "output_text", Thinking: "reasoning_summary_text"}
_INDEX: dict[type, str] = {Text: "content_index", Thinking: "summary_index"}
_LOGPROBS: dict[type, dict[str, Any]] = {Text: {"logprobs": []}, Thinking: {}}
_CALLED = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "local_shell_call": ("action", ""),
}
"""The field of a call that is streamed, and its events' name, "" where it comes in one piece."""


def _identity(signature: str, reply_id: str) -> str:
    """What of a turn its items' ids carry: alphanumeric, so that it can be read out of them again."""
    return signature if signature.isalnum() and signature.isascii() else re.sub(r"[^A-Za-z0-9]", "", reply_id) or "0"


def _id(kind: type, turn: str, number: int) -> str:
    return item_id("msg" if kind is Text else "rs", turn, number)


def _head(request: ModelRequest, reply_id: str, model: str, status: str) -> dict[str, Any]:
    wishes = request.wishes
    return {
        "id": RESPONSE_ID + reply_id,
        "object": "response",
        "created_at": 0,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": wishes.max_tokens,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": wishes.parallel_calls is not False,
        "previous_response_id": RESPONSE_ID + request.previous if request.previous else None,
        "reasoning": {"effort": request.switches.effort or None, "summary": None},
        "store": request.store,
        "temperature": wishes.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": _tool_choice(request),
        "tools": [],
        "top_p": wishes.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _tool_choice(request: ModelRequest) -> Any:
    wishes = request.wishes
    tools = [tool for tool in request.tools if tool.name in wishes.allowed]
    named = [
        {"type": tool.form, **({} if tool.form == "local_shell" else {"name": _bare(tool.name, tool.namespace)})}
        for tool in tools
    ]
    if not named:
        return wishes.tool_choice
    if wishes.tool_choice == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "mode": wishes.tool_choice, "tools": named}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _item(request: ModelRequest, turn: str, number: int, part: Part, status: str) -> dict[str, Any]:
    match part:
        case Text():
            content = [_words(Text, part.text)] if part.text else []
            head = {"id": _id(Text, turn, number), "type": "message", "role": "assistant", "status": status}
            return head | {"content": content}
        case Thinking():
            summary = [_words(Thinking, part.text)] if part.text else []
            head = {"id": _id(Thinking, turn, number), "type": "reasoning", "status": status}
            return head | {"summary": summary, "encrypted_content": turn}
        case ToolCall():
            return _call(request, turn, number, part)
        case Image() | Document():
            raise ValueError("an answer of this protocol holds no images or files")


def _words(kind: type, text: str) -> dict[str, Any]:
    if kind is Thinking:
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(request: ModelRequest, turn: str, number: int, call: ToolCall) -> dict[str, Any]:
    """In the form its tool was offered in."""
    tool = next((tool for tool in request.tools if tool.name == call.name), None)
    form, space = ("function", "") if tool is None else (tool.form, tool.namespace)
    head: dict[str, Any] = {"call_id": call.id, "status": "completed"}
    if form == "local_shell" and is_object(call.arguments):
        action = {"env": {}, **msgspec.json.decode(call.arguments), "type": "exec"}
        return {"id": call.id, "type": "local_shell_call", **head, "action": action}
    head |= {"name": _bare(call.name, space)} | ({"namespace": space} if space else {})
    if form == "custom":
        said = freeform_input(call.arguments)
        return {"id": item_id("ctc", turn, number), "type": "custom_tool_call", **head, "input": said}
    return {"id": item_id("fc", turn, number), "type": "function_call", **head, "arguments": call.arguments}


def _bare(name: str, space: str) -> str:
    return name.removeprefix(space + NAMESPACED) if space else name


def _failure(error: BridleError) -> str:
    """Codex tells by the code whether to try again: it does on those it does not know, and on server_error."""
    if isinstance(error, PromptTooLong):
        return "context_length_exceeded"
    if error.status == 429:
        return "rate_limit_exceeded"
    retryable = isinstance(error, InfrastructureError) and error.retryable
    return "server_error" if retryable or error.status >= 500 else "invalid_prompt"
