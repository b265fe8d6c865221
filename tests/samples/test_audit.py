from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bridle.engines.base import Sampling
from bridle.engines.tiny_model import TinyModel, make_model
from bridle.engines.transformers import Draw, LocalModel
from bridle.rendering.tiny import make_tokenizer
from bridle.samples.audit import SENSITIVITY, Audit, Floats, Positions, audit
from bridle.samples.sample import Sample, TurnSpan
from bridle.tokens import Ids, Vocabulary, concatenate, ids_of

ANSWERS = ("I look at the file first.", "The sign is wrong: I change it.", "All tests pass now.")


def toy(tokens: Ids, positions: Positions, temperature: float) -> Floats:
    """Depends on every earlier token and its place."""
    weighed = (tokens.astype(np.float64) + 1) * np.cos(np.arange(len(tokens)))
    before = np.concatenate([[0.0], np.cumsum(weighed)[:-1]])
    return (-1.5 - np.sin(before + tokens)[positions] / temperature).astype(np.float32)


def blind(tokens: Ids, positions: Positions, temperature: float) -> Floats:
    """Does not look back."""
    return (-1.0 - tokens[positions] / 100 / temperature).astype(np.float32)


def made(tokens: Ids, turns: list[tuple[int, int]], score: object = toy, temperature: float = 1.0) -> Sample:
    mask = np.zeros(len(tokens), np.uint8)
    for start, end in turns:
        mask[start:end] = 1
    positions = np.flatnonzero(mask)
    logprobs = np.zeros(len(tokens), np.float32)
    if len(positions):
        logprobs[positions] = score(tokens, positions, temperature)  # type: ignore[operator]
    return Sample(
        tokens=tokens,
        loss_mask=mask,
        logprobs=logprobs,
        version_spans=((0, 0),),
        sampling={"temperature": temperature},
        turns=tuple(TurnSpan(start, end, f"t{start}", "main", "stop") for start, end in turns),
        prompt_len=turns[0][0] if turns else len(tokens),
    )


SMALL = made(ids_of(range(40)), [(10, 16), (30, 36)])


def test_exact_logprobs_pass_with_every_turn_and_mutation_listed() -> None:
    found = audit([SMALL, SMALL], {0: toy})
    assert found.ok
    assert (found.audited, found.not_audited) == (24, 0)
    assert (found.delta.max, found.delta.ratio_min, found.delta.ratio_max) == (0.0, 1.0, 1.0)
    assert [(turn.sample, turn.turn_id, turn.tokens) for turn in found.turns] == [
        *((0, "t10", 6), (0, "t30", 6), (1, "t10", 6), (1, "t30", 6)),
    ]
    assert [(mutation.sample, mutation.change) for mutation in found.mutations] == [
        *((0, "swap"), (0, "drop"), (0, "transpose"), (1, "swap"), (1, "drop"), (1, "transpose")),
    ]
    assert all(mutation.effect > 0.01 for mutation in found.mutations)


def test_a_single_wrong_logprob_is_a_mismatch_in_its_turn() -> None:
    logprobs = SMALL.logprobs.copy()
    logprobs[31] -= 0.5
    found = audit([msgspec.structs.replace(SMALL, logprobs=logprobs)], {0: toy})
    assert found.verdict == "mismatch"
    assert found.delta.max == pytest.approx(0.5)
    assert found.delta.mean == pytest.approx(0.5 / 12)
    assert found.delta.ratio_max == pytest.approx(np.exp(0.5))
    assert [turn.delta.max > 0.1 for turn in found.turns] == [False, True]


def test_a_scorer_that_gives_no_number_is_a_mismatch() -> None:
    found = audit([SMALL], {0: lambda tokens, positions, _: np.full(len(positions), np.nan, np.float32)})
    assert found.verdict == "mismatch"


def test_a_model_that_does_not_look_back_is_insensitive_even_without_error() -> None:
    found = audit([made(ids_of(range(40)), [(10, 16)], blind)], {0: blind})
    assert (found.verdict, found.delta.max) == ("insensitive", 0.0)
    assert "proves nothing" in found.render()[-1]


def test_the_least_visible_mutation_decides() -> None:
    def sees_no_order(tokens: Ids, positions: Positions, temperature: float) -> Floats:
        total = np.concatenate([[0], np.cumsum(tokens.astype(np.int64))[:-1]])
        return (-1.0 - (total[positions] % 997) / 100).astype(np.float32)

    found = audit([made(ids_of(range(40)), [(10, 16)], sees_no_order)], {0: sees_no_order})
    effects = {mutation.change: mutation.effect for mutation in found.mutations}
    assert effects["transpose"] == 0.0 < min(effects["swap"], effects["drop"])
    assert found.verdict == "insensitive"


def test_a_sample_whose_context_cannot_be_changed_proves_nothing() -> None:
    found = audit([made(ids_of([7, 7, 7, 1, 2]), [(3, 5)])], {0: toy})
    assert (found.verdict, found.mutations) == ("insensitive", ())


def test_one_sample_that_is_not_proven_sensitive_is_enough_to_fail() -> None:
    unchangeable = made(ids_of([7, 7, 7, 1, 2]), [(3, 5)])
    found = audit([SMALL, unchangeable, SMALL], {0: toy})
    assert (found.verdict, found.unproven, len(found.mutations)) == ("insensitive", (1,), 6)
    assert found.sensitivity > SENSITIVITY
    assert "1 of 3 samples not proven sensitive (the first is 1)" in found.render()[-1]


def test_each_weights_that_audit_a_sample_must_be_proven_sensitive() -> None:
    tokens = ids_of([7, 7, 7, 1, 2, *range(20), 3, 4])
    mixed = msgspec.structs.replace(made(tokens, [(3, 5), (25, 27)]), version_spans=((0, 3), (25, 4)))
    assert audit([mixed], {4: toy}).ok
    assert audit([mixed], {3: toy, 4: toy}).unproven == (0,)


def test_the_temperature_of_the_sample_is_used() -> None:
    assert audit([made(ids_of(range(40)), [(10, 16)], temperature=0.7)], {0: toy}).ok


def test_tokens_of_other_weights_are_counted_as_not_audited() -> None:
    mixed = msgspec.structs.replace(SMALL, version_spans=((0, 3), (32, 4)))
    found = audit([mixed], {3: toy})
    assert (found.audited, found.not_audited) == (8, 4)
    assert found.ok
    assert audit([mixed], {3: toy, 4: toy}).not_audited == 0


def test_each_version_is_scored_by_its_own_weights() -> None:
    mixed = msgspec.structs.replace(SMALL, version_spans=((0, 3), (30, 4)))
    found = audit([mixed], {3: toy, 4: blind})
    assert [(turn.turn_id, turn.delta.max < 1e-3) for turn in found.turns] == [("t10", True), ("t30", False)]


def test_without_version_spans_nothing_is_audited() -> None:
    assert audit([msgspec.structs.replace(SMALL, version_spans=())], {0: toy}).verdict == "nothing"


def test_nothing_to_audit_is_said_and_is_no_pass() -> None:
    for found in (audit([], {0: toy}), audit([made(ids_of(range(5)), [])], {0: toy}), audit([SMALL], {1: toy})):
        assert (found.verdict, found.ok) == ("nothing", False)
        assert "nothing to audit" in found.render()[-1]


def test_lines_for_people_end_with_the_verdict() -> None:
    lines = audit([SMALL], {0: toy}).render()
    assert len(lines) == 2 + 3 + 1
    assert lines[-1].startswith("audit: ok: 12 trained tokens")


def test_the_record_is_plain_json() -> None:
    found = audit([SMALL], {0: toy})
    assert msgspec.json.decode(msgspec.json.encode(found.to_dict()), type=Audit) == found


# --- with a real model, captured step by step with a cache and audited in one pass ------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("audit") / "model")


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> Vocabulary:
    return Vocabulary.load(directory)


@pytest.fixture(scope="module")
def model(directory: Path, vocabulary: Vocabulary) -> LocalModel:
    make_model(directory, vocabulary.size)
    return LocalModel(directory)


def conversation(vocabulary: Vocabulary) -> Iterator[tuple[Ids, Ids]]:
    """(what is new in the prompt, the answer) per turn: about 5,000 tokens, most of them two files that were read."""
    seen = ("samples/audit.py", "engines/transformers.py", "engines/tiny_model.py")
    for name, answer in zip(seen, ANSWERS, strict=True):
        text = (resources.files("bridle") / name).read_text()[:5500]
        asked = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        yield vocabulary.encode_split(asked), vocabulary.encode_split(f"{answer}<|im_end|>")


def captured(model: LocalModel, vocabulary: Vocabulary, temperature: float = 1.0) -> Sample:
    parts: list[Ids] = []
    turns: list[tuple[int, int]] = []
    logprobs: list[float] = []
    for new, answer in conversation(vocabulary):
        parts.append(new)
        draw = Draw(model, concatenate(parts), Sampling(len(answer), (), temperature))
        logprobs += [draw.step(int(id))[1] for id in answer]
        start = sum(map(len, parts))
        turns.append((start, start + len(answer)))
        parts.append(answer)
    bare = made(concatenate(parts), turns, temperature=temperature)
    aligned = np.zeros(len(bare.tokens), np.float32)
    aligned[np.flatnonzero(bare.loss_mask)] = logprobs
    return msgspec.structs.replace(bare, logprobs=aligned)


@pytest.fixture(scope="module")
def sample(model: LocalModel, vocabulary: Vocabulary) -> Sample:
    return captured(model, vocabulary)


@pytest.mark.parametrize("seed", range(4))
def test_a_faithful_capture_passes_with_room_to_spare(model: LocalModel, sample: Sample, seed: int) -> None:
    found = audit([sample], {0: model.score}, seed=seed)
    assert len(sample.tokens) > 4000
    assert found.audited == sample.trained > 20
    assert found.verdict == "ok"
    assert found.delta.max < 1e-4
    assert found.sensitivity > 2 * SENSITIVITY


def shifted_mask(sample: Sample) -> Sample:
    turns = tuple(turn._replace(start=turn.start - 1, end=turn.end - 1) for turn in sample.turns)
    return msgspec.structs.replace(
        sample,
        loss_mask=np.roll(sample.loss_mask, -1),
        logprobs=np.roll(sample.logprobs, -1),
        turns=turns,
        prompt_len=sample.prompt_len - 1,
    )


def swapped_token(sample: Sample) -> Sample:
    tokens = sample.tokens.copy()
    tokens[sample.turns[1].start + 2] += 1
    return msgspec.structs.replace(sample, tokens=tokens)


def swapped_context_token(sample: Sample) -> Sample:
    tokens = sample.tokens.copy()
    tokens[100] = tokens[101]
    return msgspec.structs.replace(sample, tokens=tokens)


def wrong_temperature(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, sampling={"temperature": 0.95})


def dropped_token(sample: Sample) -> Sample:
    return msgspec.structs.replace(
        sample,
        tokens=np.delete(sample.tokens, 100),
        loss_mask=np.delete(sample.loss_mask, 100),
        logprobs=np.delete(sample.logprobs, 100),
        turns=tuple(turn._replace(start=turn.start - 1, end=turn.end - 1) for turn in sample.turns),
        prompt_len=sample.prompt_len - 1,
    )


@pytest.mark.parametrize(
    "damage", [shifted_mask, swapped_token, swapped_context_token, wrong_temperature, dropped_token]
)
def test_damage_is_found(model: LocalModel, sample: Sample, damage: object) -> None:
    assert audit([damage(sample)], {0: model.score}).verdict == "mismatch"  # type: ignore[operator]


def test_weights_too_small_for_context_to_matter_are_insensitive(tmp_path: Path, vocabulary: Vocabulary) -> None:
    make_model(tmp_path, vocabulary.size, TinyModel(std=0.001))
    faint = LocalModel(tmp_path)
    found = audit([captured(faint, vocabulary)], {0: faint.score})
    assert found.verdict == "insensitive"
    assert found.delta.max < 1e-4
