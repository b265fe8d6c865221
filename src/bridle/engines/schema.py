"""Whether a JSON text fits a JSON Schema, as far as is needed to tell a script that it does not.

Looks at types, enums, constants, members, items and alternatives; every other keyword is taken as fulfilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfit(text: str, schema: Mapping[str, Any]) -> str:
    """-> what does not fit and where, "" where all does."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"it is no JSON: {error}"
    return _misfit(value, schema, "$")


def _misfit(value: Any, schema: Any, at: str) -> str:
    if not isinstance(schema, Mapping):
        return "" if schema is not False else f"{at}: nothing is allowed here"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        return f"{at}: {value!r} is not {schema['const']!r}"
    if "type" in schema and not _is(value, schema["type"]):
        return f"{at}: {value!r} is not of type {schema['type']}"
    branches = [_misfit(value, branch, at) for branch in schema.get("anyOf", schema.get("oneOf", ()))]
    if branches and all(branches):
        return branches[0]
    if isinstance(value, list):
        return _first(_misfit(item, schema.get("items", {}), f"{at}[{index}]") for index, item in enumerate(value))
    return _misfit_object(value, schema, at) if isinstance(value, dict) else ""


def _misfit_object(value: Mapping[str, Any], schema: Mapping[str, Any], at: str) -> str:
    members = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"{at}: {', '.join(missing)} missing"
    return _first(
        _misfit(item, members.get(name, schema.get("additionalProperties", True)), f"{at}.{name}")
        for name, item in value.items()
    )


def _is(value: Any, named: str | list[str]) -> bool:
    names = [named] if isinstance(named, str) else named
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names if name in TYPES)


def _first(found: Iterable[str]) -> str:
    return next((reason for reason in found if reason), "")
