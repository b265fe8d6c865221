"""Which calls an answer may have: what the request says of it, what the session makes of that, what the engine can do.

Whether there is a call, and of which tools, is a form of the answer: who asked for one cannot use another. So it holds
under every precedence, as a JSON schema does, unless the session says `record`. Whether calls come one at a time is
part of how is sampled: the trainer's word comes first, but where the answer is held to a call anyway.
"""

from __future__ import annotations

from bridle.engines.base import CallRule, EngineFacts
from bridle.errors import BadRequest
from bridle.messages import ModelRequest, Note
from bridle.rendering.base import Renderer
from bridle.rendering.constrain import spell_calls
from bridle.sessions.records import SessionOptions
from bridle.tokens import CallSpelling


def call_rule(
    options: SessionOptions, request: ModelRequest, renderer: Renderer, facts: EngineFacts, may_think: bool = False
) -> tuple[CallRule | None, tuple[Note, ...]]:
    """`may_think`: the model may open a reasoning block of its own. Raises BadRequest where a call is needed, and the
    model or the engine cannot be held to one."""
    least, most = _bounds(options, request)
    allowed = request.wishes.allowed if options.tool_choice == "hold" else ()
    json = request.response_schema is not None and not least
    if not request.tools or json or (least, most, allowed) == (0, None, ()):
        return None, ()
    offered = [tool for tool in request.tools if most == 0 or not allowed or tool.name in allowed]
    spelling = spell_calls(renderer.write, offered)
    asked = _told(least, most, allowed)
    why_not = _obstacle(spelling, facts, least)
    if spelling is not None and not why_not:
        return CallRule(spelling, least, most, may_think), (Note("tool_choice_held", asked),)
    if least:
        raise BadRequest(
            f"tool_choice: {why_not}; leave the choice to the model (auto), or open the session with "
            'tool_choice = "record"'
        )
    return None, (Note("tool_choice_ignored", f"{asked}: {why_not}"),)


def _bounds(options: SessionOptions, request: ModelRequest) -> tuple[int, int | None]:
    """-> how many calls there are at least and at most."""
    choice = request.wishes.tool_choice if options.tool_choice == "hold" else "auto"
    if choice == "none":
        return 0, 0
    least = int(choice == "required")
    heard = least or options.sampling.precedence != "enforce"
    return least, 1 if heard and request.wishes.parallel_calls is False else None


def _obstacle(spelling: CallSpelling | None, facts: EngineFacts, least: int) -> str:
    if spelling is None:
        return "this model has no known form of tool calls"
    if not facts.holds_calls:
        return f"the engine {facts.name} cannot hold an answer to calls"
    if spelling.mark is None and not least:
        return "this model begins its calls with nothing that could not be text"
    return ""


def _told(least: int, most: int | None, allowed: tuple[str, ...]) -> str:
    if most == 0:
        return "no call"
    number = {(0, None): "any call", (0, 1): "one call at most", (1, None): "a call", (1, 1): "one call"}[least, most]
    return f"{number} of {', '.join(allowed)}" if allowed else number
