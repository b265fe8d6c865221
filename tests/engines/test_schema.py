from __future__ import annotations

from typing import Any

import pytest

from bridle.engines.schema import misfit

TITLE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["title"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"title": "x", "tags": ["a"]}', TITLE),
        ('{"anything": [1, null]}', {}),
        ("1", {"type": ["integer", "null"]}),
        ("1.5", {"anyOf": [{"type": "string"}, {"type": "number"}]}),
        ('"x"', {"const": "x"}),
    ],
)
def test_a_text_that_fits_has_no_misfit(text: str, schema: dict[str, Any]) -> None:
    assert misfit(text, schema) == ""


@pytest.mark.parametrize(
    ("text", "schema", "reason"),
    [
        ("A title", TITLE, "it is no JSON"),
        ("[]", TITLE, "$: [] is not of type object"),
        ("{}", TITLE, "$: title missing"),
        ('{"title": 1}', TITLE, "$.title: 1 is not of type string"),
        ('{"title": "x", "tags": ["a", "c"]}', TITLE, "$.tags[1]: 'c' is none of ['a', 'b']"),
        ('{"title": "x", "more": 1}', TITLE, "$.more: nothing is allowed here"),
        ("true", {"type": "integer"}, "$: True is not of type integer"),
        ("{}", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "$: {} is not of type string"),
        ("2", {"const": 1}, "$: 2 is not 1"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(text: str, schema: dict[str, Any], reason: str) -> None:
    assert misfit(text, schema).startswith(reason)
