from __future__ import annotations

from hypothesis import given, strategies as st

from bridle.rendering.detokenize import Detokenizer
from bridle.rendering.template import TemplateRenderer


def test_a_character_is_passed_on_when_its_last_byte_is_there(tiny: TemplateRenderer) -> None:
    ids = [id for byte in "a日b".encode() for id in range(256) if tiny.vocabulary.token_bytes(id) == bytes([byte])]
    text = Detokenizer(tiny.vocabulary)
    assert [text.feed(id) for id in ids] == ["a", "", "", "日", "b"]
    assert text.flush() == ""


def test_an_unfinished_character_leaves_a_replacement_character(tiny: TemplateRenderer) -> None:
    first = next(id for id in range(256) if tiny.vocabulary.token_bytes(id) == "日".encode()[:1])
    text = Detokenizer(tiny.vocabulary)
    assert (text.feed(first), text.flush(), text.flush()) == ("", "\ufffd", "")


@given(ids=st.lists(st.integers(0, 2047), max_size=30))
def test_ids_in_any_order_read_the_same_one_by_one_as_at_once(tiny: TemplateRenderer, ids: list[int]) -> None:
    text = Detokenizer(tiny.vocabulary)
    assert "".join(map(text.feed, ids)) + text.flush() == tiny.vocabulary.decode(ids)
