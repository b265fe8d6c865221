from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from bridle.decoding import decode
from bridle.errors import BadRequest, ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    depth: int
    mode: Literal["fast", "slow"] = "fast"

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"depth: expected 0 or more, got {self.depth}")


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = {}


WRONG: dict[str, tuple[Any, str]] = {
    "a misspelt key": ({"iner": 1}, 'x: iner: unknown key "iner": did you mean "inner"? There are: inner, many, named'),
    "one inside": (
        {"inner": {"depht": 1}},
        'x: inner.depht: unknown key "depht": did you mean "depth"? There are: depth, mode',
    ),
    "one in a list": ({"many": [{"z": 1}]}, 'x: many[0].z: unknown key "z": There are: depth, mode'),
    "one in a mapping": ({"named": {"a": {"z": 1}}}, 'x: named[...].z: unknown key "z": There are: depth, mode'),
    "a missing key": ({"many": [{"depth": 1}, {}]}, "x: many[1].depth: missing, and required. There are: depth, mode"),
    "a wrong choice": ({"inner": {"depth": 1, "mode": "f"}}, "x: inner.mode: expected one of fast, slow, got 'f'"),
    "a wrong type": ({"inner": {"depth": "1"}}, "x: inner.depth: expected `int`, got `str`"),
    "a value a Struct refuses": ({"inner": {"depth": -1}}, "x: inner: depth: expected 0 or more, got -1"),
    "no object at all": ([], "x: Expected `object`, got `array`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_says_where_what_was_expected_and_what_there_is(name: str) -> None:
    document, message = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        decode(document, Outer, "x")
    assert caught.value.message == message


def test_the_caller_says_whose_fault_it_is() -> None:
    with pytest.raises(BadRequest):
        decode({"iner": 1}, Outer, "request body", BadRequest)


def test_what_is_right_is_decoded() -> None:
    assert decode({"inner": {"depth": 2}}, Outer, "x") == Outer(inner=Inner(2))
