"""Arguments that a form spells member by member: JSON made of them, typed by the tool's schema, and back.

A value without quotes does not say whether it is a string. The schema does:

- where it takes strings alone, the value is the text as it stands;
- where it takes no strings, the value is JSON, or one of Python's `True`, `False` and `None`;
- where it takes strings among others, the value is JSON if that is of a type it takes and no string; else the text;
- where it says nothing (or there is no such parameter, or no such tool), any JSON but a string counts; else the text.

Numbers, lists and objects are the slice of the sampled text, never parsed and written anew. A value that is none its
schema takes is passed on as a string, and the call says `invalid_json`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from bridle.errors import TemplateError
from bridle.messages import CallStatus, ToolCall
from bridle.rendering.calls import Block, Tools, parsed, status_of
from bridle.rendering.tools_json import scan_object

Types = frozenset[str]
"""Names of JSON types; "integer" apart from "number"."""

ANY: Types = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
STRING: Types = frozenset({"string"})
WORDS = {"True": "true", "False": "false", "None": "null"}
"""How Python spells what JSON spells otherwise: many templates show arguments through Python's `str`."""


class Member(NamedTuple):
    """A parameter as it is spelled. `text`: its value."""

    key: str
    text: str


def cut(block: Block, tags: Collection[str]) -> list[str]:
    """-> text, tag, text, tag, ..., text: cut where one of `tags` was sampled; other control tokens are text."""
    pieces, at = [], 0
    for tag in block.tags:
        if tag.tag in tags:
            pieces += [block.text[at : tag.start], tag.tag]
            at = tag.end
    return [*pieces, block.text[at:]]


# --- reading ----------------------------------------------------------------------------------------------------------


def make_call(name: str, members: Sequence[Member], tools: Tools, closed: bool) -> ToolCall:
    """A call whose spelling can be read."""
    schema = tools[name].parameters if name in tools else {}
    values = [_value(member.text, types_of(schema, member.key)) for member in members]
    keys = [member.key for member in members]
    arguments = join_members([(key, value.source) for key, value in zip(keys, values, strict=True)])
    return ToolCall("", name, arguments, call_status(name, keys, all(v.fits for v in values), tools, closed))


def broken_call(name: str, source: str, closed: bool) -> ToolCall:
    """One whose spelling cannot be read; `source`: what stands behind its name. It must not pass for arguments."""
    return ToolCall("", name, source, "malformed" if closed else "unclosed")


def join_members(members: Sequence[tuple[str, str]]) -> str:
    """Keys and JSON values -> a JSON object, in their order, repeated keys and all."""
    return f"{{{', '.join(f'{quoted(key)}: {source}' for key, source in members)}}}"


def call_status(name: str, keys: Sequence[str], fits: bool, tools: Tools, closed: bool) -> CallStatus:
    """`fits`: every value is what its place takes."""
    if closed and len(set(keys)) < len(keys):
        return "malformed"
    return status_of(name, "{}", tools, closed, fits)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Value(NamedTuple):
    """`source`: JSON."""

    source: str
    fits: bool


def _value(text: str, types: Types) -> Value:
    bare = text.strip()
    if "string" not in types:
        source = WORDS.get(bare, bare)
        return Value(source, True) if json_type(source) else Value(quoted(text), False)
    source = WORDS.get(bare, bare) if types != ANY else bare
    return Value(source if json_type(source) in types - STRING else quoted(text), True)


def json_type(source: str) -> str:
    """The type of a JSON text; "" where it is none."""
    try:
        value = orjson.loads(source)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return names[type(value)]


# --- what a schema takes ----------------------------------------------------------------------------------------------


def types_of(schema: Mapping[str, Any], key: str) -> Types:
    """What the property `key` of an object of this schema may be, in JSON types."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or key not in properties:
        return ANY
    try:
        return _types(properties[key], schema, {})
    except RecursionError:
        # Schemas come from agents, and nest as deep as those like.
        return ANY


def _types(schema: Any, root: Mapping[str, Any], followed: dict[str, Types]) -> Types:
    """`followed`: what references stand for; a schema that refers to itself takes anything there."""
    if not isinstance(schema, Mapping):
        return ANY
    types = _named(schema.get("type"))
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in followed:
            followed[reference] = ANY
            followed[reference] = _types(_referred(reference, root), root, followed)
        types &= followed[reference]
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list) and values:
            types &= _with_integers(frozenset(json_type(json.dumps(value)) for value in values))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list) and branches:
            types &= frozenset[str]().union(*[_types(branch, root, followed) for branch in branches])
    return (types | {"null"} if schema.get("nullable") is True else types) or ANY


def _named(said: Any) -> Types:
    """What `type` says; everything where it says nothing JSON Schema knows."""
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return _with_integers(frozenset(name for name in names if isinstance(name, str)) & ANY) or ANY


def _with_integers(types: Types) -> Types:
    return types | {"integer"} if "number" in types else types


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference into the same schema ("#/$defs/Mode") stands for; None for any other."""
    place: Any = root if reference.startswith("#/") else None
    for step in reference.removeprefix("#/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


# --- writing ----------------------------------------------------------------------------------------------------------


def members_of(call: ToolCall) -> list[tuple[str, str]]:
    """The arguments of a call by key, each value the slice of JSON in which it stands. Raises TemplateError."""
    arguments = parsed(call.arguments)
    scan = scan_object(call.arguments)
    if not isinstance(arguments, dict) or (arguments and not scan.complete):
        raise TemplateError(
            f"the arguments of the call of {call.name!r} are no JSON object, as this model's calls need"
        )
    return [(key, scan.value(key)) for key in scan.spans]


def bare(source: str) -> str:
    """A JSON value without quotes: a string's text, everything else as it is."""
    value = parsed(source)
    return value if isinstance(value, str) else source


def refuse(call: ToolCall) -> TemplateError:
    return TemplateError(
        f"the call of {call.name!r} cannot be spelled as this model spells calls: its name, a key or a value holds "
        "what ends one there"
    )
