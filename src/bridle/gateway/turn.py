"""One model call, from a parsed request to the draws that answer it.

match → splice and render the tail → record → sample → record → reply; and what to do when a request comes twice.
"""

from __future__ import annotations

import time

import msgspec

from bridle.engines.base import Engine, GenerateRequest, Sampling
from bridle.gateway.access import LiveSession
from bridle.gateway.generation import Generation
from bridle.gateway.prompt import prepare
from bridle.lifetimes import Supervisor
from bridle.messages import ModelRequest, Note, Usage
from bridle.rendering.base import Renderer
from bridle.sessions.match import digest
from bridle.sessions.records import SessionOptions


class Turns:
    """Runs model calls of all sessions over one renderer and one engine."""

    def __init__(self, renderer: Renderer, engine: Engine, supervisor: Supervisor, abort_grace_s: float) -> None:
        self.renderer = renderer
        self.engine = engine
        self.supervisor = supervisor
        self.abort_grace_s = abort_grace_s

    def draws(self, live: LiveSession, request: ModelRequest) -> list[Generation]:
        """The draws that answer `request`: an earlier one for a retry, else new ones (n of them are true siblings).

        Nothing between the refusal and the start of a draw awaits, so a session is never sealed under one."""
        live.refuse_ending()
        asked = digest(request)
        if (earlier := _retried(live, request, asked)) is not None:
            return [earlier]
        live.session.admit(request.wishes.n)
        return [self._draw(live, request, asked) for _ in range(request.wishes.n)]

    def count(self, live: LiveSession, request: ModelRequest) -> int:
        """Tokens of the prompt as it would be consumed; nothing is recorded."""
        return prepare(self.renderer, live.session, request, self.engine.facts.context_length).length

    def _draw(self, live: LiveSession, request: ModelRequest, asked: bytes) -> Generation:
        session = live.session
        prompt = prepare(self.renderer, session, request, self.engine.facts.context_length)
        sampling, notes = self._sampling(session.options, request, prompt.length)
        turn = session.start(
            request,
            asked,
            prompt.found,
            prompt.rendered,
            prompt.lead,
            time.time(),
            prompt.before_stop,
            (*prompt.notes, *notes),
        )
        ids = session.tree.prompt(turn)
        order = GenerateRequest(turn.id, ids, sampling, request, prompt.thinking_open)
        parser = self.renderer.parser(prompt.thinking_open, request.tools)
        usage = Usage(len(ids), 0, session.facts[turn.seq].held)
        generation = Generation(session, turn, request.model, parser, usage)
        live.recent.append(generation)
        live.running.add(generation)
        self.supervisor.start(f"turn {turn.id}", self._run(live, generation, order))
        return generation

    async def _run(self, live: LiveSession, generation: Generation, order: GenerateRequest) -> None:
        try:
            await generation.run(self.engine, order, self.abort_grace_s)
        finally:
            live.running.discard(generation)

    def _sampling(self, options: SessionOptions, request: ModelRequest, prompt: int) -> tuple[Sampling, list[Note]]:
        """The trainer's sampling; the client's wishes are recorded, its length limit is honoured."""
        room = self.engine.facts.context_length - prompt
        trainer = options.sampling
        if options.limits.context_tokens:
            room = min(room, options.limits.context_tokens - prompt)
        max_tokens = min(room, trainer.max_tokens, request.wishes.max_tokens or trainer.max_tokens)
        sampling = Sampling(
            max_tokens=max_tokens,
            stop_ids=self.renderer.stop_ids,
            temperature=trainer.temperature,
            seed=trainer.seed,
        )
        return sampling, _overridden(request, sampling)


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


def _overridden(request: ModelRequest, sampling: Sampling) -> list[Note]:
    wishes = request.wishes
    given = {
        "max_tokens": wishes.max_tokens if (wishes.max_tokens or 0) > sampling.max_tokens else None,
        "temperature": wishes.temperature if wishes.temperature != sampling.temperature else None,
        "top_p": wishes.top_p if wishes.top_p != 1.0 else None,
        "top_k": wishes.top_k if wishes.top_k != -1 else None,
        "seed": wishes.seed,
        "stop": wishes.stop or None,
        "tool_choice": wishes.tool_choice if wishes.tool_choice != "auto" else None,
        "logprobs": wishes.logprobs or None,
        "response_schema": "given" if request.response_schema is not None else None,
    }
    wished = {name: value for name, value in given.items() if value is not None}
    return [Note("wishes_overridden", msgspec.json.encode(wished).decode())] if wished else []


def _says_retry(request: ModelRequest) -> bool:
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdigit() and int(count) > 0
