"""A run of one rollout in which everything happened: forks, a retry, a sub-agent, an undelivered turn, hostile text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bridle.exporters.jsonl import JsonlExporter
from bridle.messages import CallStatus, FinishReason, Kind, Message, Note, Text, ThreadFacts
from bridle.rendering.tiny import make_tokenizer
from bridle.samples.linearize import Options, Result, linearize
from bridle.sessions.codec import MAGIC, encode
from bridle.sessions.match import Echo
from bridle.sessions.records import (
    Delivery,
    Finished,
    NewNode,
    Opened,
    Record,
    SessionOptions,
    Started,
    pack_ids,
    pack_logprobs,
)
from bridle.sessions.session import Session
from bridle.sessions.tree import ROOT, Origin
from bridle.tokens import Vocabulary, ids_of

LayDown = Callable[..., Result]
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


class Growing:
    """Records of a session, turn by turn. `node`: the one the last turn ended with."""

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self.vocabulary = vocabulary
        opened = Opened(name, "tiny", f"{vocabulary.fingerprint}/x", SessionOptions(), 100.0)
        self.records: list[Record] = [opened]
        self.nodes = 0
        self.turns = 0
        self.node = ROOT

    def turn(
        self,
        prompt: str,
        said: str,
        *,
        base: int | None = None,
        kind: Kind = "main",
        origin: Origin = "prompt",
        echoes: tuple[Echo, ...] = (),
        notes: tuple[Note, ...] = (),
        thread: ThreadFacts | None = None,
        finish: FinishReason = "stop",
        digest: bytes = b"",
        ill_formed: tuple[CallStatus, ...] = (),
    ) -> int:
        """-> the node behind which it was asked."""
        base = self.node if base is None else base
        seq, at = self.turns, 101.0 + 2 * self.turns
        end = self.vocabulary.controls["<|im_end|>"]
        ids = ids_of([*self.vocabulary.encode(said), end])
        new = NewNode(b"%d" % seq, origin, pack_ids(self.vocabulary.encode(prompt)))
        nodes = (new,) if prompt else ()
        parent = self.nodes if prompt else base
        start = Started(
            seq=seq,
            id=f"r-{seq}",
            base=base,
            before_stop=False,
            nodes=nodes,
            lead=pack_ids(self.vocabulary.encode_split("<|im_start|>assistant\n")),
            kind=kind,
            rule="test",
            digest=digest or b"%d" % seq,
            echoes=echoes,
            notes=notes,
            at=at,
            thread=thread,
        )
        logprobs = -(np.arange(len(ids), dtype=np.float32) % 9)
        self.records += [
            start,
            Finished(
                seq=seq,
                ids=pack_ids(ids),
                logprobs=pack_logprobs(logprobs),
                finish_reason=finish,
                versions=((0, 7),),
                message=Message("assistant", (Text(said),)),
                stop_id=end,
                reason=None,
                at=at + 1,
                ill_formed=ill_formed,
            ),
        ]
        self.nodes += len(nodes) + 1
        self.node = self.nodes - 1
        self.turns += 1
        return parent


def _grown(vocabulary: Vocabulary, name: str = "r") -> list[Record]:
    growing = Growing(vocabulary, name)
    growing.turn(f"Fix it. {HOSTILE} 日本 👍🏽\tend\n", f"I look. {HOSTILE}")
    asked = growing.turn("A result.\n", "This one gets lost.", digest=b"same", echoes=(Echo(0, "exact"),))
    growing.records.append(Delivery(1, delivered=False))
    growing.turn("", "This one arrives.", base=asked, digest=b"same")
    growing.turn(
        "Said otherwise.",
        "I go on.",
        base=0,
        origin="context",
        echoes=(Echo(2, "text_edited"),),
        notes=(Note("reordered", HOSTILE),),
        ill_formed=("invalid_json",),
    )
    growing.turn("You are a helper.", "I help.", base=ROOT, kind="subagent", thread=ThreadFacts("a1", "", 1))
    growing.turn("A title, please.", "Calculator", base=ROOT, kind="auxiliary", finish="length")
    return growing.records


def _lay_down(
    run: Path, records: list[Record], model: Path, reward: float | None = 1.0, most: int | None = None
) -> Result:
    """What a rollout leaves in its folder, samples cut to `most` tokens -> its samples and fidelity record."""
    session = Session.replay(records)
    place = run / "rollouts" / session.id
    place.mkdir(parents=True)
    (place / "session.log").write_bytes(MAGIC + b"".join(map(encode, records)))
    result = linearize(
        session.tree, msgspec.structs.replace(Options.of(session), max_sample_tokens=most), session.facts
    )
    JsonlExporter().write(result.samples, place / "samples.jsonl")
    (place / "fidelity.json").write_bytes(msgspec.json.encode(result.fidelity))
    record = {"id": session.id, "task": "t", "group": "g", "harness": "command", "cause": "finished", "detail": HOSTILE}
    graded = {"reward": reward, "reward_valid": reward is not None}
    (place / "rollout.json").write_bytes(msgspec.json.encode({**record, **graded}))
    (run / "settings.json").write_bytes(msgspec.json.encode({"model": str(model)}))
    return result


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary.load(model)


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture
def grown(vocabulary: Vocabulary) -> list[Record]:
    return _grown(vocabulary)


@pytest.fixture
def lay_down() -> LayDown:
    return _lay_down


@pytest.fixture
def run(tmp_path: Path, model: Path, vocabulary: Vocabulary) -> Path:
    _lay_down(tmp_path / "run", _grown(vocabulary, "r"), model)
    _lay_down(tmp_path / "run", _grown(vocabulary, "s"), model, reward=0.0)
    return tmp_path / "run"
