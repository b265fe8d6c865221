"""Google's Schema, a dialect of OpenAPI, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CAMEL = {
    "any_of": "anyOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "additional_properties": "additionalProperties",
    "property_ordering": "propertyOrdering",
}
COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
"""64-bit integers, which Google's JSON writes as strings."""


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Types in lower case, `nullable` as a type, key order kept. `propertyOrdering` says it again and is left out."""
    read = {CAMEL.get(key, key): value for key, value in schema.items()}
    nullable = read.pop("nullable", False)
    read.pop("propertyOrdering", None)
    written = {key: _keyword(key, value) for key, value in read.items() if value != "TYPE_UNSPECIFIED"}
    if nullable is True and isinstance(written.get("type"), str):
        written["type"] = [written["type"], "null"]
    return written


def _keyword(key: str, value: Any) -> Any:
    match key, value:
        case "type", str():
            return value.lower()
        case (("items" | "additionalProperties"), dict()):
            return json_schema(value)
        case (("properties" | "$defs" | "defs"), dict()):
            return {name: json_schema(inner) if isinstance(inner, dict) else inner for name, inner in value.items()}
        case (("anyOf" | "oneOf" | "allOf"), list()):
            return [json_schema(inner) if isinstance(inner, dict) else inner for inner in value]
        case _, str() if key in COUNTS and value.isdecimal() and value.isascii():
            return int(value)
    return value
