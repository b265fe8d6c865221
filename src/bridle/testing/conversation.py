"""A session driven without a renderer: every unit becomes ids made from its key, every draw is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridle.messages import Message, ModelRequest, Text, Thinking, Tool, ToolCall, Wishes
from bridle.sessions.match import KEPT, Settled, Step, digest, match
from bridle.sessions.records import Opened, SessionOptions
from bridle.sessions.session import Draw, Session
from bridle.sessions.tree import Turn
from bridle.tokens import Ids, concatenate, ids_of

STOP = 9
TOOLS = (Tool("bash", "run", {"type": "object"}),)


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def said(text: str = "", *calls: ToolCall, thinking: str = "") -> Message:
    parts: list[Text | Thinking | ToolCall] = [Thinking(thinking)] if thinking else []
    if text:
        parts.append(Text(text))
    return Message("assistant", (*parts, *calls))


def call(arguments: str = "{}", name: str = "bash", id: str = "") -> ToolCall:
    return ToolCall(id, name, arguments)


def result(call_id: str, text: str = "ok") -> Message:
    return Message("tool", (Text(text),), call_id=call_id)


def request(*messages: Message, tools: tuple[Tool, ...] = TOOLS, **wishes: object) -> ModelRequest:
    return ModelRequest("openai_chat", "m", messages, tools, Wishes(**wishes))  # type: ignore[arg-type]


class Played:
    """A session whose records are kept, so that a replay can be compared."""

    def __init__(self, options: SessionOptions = SessionOptions()) -> None:
        self.records: list[object] = []
        self.session = Session(self.records.append)
        self.session.open(Opened("s", "m", "r", options, 0.0))

    def start(self, asked: ModelRequest, before_stop: bool = False, settled: Settled = KEPT) -> Turn:
        self.session.admit(1.0)
        found = match(self.session.tree, asked, settled=settled)
        rendered = [self.ids(step) for step in found.steps]
        return self.session.start(asked, digest(asked), found, rendered, ids_of([7]), 1.0, before_stop)

    def ids(self, step: Step) -> Ids:
        if step.unit == "transplant":
            turn = self.session.tree.turns[step.turn]
            return concatenate([turn.lead, turn.sampled if turn.stop_id is None else turn.sampled[:-1]])
        return ids_of([1000 + step.key[0], 1000 + step.key[1]])

    def turn(
        self, asked: ModelRequest, answer: Message, ids: Sequence[int] = (5, 6, STOP), delivered: bool = True
    ) -> Message:
        turn = self.start(asked)
        self.finish(turn, answer, ids, delivered)
        assert turn.message is not None
        return turn.message

    def finish(self, turn: Turn, answer: Message, ids: Sequence[int] = (5, 6, STOP), delivered: bool = True) -> None:
        logprobs = np.full(len(ids), -0.5, np.float32)
        stop = ids[-1] if ids and ids[-1] == STOP else None
        draw = Draw(ids_of(ids), logprobs, "stop", ((0, 1),), stop_id=stop)
        self.session.finish(turn, draw, answer, 2.0, delivered=delivered)

    @property
    def last(self) -> Turn:
        return self.session.tree.turns[-1]

    def prompt(self) -> list[int]:
        prompt: list[int] = self.session.tree.prompt(self.last).tolist()
        return prompt

    def facts(self) -> object:
        return self.session.facts[self.last.seq]
