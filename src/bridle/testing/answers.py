"""An answer as an official client takes it in, whole or streamed, and the request that sends it back.

A faithful client: it keeps everything it got in the form it got it in. What agents change is written where they are
tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bridle.testing.requests import WireRequest

Item = dict[str, Any]


def go_on(protocol: str, asked: WireRequest, answer: bytes, text: str) -> WireRequest:
    """The request behind `asked`: its answer as it came back, and something more from the user."""
    heard, key, user = CLIENTS[protocol]
    body = msgspec.json.decode(asked.body)
    return WireRequest(asked.target, msgspec.json.encode(body | {key: [*body[key], *heard(answer), user(text)]}))


def events(answer: bytes) -> list[Item]:
    """The data of every event. `[DONE]` is the end of a stream, not data."""
    lines = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def is_whole(answer: bytes) -> bool:
    return answer.startswith((b"{", b"["))


# --- Anthropic Messages ---


def anthropic(answer: bytes) -> list[Item]:
    content = msgspec.json.decode(answer)["content"] if is_whole(answer) else _anthropic_blocks(answer)
    return [{"role": "assistant", "content": content}]


def _anthropic_blocks(answer: bytes) -> list[Item]:
    """Deltas name their block by its index; the one of a call's input is JSON in pieces."""
    blocks: list[Item] = []
    written: dict[int, str] = {}
    for event in events(answer):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            index, delta = event["index"], event["delta"]
            kind = delta.pop("type")
            ((key, piece),) = delta.items()
            if kind == "input_json_delta":
                written[index] = written.get(index, "") + piece
            else:
                blocks[index][key] += piece
    for index, arguments in written.items():
        blocks[index]["input"] = msgspec.json.decode(arguments)
    return blocks


# --- OpenAI Chat Completions ---


def openai_chat(answer: bytes) -> list[Item]:
    if is_whole(answer):
        return [msgspec.json.decode(answer)["choices"][0]["message"]]
    message: Item = {"role": "assistant", "content": None}
    for event in events(answer):
        for choice in event["choices"]:
            _grow(message, choice["delta"])
    return [message]


def _grow(message: Item, delta: Item) -> None:
    for key, piece in delta.items():
        if key == "tool_calls":
            calls = [{name: value for name, value in call.items() if name != "index"} for call in piece]
            message["tool_calls"] = [*message.get("tool_calls", []), *calls]
        elif key != "role" and piece is not None:
            message[key] = (message.get(key) or "") + piece


# --- OpenAI Responses ---


def openai_responses(answer: bytes) -> list[Item]:
    if is_whole(answer):
        items: list[Item] = msgspec.json.decode(answer)["output"]
        return items
    return [event["item"] for event in events(answer) if event["type"] == "response.output_item.done"]


# --- Gemini ---


def gemini(answer: bytes) -> list[Item]:
    """Google's Python client keeps the content of every chunk as one of its own."""
    chunks = msgspec.json.decode(answer) if is_whole(answer) else events(answer)
    whole = chunks if isinstance(chunks, list) else [chunks]
    return [candidate["content"] for chunk in whole for candidate in chunk.get("candidates", [])]


CLIENTS: dict[str, tuple[Callable[[bytes], list[Item]], str, Callable[[str], Item]]] = {
    "anthropic": (anthropic, "messages", lambda text: {"role": "user", "content": text}),
    "openai_chat": (openai_chat, "messages", lambda text: {"role": "user", "content": text}),
    "openai_responses": (openai_responses, "input", lambda text: {"role": "user", "content": text}),
    "gemini": (gemini, "contents", lambda text: {"role": "user", "parts": [{"text": text}]}),
}
"""Protocol -> how its client takes an answer in, where that goes in a request, and what more the user says."""
