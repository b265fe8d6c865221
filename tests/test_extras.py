"""What an engine says of each id is cut, joined and stored without a number moving to another id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bridle.extras import NO_EXTRAS, Extras, PerId, joined, pack, unpack

LISTS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=8)


def per_id(lists: list[list[int]]) -> PerId:
    return PerId(np.array([*map(len, lists)], np.int32), np.array([each for row in lists for each in row], np.int32))


def lists_of(each: PerId | None) -> list[list[int]]:
    assert each is not None
    ends = np.cumsum(each.counts)
    return [row.tolist() for row in np.split(each.values, ends[:-1])] if len(ends) else []


@given(lists=LISTS, cut=st.integers(0, 8))
def test_parts_joined_are_the_whole(lists: list[list[int]], cut: int) -> None:
    whole = per_id(lists)
    parts = [whole.part(0, cut), whole.part(cut, len(lists))]
    assert [row for part in parts for row in lists_of(part)] == lists
    assert lists_of(joined([Extras(kept_tokens=part) for part in parts]).kept_tokens) == lists


@given(lists=LISTS)
def test_what_is_stored_is_read_back(lists: list[list[int]]) -> None:
    numbers = np.linspace(-3, 0, len(lists), dtype=np.float32)
    read = unpack(pack(Extras(per_id(lists), per_id(lists[::-1]), numbers)))
    assert (lists_of(read.routed_experts), lists_of(read.kept_tokens)) == (lists, lists[::-1])
    assert read.reference_logprobs is not None
    assert np.array_equal(read.reference_logprobs, numbers)
    assert read.fit(len(lists))
    assert not read.fit(len(lists) + 1)


def test_nothing_takes_no_room() -> None:
    assert pack(NO_EXTRAS) == {}
    assert unpack({}) is NO_EXTRAS is joined([])


def test_what_is_not_said_of_every_id_is_not_said() -> None:
    some = Extras(per_id([[1]]), None, np.zeros(1, np.float32))
    found = joined([some, Extras(per_id([[2, 3]]))])
    assert lists_of(found.routed_experts) == [[1], [2, 3]]
    assert (found.kept_tokens, found.reference_logprobs) == (None, None)


def test_counts_must_add_up() -> None:
    with pytest.raises(ValueError, match="2 values, but the counts add up to 3"):
        PerId(np.array([1, 2], np.int32), np.array([7, 8], np.int32))
