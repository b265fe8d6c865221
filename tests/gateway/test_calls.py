"""Which calls an answer is held to: the request's wish, the session's word, what engine and model can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from bridle.engines.base import CallRule, EngineFacts
from bridle.engines.calls import Call
from bridle.engines.script import ScriptTurn
from bridle.errors import BadRequest
from bridle.gateway.calls import call_rule
from bridle.gateway.sampling import sampling_of
from bridle.messages import Message, ModelRequest, Text, Tool, Wishes
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.sessions.records import SessionOptions, TrainingSampling

PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = (Tool("read", parameters=PATH), Tool("list", parameters=PATH))
ABLE = EngineFacts("able", "m", 1000, constrains=True, holds_calls=True)
UNABLE = EngineFacts("unable", "m", 1000, constrains=True)
ANY = Wishes(tool_choice="required")
NONE = Wishes(tool_choice="none")
ONE = Wishes(parallel_calls=False)
SCHEMA = {"type": "object"}


def asked(wishes: Wishes, **fields: Any) -> ModelRequest:
    return ModelRequest(
        "openai_chat", "m", (Message("user", (Text("u"),)),), **{"tools": TOOLS, "wishes": wishes} | fields
    )


def opened(precedence: str = "enforce", **options: Any) -> SessionOptions:
    return SessionOptions(sampling=TrainingSampling(precedence=precedence), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("precedence", ["enforce", "default", "client"])
@pytest.mark.parametrize(
    ("wishes", "bounds", "names", "told"),
    [
        (NONE, (0, 0), ["read", "list"], "no call"),
        (ANY, (1, None), ["read", "list"], "a call"),
        (Wishes(tool_choice="required", allowed=("list",)), (1, None), ["list"], "a call of list"),
        (Wishes(tool_choice="required", parallel_calls=False), (1, 1), ["read", "list"], "one call"),
        (Wishes(allowed=("list",)), (0, None), ["list"], "any call of list"),
        (Wishes(allowed=("read", "list")), (0, None), ["read", "list"], "any call of read, list"),
    ],
)
def test_whether_there_is_a_call_and_of_what_is_held_to_under_every_precedence(
    renderer: TemplateRenderer, precedence: str, wishes: Wishes, bounds: Any, names: list[str], told: str
) -> None:
    rule, notes = call_rule(opened(precedence), asked(wishes), renderer, ABLE)
    assert rule is not None
    assert ((rule.least, rule.most), [tool.name for tool in rule.spelling.tools]) == (bounds, names)
    assert [(note.what, note.detail) for note in notes] == [("tool_choice_held", told)]
    sampling, overridden = sampling_of(opened(precedence), asked(wishes), 9, (1,), ABLE, rule)
    assert (sampling.calls, overridden) == (rule, ())


@pytest.mark.parametrize(("precedence", "held"), [("enforce", False), ("default", True), ("client", True)])
def test_one_call_at_a_time_is_how_a_client_would_like_it(
    renderer: TemplateRenderer, precedence: str, held: bool
) -> None:
    rule, notes = call_rule(opened(precedence), asked(ONE), renderer, ABLE)
    _, overridden = sampling_of(opened(precedence), asked(ONE), 9, (1,), ABLE, rule)
    assert (rule is not None and rule.most == 1) is held
    assert [note.detail for note in notes] == ["one call at most"] * held
    assert [orjson.loads(note.detail) for note in overridden] == [{"parallel_calls": False}] * (not held)


@pytest.mark.parametrize("wishes", [Wishes(), Wishes(parallel_calls=True)])
def test_a_request_that_wishes_nothing_of_calls_is_held_to_nothing(renderer: TemplateRenderer, wishes: Wishes) -> None:
    assert call_rule(opened("client"), asked(wishes), renderer, ABLE) == (None, ())


@pytest.mark.parametrize("wishes", [NONE, ONE])
def test_without_tools_there_is_nothing_to_hold_to(renderer: TemplateRenderer, wishes: Wishes) -> None:
    for precedence in ("enforce", "client"):
        request = asked(wishes, tools=())
        assert call_rule(opened(precedence), request, renderer, UNABLE) == (None, ())
        assert sampling_of(opened(precedence), request, 9, (1,), UNABLE)[1] == ()


def test_a_session_may_take_the_choice_as_a_wish(renderer: TemplateRenderer) -> None:
    options = opened(tool_choice="record")
    for wishes, wished in [
        (ANY, {"tool_choice": "required"}),
        (NONE, {"tool_choice": "none"}),
        (Wishes(tool_choice="required", allowed=("list",)), {"tool_choice": "required", "allowed": ["list"]}),
    ]:
        for facts in (ABLE, UNABLE):
            assert call_rule(options, asked(wishes), renderer, facts) == (None, ())
            _, (note,) = sampling_of(options, asked(wishes), 9, (1,), facts)
            assert (note.what, orjson.loads(note.detail)) == ("wishes_overridden", wished)


@pytest.mark.parametrize("precedence", ["enforce", "client"])
def test_a_needed_call_is_refused_where_the_engine_cannot_be_held_to_one(
    renderer: TemplateRenderer, precedence: str
) -> None:
    why = r'engine unable cannot hold an answer to calls; leave the choice .* or open .* tool_choice = "record"'
    with pytest.raises(BadRequest, match=f"tool_choice: the {why}"):
        call_rule(opened(precedence), asked(ANY), renderer, UNABLE)


def test_a_needed_call_is_refused_where_the_model_has_no_calls(renderer_directory: Path) -> None:
    silent = load_renderer(renderer_directory, calls="none")
    with pytest.raises(BadRequest, match="tool_choice: this model has no known form of tool calls"):
        call_rule(opened(), asked(ANY), silent, ABLE)


@pytest.mark.parametrize(
    ("wishes", "told"),
    [(NONE, "no call"), (ONE, "one call at most"), (Wishes(allowed=("read",)), "any call of read")],
)
def test_what_no_client_breaks_on_is_let_go_with_a_note_where_the_engine_cannot(
    renderer: TemplateRenderer, wishes: Wishes, told: str
) -> None:
    rule, (note,) = call_rule(opened("default"), asked(wishes), renderer, UNABLE)
    assert (rule, note.what) == (None, "tool_choice_ignored")
    assert note.detail == f"{told}: the engine unable cannot hold an answer to calls"


def test_an_answer_that_is_json_has_no_calls_and_one_that_needs_a_call_is_no_json(renderer: TemplateRenderer) -> None:
    for wishes in (NONE, ONE, Wishes(allowed=("read",))):
        request = asked(wishes, response_schema=SCHEMA)
        assert call_rule(opened("default"), request, renderer, ABLE) == (None, ())
    request = asked(ANY, response_schema=SCHEMA)
    rule, _ = call_rule(opened(), request, renderer, ABLE)
    sampling, _ = sampling_of(opened(), request, 9, (1,), ABLE, rule)
    assert (sampling.calls, sampling.schema) == (rule, None)


def test_whether_the_model_may_think_first_is_told_to_the_engine(renderer: TemplateRenderer) -> None:
    for may_think in (False, True):
        rule, _ = call_rule(opened(), asked(ANY), renderer, ABLE, may_think)
        assert isinstance(rule, CallRule)
        assert rule.may_think is may_think


EDIT = ScriptTurn(calls=(Call(tool="bash", arguments={"command": "ls"}),))


async def test_turns_held_to_a_call_do_not_train_and_say_why(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(EDIT, ScriptTurn(text="Done."), reasons=("constrained",)) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        await agent.ask(tool_choice="required")
        agent.tell("And?")
        await agent.ask(tool_choice="auto")
        await g.checked()
    assert [turn.reason for turn in g.turns] == ["constrained", None]
    assert [(note.what, note.detail) for note in g.turns[0].notes] == [("tool_choice_held", "a call")]
    assert g.turns[1].notes == ()


async def test_an_agent_that_needs_a_call_every_time_trains_where_its_session_records_that(  # type: ignore[no-untyped-def]
    grounds, agents
) -> None:
    async with grounds(EDIT) as g:
        agent = agents("openai", await g.open(tool_choice="record"))
        agent.tell("Go.")
        await agent.ask(tool_choice="required")
        await g.checked()
    assert [turn.reason for turn in g.turns] == [None]
    assert g.notes == ["wishes_overridden"]


@pytest.mark.parametrize(("thinking", "may_think"), [(None, True), (False, False)])
async def test_a_prompt_with_a_closed_reasoning_block_leaves_no_room_for_another(  # type: ignore[no-untyped-def]
    grounds, agents, monkeypatch: pytest.MonkeyPatch, thinking: bool | None, may_think: bool
) -> None:
    async with grounds(EDIT, reasons=("constrained",)) as g:
        rules = []
        generate = g.engine.generate
        monkeypatch.setattr(
            g.engine, "generate", lambda request: rules.append(request.sampling.calls) or generate(request)
        )
        agent = agents("openai", await g.open(thinking=thinking))
        agent.tell("Go.")
        await agent.ask(tool_choice="required")
        await g.checked()
    assert [rule.may_think for rule in rules] == [may_think]


@pytest.mark.parametrize(("precedence", "reasons"), [("enforce", [None, None]), ("default", ["constrained", None])])
async def test_one_call_at_a_time_costs_a_call_its_training_only_where_the_client_is_heard(  # type: ignore[no-untyped-def]
    grounds, agents, precedence: str, reasons: list[str | None]
) -> None:
    async with grounds(EDIT, ScriptTurn(text="Done."), reasons=("constrained",)) as g:
        agent = agents("openai", await g.open(sampling=TrainingSampling(precedence=precedence)))
        agent.tell("Go.")
        answer = await agent.ask(parallel_tool_calls=False)
        agent.remember(answer)
        agent.results([(answer.calls[0][0], "a.py")])
        await agent.ask(parallel_tool_calls=False)
        await g.checked()
    assert [turn.reason for turn in g.turns] == reasons
    assert set(g.notes) == {"tool_choice_held" if precedence == "default" else "wishes_overridden"}


async def test_a_second_call_where_one_was_asked_for_is_an_error_of_the_script(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    twice = ScriptTurn(calls=EDIT.calls * 2)
    async with grounds(twice, engine_retries=0) as g:
        agent = agents("openai", await g.open(sampling=TrainingSampling(precedence="default")))
        agent.client.max_retries = 0
        agent.tell("Go.")
        with pytest.raises(openai.InternalServerError, match="takes one call at most, and the script says bash, bash"):
            await agent.ask(parallel_tool_calls=False)
