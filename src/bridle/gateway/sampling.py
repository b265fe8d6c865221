"""How one turn is sampled: the trainer's word against the client's, by the session's precedence.

What a client wished and did not get is a note of its turn. A shorter length, stop texts, a JSON schema and a choice of
tools (`calls`) are followed under every precedence: they end an answer or make it `constrained`, they do not change
what it is drawn from otherwise.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from bridle.engines.base import CallRule, EngineFacts, Sampling
from bridle.errors import BadRequest
from bridle.messages import ModelRequest, Note, Switches
from bridle.sessions.records import Distribution, SessionOptions, TrainingSampling

T = TypeVar("T")


def sampling_of(
    options: SessionOptions,
    request: ModelRequest,
    room: int,
    stop_ids: tuple[int, ...],
    facts: EngineFacts,
    calls: CallRule | None = None,
) -> tuple[Sampling, tuple[Note, ...]]:
    """`room`: tokens the answer may have. Raises BadRequest for a schema that the engine cannot hold an answer to."""
    schema = None if calls is not None and calls.least else request.response_schema
    if schema is not None and not facts.constrains:
        raise BadRequest(
            f"response_format: the engine {facts.name} cannot hold an answer to a JSON schema; drop response_format or "
            "use an engine that can"
        )
    trainer, wishes = options.sampling, request.wishes
    base = trainer if trainer.precedence != "client" else TrainingSampling(max_tokens=trainer.max_tokens)
    heard = trainer.precedence != "enforce"
    longest = trainer.max_tokens if not heard else room
    sampling = Sampling(
        max_tokens=min(room, longest, wishes.max_tokens or trainer.max_tokens),
        stop_ids=stop_ids,
        temperature=_chosen(heard, wishes.temperature, base.temperature),
        top_p=_chosen(heard, wishes.top_p, 1.0),
        top_k=_chosen(heard, wishes.top_k, -1),
        seed=_chosen(heard, wishes.seed, base.seed),
        stop=tuple(text for text in wishes.stop if text),
        schema=schema,
        calls=calls,
    )
    return sampling, _overridden(request, options, sampling)


def distribution_of(sampling: Sampling, facts: EngineFacts) -> Distribution:
    return Distribution(sampling.temperature, sampling.top_p, sampling.top_k, facts.logprobs)


def pinned(request: ModelRequest, options: SessionOptions) -> ModelRequest:
    """`request` with the switches the session pins."""
    asked = request.switches
    switches = Switches(
        asked.thinking if options.thinking is None else options.thinking, options.effort or asked.effort
    )
    if switches == asked:
        return request
    note = Note("switches_pinned", msgspec.json.encode(msgspec.to_builtins(asked)).decode())
    return msgspec.structs.replace(request, switches=switches, notes=(*request.notes, note))


def _chosen(heard: bool, wish: T | None, otherwise: T) -> T:
    return wish if heard and wish is not None else otherwise


def _overridden(request: ModelRequest, options: SessionOptions, sampling: Sampling) -> tuple[Note, ...]:
    wishes = request.wishes
    recorded = options.tool_choice == "record"
    several = options.sampling.precedence == "enforce" and (sampling.calls is None or sampling.calls.most is None)
    given: dict[str, Any] = {
        "max_tokens": wishes.max_tokens if (wishes.max_tokens or 0) > sampling.max_tokens else None,
        "temperature": wishes.temperature if wishes.temperature != sampling.temperature else None,
        "top_p": wishes.top_p if wishes.top_p != sampling.top_p else None,
        "top_k": wishes.top_k if wishes.top_k != sampling.top_k else None,
        "seed": wishes.seed if wishes.seed != sampling.seed else None,
        "tool_choice": wishes.tool_choice if recorded and wishes.tool_choice != "auto" else None,
        "allowed": wishes.allowed if recorded and wishes.allowed else None,
        "parallel_calls": False if several and wishes.parallel_calls is False and request.tools else None,
    }
    wished = {name: value for name, value in given.items() if value is not None}
    return (Note("wishes_overridden", msgspec.json.encode(wished).decode()),) if wished else ()
