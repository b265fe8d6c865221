"""What differs from the stock rendering, and whose it is."""

from __future__ import annotations

import pytest

from bridle.rendering.template import TemplateRenderer
from bridle.tokens import ids_of
from bridle.verify.compare import Owner, compare

TEMPLATE, SAMPLED, REASONING = Owner.TEMPLATE, Owner.SAMPLED, Owner.REASONING
HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TAIL = "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"

CASES: dict[str, tuple[list[tuple[str, Owner]], str, list[tuple[str, bool, str, str]]]] = {
    "nothing": ([(HEAD, TEMPLATE), ("I look.", SAMPLED), (TAIL, TEMPLATE)], f"{HEAD}I look.{TAIL}", []),
    "reasoning that stock drops": (
        [(HEAD, TEMPLATE), ("<think>\nwhy\n</think>\n\n", REASONING), ("I look.", SAMPLED), (TAIL, TEMPLATE)],
        f"{HEAD}I look.{TAIL}",
        [("reasoning", True, "<think>\nwhy\n</think>\n\n", "")],
    ),
    "an empty block that stock writes": (
        [(HEAD, TEMPLATE), ("I look.", SAMPLED), (TAIL, TEMPLATE)],
        f"{HEAD}<think>\n\n</think>\n\nI look.{TAIL}",
        [("reasoning", True, "", "<think>\n\n</think>\n\n")],
    ),
    "an empty block that stock writes at the prompt's end": (
        [(HEAD, TEMPLATE), ("I look.", SAMPLED), (TAIL, TEMPLATE)],
        f"{HEAD}I look.{TAIL}<think>\n\n</think>\n\n",
        [("control", False, "", "<think>\n\n</think>\n\n")],
    ),
    "an empty block that stock writes behind what was said at the prompt's end": (
        [(HEAD, TEMPLATE), ("I look.", SAMPLED)],
        f"{HEAD}I look.<think>\n\n</think>\n\n",
        [("control", False, "", "<think>\n\n</think>\n\n")],
    ),
    "an empty block that stock writes where nothing was sampled": (
        [(f"{HEAD}I look.{TAIL}", TEMPLATE)],
        f"{HEAD}<think>\n\n</think>\n\nI look.{TAIL}",
        [("control", False, "", "<think>\n\n</think>\n\n")],
    ),
    "text that stock trims": (
        [(HEAD, TEMPLATE), ("I look.  ", SAMPLED), (TAIL, TEMPLATE)],
        f"{HEAD}I look.{TAIL}",
        [("assistant", True, "  ", "")],
    ),
    "an end token twice": (
        [(HEAD, TEMPLATE), ("I look.<|im_end|>", SAMPLED), (TAIL, TEMPLATE)],
        f"{HEAD}I look.{TAIL}",
        [("control", False, "<|im_end|>", "")],
    ),
    "scaffold": (
        [(HEAD, TEMPLATE), ("I look.", SAMPLED), (TAIL.replace("user\n", "user "), TEMPLATE)],
        f"{HEAD}I look.{TAIL}",
        [("scaffold", False, " ", "\n")],
    ),
    "a message that stock does not have": (
        [(HEAD, TEMPLATE), ("I look.", SAMPLED), (TAIL + TAIL, TEMPLATE)],
        f"{HEAD}I look.{TAIL}",
        [("control", False, TAIL, "")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_difference_is_named_by_what_it_is_and_whose(tiny: TemplateRenderer, name: str) -> None:
    pieces, stock, expected = CASES[name]
    ids: list[int] = []
    owners: list[int] = []
    for text, owner in pieces:
        encoded = tiny.vocabulary.encode_split(text).tolist()
        ids += encoded
        owners += [owner] * len(encoded)
    found = compare(tiny.vocabulary, ids_of(ids), owners, tiny.vocabulary.encode_split(stock).tolist())
    shown = [(one.kind, one.kept, one.ours, one.stock) for one in found]
    assert [(kind, ours.strip(), theirs.strip()) for kind, _, ours, theirs in shown] == [
        (kind, ours.strip(), theirs.strip()) for kind, _, ours, theirs in expected
    ] or shown == expected
    assert [kept for _, kept, _, _ in shown] == [kept for _, kept, _, _ in expected]


def test_template_text_in_another_segmentation_is_scaffold(tiny: TemplateRenderer) -> None:
    whole = tiny.vocabulary.encode_split(HEAD).tolist()
    single = [
        id
        for text in ["<|im_start|>", "u", "ser\nhi", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
        for id in tiny.vocabulary.encode_split(text).tolist()
    ]
    assert single != whole
    found = compare(tiny.vocabulary, ids_of(single), [TEMPLATE] * len(single), whole)
    assert {one.kind for one in found} == {"scaffold"}
