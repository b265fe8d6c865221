"""Summaries the server makes: one call of the model over a conversation, answered by a `compaction` item.

The item names the turn it came from and says nothing of its text. Sent back, it is that turn's answer: the ids that
were sampled stand in the place of the history they sum up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridle.messages import Document, Image, Message, ModelRequest, Part, Reply, Text, Thinking, beside_summary
from bridle.protocols.openai_responses_reply import OpenAIResponsesStream, response_body, summary_item

INSTRUCTION = Message(
    "user",
    (
        Text(
            "The conversation up to here is about to be replaced by a summary of it, which you write now. You will go "
            "on with nothing but the user's messages and that summary, so put into it whatever you will need: what was "
            "asked and what holds for it, what was decided and why, what was done and what came of it (files, "
            "commands, values, errors), and what remains to be done next. Answer with the summary alone and call no "
            "tools."
        ),
    ),
)


class OpenAICompactionStream(OpenAIResponsesStream):
    """Nothing of a summary is shown while it is sampled; that it is being made is an event each time."""

    def finish(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        body = response_body(self._request, reply)
        (item,) = body["output"]
        done = self._event("response.output_item.done", output_index=0, item=item)
        return self._begun() + done + self._event(f"response.{body['status']}", response=body)

    def _grow(self, kind: type[Text] | type[Thinking], text: str) -> bytes:
        item = summary_item(self._turn)
        return self._begun() + self._event("response.compaction.compacting", item_id=item["id"], output_index=0)

    def _begun(self) -> bytes:
        if self._items:
            return b""
        self._items = 1
        item = summary_item(self._turn) | {"encrypted_content": ""}
        return self._event("response.output_item.added", output_index=0, item=item)


def window_body(request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """What a client goes on from: all the user said, and the summary."""
    body = response_body(request, reply)
    (item,) = body["output"]
    kept = beside_summary(request.messages[request.instructions :])
    output = [*(_user_item(item["encrypted_content"], number, message) for number, message in enumerate(kept)), item]
    return {
        **{key: body[key] for key in ("id", "created_at", "usage")},
        "object": "response.compaction",
        "output": output,
    }


def _user_item(turn: str, number: int, message: Message) -> dict[str, Any]:
    """Its id has not the form of those that name a part of an answer."""
    content = [_content(part) for part in message.parts]
    return {"id": f"msg_{turn}_u{number}", "type": "message", "role": "user", "status": "completed", "content": content}


def _content(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "input_text", "text": text}
        case Image(media_type, data):
            return {"type": "input_image", "detail": "auto", "image_url": _url(media_type, data)}
        case Document(media_type, data, title):
            place = "file_data" if media_type else "file_url"
            return {"type": "input_file", place: _url(media_type, data), "filename": title or None}
    raise ValueError(f"no message of the user's holds {part!r}")


def _url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}" if media_type else data
