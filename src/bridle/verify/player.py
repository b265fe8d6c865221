"""Plays a conversation the way the gateway does: matched, extended, sampled, parsed, recorded, echoed.

What an engine would do is done here with a script: the draw is the model's answer as the renderer spells it, in a
segmentation no tokenizer would choose. A journal of its own says what went in and what came out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from bridle.errors import BadRequest, BridleError, TemplateError
from bridle.gateway.prompt import Prompt, prepare
from bridle.gateway.stops import cut
from bridle.messages import Message, ModelRequest, Switches, Text, Thinking, ToolCall, Wishes
from bridle.rendering.base import Renderer
from bridle.sessions.match import digest
from bridle.sessions.records import Opened, SessionOptions
from bridle.sessions.session import Draw, Session
from bridle.sessions.tree import Turn
from bridle.tokens import Ids, concatenate, ids_of
from bridle.verify.conversations import Needs, Play, Step, call, said, user

CONTEXT = 1 << 24
DROPOUT = 0.4
"""How often a token of a draw is taken apart."""

REFUSALS = (BadRequest, TemplateError)
"""What a request or a template may be to blame for. Any other error is one of the renderer or of Bridle's."""

Sampler = Callable[[Ids, "Asked"], "Drawn"]
"""(prompt, what is asked) -> what an engine returns."""


class Asked(msgspec.Struct, frozen=True):
    """`thinking_open`: the prompt ends inside an opened reasoning block."""

    step: Step
    thinking_open: bool


class Drawn(msgspec.Struct, frozen=True):
    """`logprobs` None: nothing scored them."""

    ids: Ids
    finish: Literal["stop", "length"]
    stop_id: int | None = None
    stop_sequence: str = ""
    logprobs: np.ndarray | None = None


@dataclass
class Call:
    """One model call as it was played. `said`: the answer that was put in, `heard`: what was parsed from it, identities
    and all. `history`: the request's messages with every answer as it was heard, before the agent changed it.
    `before`: the call of this thread that this one goes on from (None: the first one, or a summary stands between).
    `carried`: the one whose answer stands behind the summary."""

    play: Play
    step: Step
    number: int
    request: ModelRequest
    history: tuple[Message, ...]
    prompt: Prompt
    turn: Turn
    ids: Ids
    drawn: Drawn
    said: Message
    heard: Message
    before: Call | None
    carried: Call | None

    @property
    def whole(self) -> bool:
        """Whether the answer came to the end that was meant."""
        return self.step.end in ("stop", "other_stop", "unreturned")


@dataclass
class Played:
    """`refused`: why the play broke off, "" where it did not. `broken`: what broke it off that is no refusal.
    `left_out`: why it was not played at all."""

    play: Play
    session: Session
    calls: list[Call] = field(default_factory=list)
    refused: str = ""
    broken: BridleError | None = None
    left_out: str = ""

    def break_off(self, error: BridleError) -> None:
        if isinstance(error, REFUSALS):
            self.refused = error.message
        else:
            self.broken = error


class Abilities(msgspec.Struct, frozen=True):
    """What the renderer can write for its model to say; "" or the reason why not."""

    calls: str
    thinking: str

    def lack(self, needs: Needs) -> str:
        return self.calls if needs == "calls" else self.thinking


def abilities(renderer: Renderer) -> Abilities:
    def lack(message: Message) -> str:
        try:
            renderer.write(message, False)
        except TemplateError as error:
            return error.message
        return ""

    return Abilities(lack(said("", call("bash", command="ls"))), lack(said("x", thinking="y")))


class Player:
    """Plays over one renderer. `dropout` 0 draws the ids the vocabulary itself gives."""

    def __init__(
        self, renderer: Renderer, seed: int = 0, dropout: float = DROPOUT, sampler: Sampler | None = None
    ) -> None:
        self.renderer = renderer
        self.able = abilities(renderer)
        self.dropout = dropout
        self._rng = random.Random(seed)
        self._sampler = sampler or self._script

    def play(self, play: Play) -> Played:
        """Stops at the first request that is refused."""
        played = Played(play, open_session(self.renderer, play.name))
        if lacks := [self.able.lack(need) for need in play.needs if self.able.lack(need) and need == "calls"]:
            played.left_out = lacks[0]
            return played
        threads: dict[str, _Thread] = {}
        for number, step in enumerate(play.steps):
            thread = threads.setdefault(step.thread, _Thread(list(play.begins.get(step.thread, ()))))
            try:
                played.calls.append(self._call(played, step, number, thread))
            except BridleError as error:
                played.break_off(error)
                break
        return played

    def replay(self, name: str, requests: Sequence[ModelRequest], session_id: str) -> Played:
        """Requests that an agent once sent, each behind the answers of those before it: what it sent back is put in as
        what the model says. `session_id`: of the session they were sent in, so that identities are the same."""
        said = [_answer_to(request, then) for request, then in pairwise(requests)]
        steps = [Step(answer) for answer in (*said, Message("assistant", (Text("Done."),)))]
        play = Play(name, tuple(steps), tools=requests[0].tools)
        played = Played(play, open_session(self.renderer, session_id))
        history: tuple[Message, ...] = ()
        for number, (step, request) in enumerate(zip(steps, requests, strict=True)):
            known = len(history)
            history = (*history, *request.messages[known:])
            before = played.calls[-1] if played.calls else None
            try:
                played.calls.append(self._ask(played, step, number, request, history, before))
            except BridleError as error:
                played.break_off(error)
                break
            history = (*history, played.calls[-1].heard)
        return played

    def _call(self, played: Played, step: Step, number: int, thread: _Thread) -> Call:
        thread.add(step)
        request = ModelRequest(
            "openai_chat",
            "m",
            tuple(thread.sent),
            played.play.tools,
            Wishes(stop=(step.stop,) if step.stop else ()),
            switches=step.switches,
        )
        call = self._ask(played, step, number, request, tuple(thread.heard), thread.last, thread.carried)
        thread.answer(call)
        return call

    def _ask(
        self,
        played: Played,
        step: Step,
        number: int,
        request: ModelRequest,
        history: tuple[Message, ...],
        before: Call | None,
        carried: Call | None = None,
    ) -> Call:
        session = played.session
        prompt = prepare(self.renderer, session, request, CONTEXT)
        turn = session.start(
            request, digest(request), prompt.found, prompt.rendered, prompt.lead, 0.0, prompt.before_stop, prompt.notes
        )
        ids = session.tree.prompt(turn)
        step = self._possible(step)
        drawn = self._sampler(ids, Asked(step, prompt.thinking_open))
        heard = self._heard(session, turn, drawn, request, prompt.thinking_open)
        return Call(
            *(
                played.play,
                step,
                number,
                request,
                history,
                prompt,
                turn,
                ids,
                drawn,
                step.answer,
                heard,
                before,
                carried,
            )
        )

    def _possible(self, step: Step) -> Step:
        """Without the reasoning that the model has no tags for."""
        if not self.able.thinking:
            return step
        parts = tuple(part for part in step.answer.parts if not isinstance(part, Thinking))
        return msgspec.structs.replace(step, answer=msgspec.structs.replace(step.answer, parts=parts))

    def _heard(self, session: Session, turn: Turn, drawn: Drawn, request: ModelRequest, thinking_open: bool) -> Message:
        parser = self.renderer.parser(thinking_open, request.tools)
        parser.feed(drawn.ids.tolist())
        message = cut(parser.finish()[0], drawn.stop_sequence)
        logprobs = np.zeros(len(drawn.ids), np.float32) if drawn.logprobs is None else drawn.logprobs
        draw = Draw(
            drawn.ids, logprobs, drawn.finish, ((0, 0),), stop_id=drawn.stop_id, stop_sequence=drawn.stop_sequence
        )
        finished = session.finish(turn, draw, message, 0.0).message
        assert finished is not None
        return finished

    def _script(self, prompt: Ids, asked: Asked) -> Drawn:
        step = asked.step
        ids = spell(self.renderer, self.renderer.write(step.answer, asked.thinking_open))
        ids = self.renderer.vocabulary.resegment(ids.tolist(), self._rng, self.dropout)
        return ended(self.renderer, ids, step, self._rng)


@dataclass
class _Thread:
    """`sent`: the messages as the agent sends them; `heard`: with every answer as it was given."""

    sent: list[Message]
    heard: list[Message] = field(default_factory=list)
    last: Call | None = None
    carried: Call | None = None

    def __post_init__(self) -> None:
        self.heard = list(self.sent)

    def add(self, step: Step) -> None:
        if step.fold:
            summary = [user("Summary: all is well so far.")]
            self.sent = [*_leading(self.sent), *summary, *self.sent[-1:]]
            self.heard = [*_leading(self.heard), *summary, *self.heard[-1:]]
        calls = self.last.heard.calls if self.last else ()
        texts = [*step.results, *[""] * len(calls)][: len(calls)]
        results = [Message("tool", (Text(text),), call.id) for call, text in zip(calls, texts, strict=True)]
        # Cut, or left to itself, a model may not have called at all.
        says = step.says if results or step.says or not self.last else (user("go on"),)
        self.sent += [*results, *says]
        self.heard += [*results, *says]
        self.carried = self.last if step.fold else None
        self.last = None if step.fold else self.last

    def answer(self, call: Call) -> None:
        self.last = call
        self.sent.append(echoed(call.heard, call.step.echo))
        self.heard.append(call.heard)


def _answer_to(request: ModelRequest, then: ModelRequest) -> Message:
    """What `then` has behind the messages of `request`: the answer, without the identities it got."""
    echoed = then.messages[len(request.messages)]
    parts = [msgspec.structs.replace(p, id="") if isinstance(p, ToolCall) else p for p in echoed.parts]
    unsigned = [msgspec.structs.replace(p, signature="") if isinstance(p, Thinking) else p for p in parts]
    return Message("assistant", tuple(unsigned))


def open_session(renderer: Renderer, session_id: str) -> Session:
    session = Session()
    session.open(Opened(session_id, "m", renderer.facts.fingerprint, SessionOptions(), 0.0))
    return session


def spell(renderer: Renderer, pieces: Sequence[str | int]) -> Ids:
    return concatenate([renderer.vocabulary.encode(p) if isinstance(p, str) else ids_of([p]) for p in pieces])


def ended(renderer: Renderer, ids: Ids, step: Step, rng: random.Random) -> Drawn:
    """The draw `ids`, which ends with a stop id, as `step` ends it."""
    match step.end:
        case "length":
            return Drawn(ids[: max(1, min(len(ids) - 1, int(len(ids) * step.keep)))], "length")
        case "text":
            return Drawn(ids[: _until(renderer, ids, step.stop)], "stop", stop_sequence=step.stop)
        case "unreturned":
            return Drawn(ids[:-1], "stop")
        case "other_stop":
            ids = concatenate([ids[:-1], ids_of([rng.choice(renderer.stop_ids)])])
    return Drawn(ids, "stop", int(ids[-1]) if int(ids[-1]) in renderer.stop_ids else None)


def echoed(message: Message, echo: str) -> Message:
    """`message` as the agent sends it back."""
    return msgspec.structs.replace(message, parts=tuple(_echoed(message, echo)))


def _echoed(message: Message, echo: str) -> Iterator[Text | Thinking | ToolCall]:
    for part in message.parts:
        match part:
            case Thinking():
                if echo != "reasoning_dropped":
                    yield part
            case Text(text):
                yield Text(f" {text}\n") if echo == "whitespace" else part
            case ToolCall():
                yield (
                    msgspec.structs.replace(part, arguments=_rewritten(part.arguments))
                    if echo == "args_rewritten"
                    else part
                )


def _rewritten(arguments: str) -> str:
    try:
        return json.dumps({**dict(reversed(json.loads(arguments).items())), "timeout": 5})
    except ValueError:
        return arguments


def _until(renderer: Renderer, ids: Ids, text: str) -> int:
    """How many of `ids` it takes to say `text`."""
    said = b""
    for count, id in enumerate(ids.tolist(), 1):
        said += renderer.vocabulary.token_bytes(id)
        if text.encode() in said:
            return count
    return len(ids)


def _leading(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages[:1] if message.role in ("system", "developer")]


def settings_of(call: Call) -> Switches:
    return call.request.switches
