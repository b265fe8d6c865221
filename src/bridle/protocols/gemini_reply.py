"""What the Gemini API answers: candidates whole and as chunks, in events or in one JSON array; errors.

Google's clients take no comments between events (the regular expression of the JavaScript one stops at them) and drop a
streamed turn from their history for one chunk without parts: whatever is sent is a chunk with a part.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from bridle.errors import BridleError, PromptTooLong
from bridle.messages import FinishReason, ModelRequest, Part, Reply, Text, Thinking, TokenLogprob, ToolCall, Usage
from bridle.protocols.arguments import as_object
from bridle.protocols.gemini_wire import sealed
from bridle.protocols.sse import CONTENT_TYPE, lacking

FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "abort": "MAX_TOKENS",
}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
NOTHING = {"text": ""}
JSON_CONTENT_TYPE = "application/json; charset=utf-8"

WirePart = dict[str, Any]


class GeminiStream:
    """One streamed answer of one or several draws, numbered by `index`. `signature` is the first draw's."""

    def __init__(self, request: ModelRequest, reply_id: str, signature: str) -> None:
        self.content_type = CONTENT_TYPE if request.framing == "sse" else JSON_CONTENT_TYPE
        self._in_array = request.framing == "array"
        self._opened = False
        self._head = {"modelVersion": request.model, "responseId": reply_id}
        self._draws = [
            Sent(request.show_thinking, signature if index == 0 else "") for index in range(request.wishes.n)
        ]

    def start(self, usage: Usage) -> bytes:
        return self._chunk([_candidate(0, [NOTHING])], usage)

    def thinking(self, text: str, index: int = 0) -> bytes:
        return self._grown(index, Thinking, text)

    def text(self, text: str, index: int = 0) -> bytes:
        return self._grown(index, Text, text)

    def finish(self, replies: Sequence[Reply]) -> bytes:
        last = len(replies) - 1
        chunks = [
            self._chunk(
                [_ended(index, reply, self._draws[index].rest(reply) or [NOTHING])],
                _together(replies) if index == last else None,
            )
            for index, reply in enumerate(replies)
        ]
        return b"".join(chunks) + (b"\n]" if self._in_array else b"")

    def ping(self) -> bytes:
        return b"\n" if self._in_array else self._chunk([_candidate(0, [NOTHING])])

    def error(self, error: BridleError) -> bytes:
        """As Google sends it between events: without `data:`, which keeps its JavaScript client from seeing it."""
        body = _json(error_body(error))
        return self._element(body) + b"\n]" if self._in_array else body + b"\n\n"

    def _grown(self, index: int, kind: type[Text] | type[Thinking], text: str) -> bytes:
        parts = self._draws[index].grow(kind, text)
        return self._chunk([_candidate(index, parts)]) if parts else b""

    def _chunk(self, candidates: list[dict[str, Any]], usage: Usage | None = None) -> bytes:
        counted = {"usageMetadata": _usage(usage)} if usage is not None else {}
        body = _json({"candidates": candidates, **counted, **self._head})
        return self._element(body) if self._in_array else b"data: %s\n\n" % body

    def _element(self, body: bytes) -> bytes:
        before = b"\n," if self._opened else b"["
        self._opened = True
        return before + body


class Sent:
    """What of one draw has gone out, and how the rest of it is written.

    The signature stands on the first text, because Gemini CLI joins texts and keeps the fields of the first; on every
    call, with the call's id; on a part of its own where there is neither."""

    def __init__(self, show_thinking: bool, signature: str) -> None:
        self._show_thinking = show_thinking
        self._signature = signature
        self._blocks: list[tuple[type[Text] | type[Thinking], list[str]]] = []
        self._last: type[Part] | None = None
        self._signed = False

    def grow(self, kind: type[Text] | type[Thinking], text: str) -> list[WirePart]:
        """More of the newest block, or a new one when the kind changes."""
        if not self._blocks or self._blocks[-1][0] is not kind:
            self._blocks.append((kind, []))
            new = True
        else:
            new = False
        self._blocks[-1][1].append(text)
        return self._written(kind(text), new)

    def rest(self, reply: Reply) -> list[WirePart]:
        """What streaming left out."""
        self._sign(reply)
        parts = reply.message.parts
        rest = lacking(self._blocks, parts, "block")
        written = self._written(self._blocks[-1][0](rest), new=False) if rest else []
        written += [wire for part in parts[len(self._blocks) :] for wire in self._written(part, new=True)]
        if self._signature and not self._signed:
            written.append(NOTHING | {"thoughtSignature": sealed(self._signature)})
        return written

    def _sign(self, reply: Reply) -> None:
        """A text that has gone out can no longer be signed with what the reply says."""
        own = reply.signature or next(iter(reply.message.signatures), "")
        if self._signed and own and own != self._signature:
            raise ValueError(f"text is signed {self._signature!r} in the stream, {own!r} in the reply")
        self._signature = own or self._signature

    def _written(self, part: Part, new: bool) -> list[WirePart]:
        """One part on the wire; none for thinking the client did not ask for. A `new` text behind a text begins with
        the newline that stands between them in `Message.text`, as clients join the two."""
        if isinstance(part, Thinking) and not self._show_thinking:
            return []
        lead = "\n" if new and type(part) is self._last else ""
        self._last = type(part)
        match part:
            case Text():
                return [{"text": lead + part.text, **self._mark()}]
            case Thinking():
                return [{"text": lead + part.text, "thought": True}]
            case ToolCall():
                self._signed = True
                # Compact, because an event is one line and a model may break lines between arguments.
                args = msgspec.Raw(msgspec.json.format(as_object(part.arguments).encode(), indent=-1))
                call = {"id": part.id, "name": part.name, "args": args}
                return [{"functionCall": call, "thoughtSignature": sealed(self._signature, part.id)}]
        raise ValueError("an assistant message of this protocol holds no images or files")

    def _mark(self) -> WirePart:
        if self._signed or not self._signature:
            return {}
        self._signed = True
        return {"thoughtSignature": sealed(self._signature)}


def response_body(request: ModelRequest, replies: Sequence[Reply]) -> bytes:
    candidates = [
        _ended(index, reply, Sent(request.show_thinking, "").rest(reply)) for index, reply in enumerate(replies)
    ]
    first = replies[0]
    counted = {"usageMetadata": _usage(_together(replies))}
    return _json({"candidates": candidates, **counted, "modelVersion": first.model, "responseId": first.id})


def error_body(error: BridleError) -> dict[str, Any]:
    """Clients recognize an overlong prompt by this sentence."""
    message = error.message
    if isinstance(error, PromptTooLong):
        message = (
            f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed ({error.maximum})."
        )
    # Google knows no 529; the gateway sends it as the same status.
    code = 503 if error.status == 529 else error.status
    status = STATUSES.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")
    return {"error": {"code": code, "message": message, "status": status}}


def _candidate(index: int, parts: Sequence[WirePart]) -> dict[str, Any]:
    return {"content": {"parts": parts, "role": "model"}, "index": index}


def _ended(index: int, reply: Reply, parts: Sequence[WirePart]) -> dict[str, Any]:
    logprobs = {} if reply.logprobs is None else _logprobs(reply.logprobs)
    return _candidate(index, parts) | {"finishReason": FINISH_REASONS[reply.finish_reason], **logprobs}


def _logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    chosen = [{"token": one.token, "logProbability": one.logprob} for one in logprobs]
    average = statistics.fmean(one.logprob for one in logprobs) if logprobs else 0.0
    return {"avgLogprobs": average, "logprobsResult": {"chosenCandidates": chosen, "topCandidates": []}}


def _together(replies: Sequence[Reply]) -> Usage:
    """The prompt is counted once, the answers of all draws together."""
    return msgspec.structs.replace(
        replies[0].usage,
        output=sum(reply.usage.output for reply in replies),
        reasoning=sum(reply.usage.reasoning for reply in replies),
    )


def _usage(usage: Usage) -> dict[str, int]:
    """Google counts thoughts apart from what was said, and gives no counts of 0."""
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "cachedContentTokenCount": usage.cached,
        "totalTokenCount": usage.input + usage.output,
    }
    return {name: count for name, count in counts.items() if count}


def _json(body: object) -> bytes:
    """Unicode's two line separators are escaped: the JavaScript client never takes in an event that has one in it."""
    encoded = msgspec.json.encode(body)
    return encoded.replace("\u2028".encode(), rb"\u2028").replace("\u2029".encode(), rb"\u2029")
