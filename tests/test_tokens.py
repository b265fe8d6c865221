from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from bridle import tokens
from bridle.errors import ConfigError, TemplateError
from bridle.rendering.tiny import make_tokenizer
from bridle.tokens import EMPTY, HARD_STRINGS, Vocabulary, concatenate, ids_of


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> Vocabulary:
    return Vocabulary.load(directory)


TEXT = st.lists(
    st.sampled_from(["<|im_end|>", "</think>", "<|im_", "\n\n", " ", "日本", "👍🏽", "\ufdd0", "def f(x):\n"])
    | st.text(max_size=8)
).map("".join)


def edited(directory: Path, tmp_path: Path, **changes: object) -> Path:
    document = json.loads((directory / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **changes}))
    return tmp_path


@given(text=TEXT)
def test_text_comes_back_from_its_ids_and_holds_no_control_id(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids.tolist()) == text
    assert not vocabulary.control_ids & set(ids.tolist())


@given(text=TEXT)
def test_trusted_text_is_encoded_as_the_tokenizer_itself_does(
    directory: Path, vocabulary: Vocabulary, text: str
) -> None:
    stock = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert vocabulary.encode_split(text).tolist() == stock.encode(text, add_special_tokens=False).ids


def test_splitting_yields_pieces_and_control_ids_in_order(vocabulary: Vocabulary) -> None:
    im_end, think = vocabulary.controls["<|im_end|>"], vocabulary.controls["<think>"]
    assert vocabulary.split("<think>a<|im_end|><|im_end|>b") == [think, "a", im_end, im_end, "b"]
    assert vocabulary.split("") == []


def test_a_lone_surrogate_is_refused_with_its_position(vocabulary: Vocabulary) -> None:
    with pytest.raises(TemplateError, match="lone surrogate at position 2"):
        vocabulary.encode("ab\ud800")


def test_a_vocabulary_that_spells_its_control_tokens_is_refused_when_it_does(directory: Path, tmp_path: Path) -> None:
    document = json.loads((directory / "tokenizer.json").read_text())
    letter = {"id": document["model"]["vocab"]["q"], "content": "q", "special": False, "normalized": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    edited(directory, tmp_path, added_tokens=[{**letter, **flags}, *document["added_tokens"]])
    with pytest.raises(TemplateError, match="control token 'q'"):
        Vocabulary.load(tmp_path).encode("q.")


def test_both_encoders_agree_and_the_one_in_use_is_named(
    directory: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "fastokens", None)
    reference = Vocabulary.load(directory)
    assert (vocabulary.encoder, vocabulary.encoder_note) == ("fastokens", "")
    assert (reference.encoder, reference.encoder_note) == ("tokenizers", "fastokens is not installed")
    for text in HARD_STRINGS:
        assert np.array_equal(vocabulary.encode(text), reference.encode(text))


def test_an_encoder_that_differs_is_not_used_and_the_text_is_recorded(
    directory: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_fastokens_encoder", lambda source: lambda text: ids_of([1]))
    strict = Vocabulary.load(directory)
    assert strict.encoder == "tokenizers"
    assert strict.encoder_note == "fastokens encodes '' otherwise"
    assert np.array_equal(strict.encode("some text"), vocabulary.encode("some text"))


def test_added_tokens_that_swallow_their_neighbours_are_refused(directory: Path, tmp_path: Path) -> None:
    added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    added[1]["rstrip"] = True
    with pytest.raises(ConfigError, match="rstrip"):
        Vocabulary.load(edited(directory, tmp_path, added_tokens=added))


def test_an_unknown_decoder_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="WordPiece"):
        Vocabulary.load(edited(directory, tmp_path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}))


def test_what_is_no_tokenizer_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the tokenizer .*tokenizer\.json: No such file"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"library cannot read this tokenizer\.json: Model missing"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no valid JSON"):
        Vocabulary.load(tmp_path)


def test_sentencepiece_spellings_become_their_bytes(tmp_path: Path) -> None:
    words = ["<unk>", "<0x0A>", "\u2581the", "\u2581", "t", "h", "e", "he", "the", "<", "0x0A>"]
    merges = [["h", "e"], ["t", "he"], ["\u2581", "the"]]
    model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "merges": merges}
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}]
    vocabulary_document = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {**model, "vocab": {word: id for id, word in enumerate(words)}},
    }
    vocabulary = Vocabulary(json.dumps(vocabulary_document).encode())
    assert vocabulary.encode(" the\n").tolist() == [2, 1]
    assert vocabulary.decode([2, 1]) == " the\n"
    split = vocabulary.resegment(ids_of([2, 1]), random.Random(1), 1.0)
    assert len(split) > 2
    assert split[-1] == 1
    assert vocabulary.decode(split.tolist()) == " the\n"


@given(text=TEXT, seed=st.integers(0, 99), rate=st.sampled_from([0.0, 0.3, 1.0]))
def test_resegmented_ids_spell_the_same_bytes_and_keep_control_ids(
    vocabulary: Vocabulary, text: str, seed: int, rate: float
) -> None:
    ids = vocabulary.encode_split(text)
    other = vocabulary.resegment(ids, random.Random(seed), rate)
    spelled = [b"".join(map(vocabulary.token_bytes, some.tolist())) for some in (ids, other)]
    controls = [[id for id in some.tolist() if id in vocabulary.control_ids] for some in (ids, other)]
    assert spelled[0] == spelled[1]
    assert controls[0] == controls[1]
    assert rate > 0 or np.array_equal(ids, other)


def test_resegmenting_is_seeded_and_usually_not_canonical(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("def run(command):\n    return the_result_of(command)\n")
    draws = [vocabulary.resegment(ids, random.Random(seed), 0.3) for seed in range(20)]
    again = vocabulary.resegment(ids, random.Random(0), 0.3)
    assert np.array_equal(draws[0], again)
    assert sum(not np.array_equal(draw, ids) for draw in draws) >= 19
    assert all(0 <= id < vocabulary.size for draw in draws for id in draw.tolist())


def test_a_control_token_is_never_taken_apart(directory: Path, tmp_path: Path) -> None:
    document = json.loads((directory / "tokenizer.json").read_text())
    added = [*document["added_tokens"], {**document["added_tokens"][0], "id": 2048, "content": "qz"}]
    vocabulary = Vocabulary.load(edited(directory, tmp_path, added_tokens=added))
    assert vocabulary.controls["qz"] == 2048
    assert vocabulary.resegment(ids_of([2048]), random.Random(1), 1.0).tolist() == [2048]


def test_an_id_beyond_the_vocabulary_spells_nothing(vocabulary: Vocabulary) -> None:
    assert vocabulary.decode([vocabulary.size + 5]) == ""


def test_nothing_concatenated_is_the_empty_array() -> None:
    assert concatenate([]) is EMPTY
    assert concatenate([ids_of([1]), EMPTY, ids_of([2])]).tolist() == [1, 2]
    assert concatenate([ids_of([1])]).dtype == np.int32
