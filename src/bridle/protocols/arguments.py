"""Arguments of tool calls, between their canonical JSON text and how wires carry them: as an object, as free text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bridle.messages import Tool

UNREADABLE = "INVALID_JSON"
"""The one key of an object that carries arguments which are none. Anthropic's documentation names it."""
FREEFORM: Mapping[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of a tool whose input is free text, as models see it."""


def is_object(arguments: str) -> bool:
    """Whether `arguments` is a JSON object that decoders of usual depth read."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def as_object(arguments: str) -> str:
    """JSON text of an object: `arguments` byte for byte where they are one. Official clients fail on anything else."""
    return arguments if is_object(arguments) else msgspec.json.encode({UNREADABLE: arguments}).decode()


def from_object(value: Any) -> str:
    """What a client echoes as an object, as compact JSON in its own key order; undoes `as_object`."""
    if isinstance(value, dict) and value.keys() == {UNREADABLE}:
        text = value[UNREADABLE]
        if isinstance(text, str) and not is_object(text):
            return text
    return msgspec.json.encode(value).decode()


def freeform_tool(name: str, description: str, syntax: str = "", grammar: str = "", namespace: str = "") -> Tool:
    """`grammar`: what its input has to match, in `syntax` (lark, regex)."""
    rule = f"The input has to match this {syntax} grammar:\n{grammar}" if grammar else ""
    told = "\n\n".join(filter(None, (description, rule)))
    return Tool(name, told, FREEFORM, "custom", namespace)


def freeform_input(arguments: str) -> str:
    """The free text of a call: its `input`, or all of it where a model wrote something else."""
    try:
        return msgspec.json.decode(arguments, type=Input).input
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def freeform_arguments(text: str) -> str:
    return msgspec.json.encode(Input(text)).decode()


class Input(msgspec.Struct, forbid_unknown_fields=True):
    input: str
