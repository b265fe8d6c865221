"""One model call, from a parsed request to the draws that answer it.

match → splice and render the tail → record → sample → record → reply; and what to do when a request comes twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from bridle.engines.base import Engine, GenerateRequest
from bridle.errors import BridleError, PromptTooLong, SeamError
from bridle.gateway.access import LiveSession
from bridle.gateway.attempts import sampled
from bridle.gateway.calls import call_rule
from bridle.gateway.generation import Generation
from bridle.gateway.pause import Pause
from bridle.gateway.prompt import Prompt, prepare
from bridle.gateway.sampling import distribution_of, pinned, sampling_of
from bridle.lifetimes import Supervisor
from bridle.messages import Kind, Message, ModelRequest, Reply, Usage
from bridle.rendering.base import Renderer
from bridle.sessions.match import digest
from bridle.sessions.session import Draw, Session
from bridle.sessions.tree import Turn
from bridle.tokens import EMPTY

log = logging.getLogger("bridle.gateway")


class Answered(msgspec.Struct, frozen=True):
    """A turn that was recorded, for tools that look on. Either `reply` or `error` is set. Times in Unix seconds."""

    session: str
    turn: str
    kind: Kind
    request: ModelRequest
    reply: Reply | None
    error: BridleError | None
    started: float
    recorded: float


OnTurn = Callable[[Answered], None]


class Turns:
    """Runs model calls of all sessions over one renderer and one engine."""

    def __init__(
        self,
        renderer: Renderer,
        engine: Engine,
        supervisor: Supervisor,
        pause: Pause,
        *,
        abort_grace_s: float,
        engine_retries: int,
        on_turn: OnTurn | None = None,
    ) -> None:
        self.renderer = renderer
        self.engine = engine
        self.supervisor = supervisor
        self.pause = pause
        self.abort_grace_s = abort_grace_s
        self.engine_retries = engine_retries
        self.on_turn = on_turn

    def draws(self, live: LiveSession, request: ModelRequest) -> list[Generation]:
        """The draws that answer `request`: an earlier one for a retry, else new ones (n of them are true siblings).

        Nothing between the refusal and the start of a draw awaits, so a session is never sealed under one."""
        live.refuse_ending()
        request = pinned(request, live.session.options)
        asked = digest(request)
        if (earlier := _retried(live, request, asked)) is not None:
            return [earlier]
        live.session.admit(time.time(), request.wishes.n)
        return [self._draw(live, request, asked) for _ in range(request.wishes.n)]

    def count(self, live: LiveSession, request: ModelRequest) -> int:
        """Tokens of the prompt as it would be consumed, of an overlong one too; nothing is recorded."""
        request = pinned(request, live.session.options)
        try:
            return prepare(self.renderer, live.session, request, self.engine.facts.context_length).length
        except PromptTooLong as error:
            return error.tokens

    def _draw(self, live: LiveSession, request: ModelRequest, asked: bytes) -> Generation:
        session = live.session
        prompt, room = self._prompt(live, request)
        facts = self.engine.facts
        may_think = not prompt.thinking_open and self.renderer.thinking_end not in prompt.lead.tolist()
        calls, told = call_rule(session.options, request, self.renderer, facts, may_think)
        sampling, notes = sampling_of(session.options, request, room, self.renderer.stop_ids, facts, calls)
        turn = session.start(
            request,
            asked,
            prompt.found,
            prompt.rendered,
            prompt.lead,
            time.time(),
            prompt.before_stop,
            (*prompt.notes, *told, *notes),
            distribution_of(sampling, facts),
        )
        ids = session.tree.prompt(turn)
        if len(ids) != prompt.length:
            raise _misheld(session, turn, f"its prompt was rendered as {prompt.length} ids and is held as {len(ids)}")
        order = GenerateRequest(turn.id, ids, sampling, request, prompt.thinking_open, self.renderer.thinking_end)
        parser = self.renderer.parser(prompt.thinking_open, request.tools)
        usage = Usage(len(ids), 0, session.facts[turn.seq].held)
        spelling = self.renderer.vocabulary.token_bytes if request.wishes.logprobs else None
        generation = Generation(session, turn, request.model, parser, usage, sampling.stop, spelling)
        live.recent.append(generation)
        live.running.add(generation)
        self.supervisor.start(f"turn {turn.id}", self._run(live, generation, order))
        return generation

    async def _run(self, live: LiveSession, generation: Generation, order: GenerateRequest) -> None:
        started = time.time()
        chunks = sampled(self.engine, order, self.pause, self.engine_retries)
        try:
            await generation.run(chunks, order.sampling.stop_ids, self.abort_grace_s)
        finally:
            live.running.discard(generation)
            if self.on_turn is not None and order.conversation is not None:
                _tell(self.on_turn, generation, order.conversation, started)

    def _prompt(self, live: LiveSession, request: ModelRequest) -> tuple[Prompt, int]:
        """-> the prompt, and the room it leaves for an answer."""
        session, context = live.session, self.engine.facts.context_length
        own = session.options.limits.context_tokens or context
        try:
            prompt = prepare(self.renderer, session, request, context)
        except PromptTooLong:
            if own < context:
                session.note_refusal("context_tokens")
            raise
        return prompt, min(own, context) - prompt.length


def _misheld(session: Session, turn: Turn, why: str) -> SeamError:
    """The turn is recorded as started by now: it ends here, or it would look like one lost in a crash."""
    error = SeamError(f"turn {turn.id}: {why}")
    draw = Draw(EMPTY, None, "abort", failed=str(error))
    session.finish(turn, draw, Message("assistant", ()), time.time(), delivered=False)
    return error


def _tell(on_turn: OnTurn, draw: Generation, request: ModelRequest, started: float) -> None:
    turn = draw.turn
    try:
        on_turn(Answered(draw.session.id, turn.id, turn.kind, request, draw.reply, draw.error, started, time.time()))
    except Exception:
        log.exception("turn %s: who looks on failed; the turn is as it was", turn.id)


def _retried(live: LiveSession, request: ModelRequest, asked: bytes) -> Generation | None:
    """The same request again is a retry when the earlier one's client went away, or says so itself.

    While the earlier one is still connected, or after it had everything, it is an intended sibling: a new draw."""
    if request.wishes.n > 1:
        return None
    earlier = [draw for draw in reversed(live.recent) if draw.turn.digest == asked and draw.error is None]
    joinable = next((draw for draw in earlier if draw.joinable), None)
    if joinable is None and _says_retry(request):
        return next((draw for draw in earlier if draw.delivered), None)
    return joinable


def _says_retry(request: ModelRequest) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isascii() and count.isdigit() and count.strip("0") != ""
