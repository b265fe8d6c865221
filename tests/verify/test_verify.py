"""A good model is proved; every planted fault is refuted under the property that it breaks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from bridle.errors import SeamError, TemplateError
from bridle.messages import Message, Text
from bridle.rendering.base import ReplyParser
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.verify_models import claude_code
from bridle.tokens import concatenate, ids_of
from bridle.verify import bodies, player, switches
from bridle.verify.report import PROPERTIES, Report, warnings
from bridle.verify.verify import verify


def examined(directory: Path, renderer: TemplateRenderer | None = None, short: bool = True) -> Report:
    return verify(renderer or load_renderer(directory), directory, short=short)


def failures(report: Report) -> dict[str, set[str]]:
    return {row.property: set(row.fails) for row in report.rows if row.fails}


# What is good


def test_a_good_model_is_faithful_in_every_property(good: Report) -> None:
    assert good.ok
    assert good.undeclared == []
    assert {row.property for row in good.rows} == set(PROPERTIES) - {"logprobs"}
    assert all(row.checked > 10 for row in good.rows)
    assert warnings(good) == []


def test_what_no_template_writes_is_told_as_a_difference(good: Report) -> None:
    splice = good.row("splice")
    assert splice.verdict == "differs"
    assert splice.differs["assistant"] > 0


def test_the_same_seed_gives_the_same_report(good: Report, tiny: TemplateRenderer, tiny_directory: Path) -> None:
    again = verify(tiny, tiny_directory)
    assert msgspec.structs.replace(again, seconds=0.0) == msgspec.structs.replace(good, seconds=0.0)


def test_another_seed_plays_other_conversations(good: Report, tiny: TemplateRenderer, tiny_directory: Path) -> None:
    other = verify(tiny, tiny_directory, seed=5)
    assert other.ok
    assert other.cost != good.cost


def test_the_short_form_takes_less_than_a_second(tiny: TemplateRenderer, tiny_directory: Path) -> None:
    started = time.process_time()
    report = examined(tiny_directory, tiny)
    assert (report.ok, report.short) == (True, True)
    # Of this process: on a busy machine a clock would measure the machine.
    assert time.process_time() - started < 1


def test_a_long_chat_costs_what_is_new_in_it(good: Report) -> None:
    assert (good.cost["turns"], good.cost["samples"]) == (100, 1)
    assert good.cost["rendered_last_turn"] < 100


def test_recorded_requests_of_an_agent_are_played(tiny: TemplateRenderer, tiny_directory: Path, good: Report) -> None:
    recorded = claude_code()
    report = verify(tiny, tiny_directory, recorded=[recorded])
    assert report.ok
    assert report.row("prefix").checked > good.row("prefix").checked + len(recorded.requests)
    played = player.Player(tiny).replay(recorded.name, recorded.requests, recorded.session)
    assert played.refused == ""
    assert len(played.calls) == len(recorded.requests)


# Faults in a template


def test_a_template_that_writes_arguments_anew_differs_in_splice(planted: Any, good: Report) -> None:
    directory = planted(
        "call.function.arguments | tojson", "call.function.arguments | tojson(sort_keys=true, indent=1)"
    )
    splice = examined(directory, short=False).row("splice")
    assert splice.verdict == "differs"
    assert splice.differs["assistant"] > 10 * good.row("splice").differs["assistant"]


def test_a_difference_that_the_facts_do_not_tell_is_undeclared(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = load_renderer(directory := planted("call.function.arguments | tojson", "'{}'"))
    monkeypatch.setattr(renderer, "facts", msgspec.structs.replace(renderer.facts, rewrites=()))
    assert examined(directory, renderer).undeclared == ["splice"]


def test_a_template_that_trims_answers_differs_in_splice(planted: Any, good: Report) -> None:
    splice = examined(planted("{{- message.content }}", "{{- message.content | trim }}"), short=False).row("splice")
    assert splice.differs["assistant"] > good.row("splice").differs["assistant"]


def test_a_template_that_shortens_answers_is_refuted(planted: Any) -> None:
    report = examined(planted("{{- message.content }}", "{{- message.content[:3] }}"))
    assert failures(report).keys() >= {"injection", "roles"}


def test_a_template_that_doubles_the_end_token_fails_end_of_turn(planted: Any) -> None:
    report = examined(
        planted(
            "        {{- '<|im_end|>\\n' }}\n    {%- elif", "        {{- '<|im_end|><|im_end|>\\n' }}\n    {%- elif"
        )
    )
    assert failures(report) == {"end_of_turn": {"doubled"}}
    assert report.row("end_of_turn").first is not None


def test_a_template_that_drops_a_message_fails_roles(planted: Any) -> None:
    report = examined(
        planted(
            "{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}",
            "{{- '\\n<tool_response>\\n' ~ (message.content if loop.previtem.role != 'tool') }}",
        )
    )
    assert "lost" in failures(report)["roles"]


def test_a_template_that_cannot_be_extended_forks_and_says_what_that_costs(planted: Any) -> None:
    report = examined(
        planted(
            "<|im_start|>assistant\\n' }}\n        {%- if", "<|im_start|>assistant\\n' ~ loop.length }}\n        {%- if"
        )
    )
    assert report.ok
    assert set(report.row("prefix").differs) == {"forks"}
    assert "every turn is a sample of its own" in warnings(report)[0]
    assert report.cost["samples"] == report.cost["turns"]


LATER_PROMPT = (
    "{{- '<|im_start|>assistant\\n' }}\n    {{-",
    "{{- '<|im_start|>assistant\\n' ~ ('<think>\\n\\n</think>\\n\\n' if messages | length > 3) }}\n    {{-",
)
"""The generation prompt depends on how long the conversation is."""


def test_a_generation_prompt_that_depends_on_the_history_is_taken_from_it(planted: Any) -> None:
    report = examined(planted(*LATER_PROMPT))
    assert "generation prompt" in report.facts["why_not"]
    assert (report.ok, report.undeclared) == (True, [])
    assert report.row("splice").differs == {}


def test_a_generation_prompt_that_does_not_follow_its_history_fails_splice(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = load_renderer(directory := planted(*LATER_PROMPT))

    def apart(messages: Any, tools: Any, switches: Any) -> Any:
        return renderer.whole(messages, tools, switches), renderer.generation(switches, messages[-1].role)

    monkeypatch.setattr(renderer, "prompted", apart)
    assert failures(examined(directory, renderer))["splice"] == {"control"}


# Faults in a renderer


class Losing:
    """A parser that loses the last character of every text."""

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser

    @property
    def reasoning_ids(self) -> int:
        return self._parser.reasoning_ids

    @property
    def calls(self) -> Any:
        return self._parser.calls

    def feed(self, ids: Any) -> Any:
        return self._parser.feed(ids)

    def finish(self) -> Any:
        message, events = self._parser.finish()
        parts = tuple(Text(part.text[:-1]) if isinstance(part, Text) else part for part in message.parts)
        return Message("assistant", parts), events


def test_a_parser_that_loses_text_fails_parse(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = load_renderer(tiny_directory)
    monkeypatch.setattr(renderer, "parser", lambda *given, make=renderer.parser: Losing(make(*given)))
    assert "text" in failures(examined(tiny_directory, renderer))["parse"]


def test_an_encoder_that_makes_control_ids_of_text_fails_injection(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = load_renderer(tiny_directory)
    whole = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    monkeypatch.setattr(renderer.vocabulary, "encode", lambda text: ids_of(whole.encode(text).ids))
    assert "control" in failures(examined(tiny_directory, renderer))["injection"]


def test_a_prompt_that_does_not_begin_with_what_is_held_fails_prefix(
    tiny: TemplateRenderer, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = player.prepare

    def anew(renderer: Any, session: Any, request: Any, length: int) -> Any:
        return prepare(renderer, player.open_session(renderer, "other"), request, length)

    monkeypatch.setattr(player, "prepare", anew)
    assert "fork" in failures(examined(tiny_directory, tiny))["prefix"]


def test_units_that_are_not_the_stock_rendering_fail_splice(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = load_renderer(tiny_directory)
    newline = renderer.vocabulary.encode("\n")
    unit = renderer.unit
    monkeypatch.setattr(renderer, "unit", lambda *a, **k: concatenate([unit(*a, **k), newline]))
    assert failures(examined(tiny_directory, renderer))["splice"] == {"scaffold"}


def test_a_renderer_that_closes_turns_twice_fails_end_of_turn(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = load_renderer(tiny_directory)
    twice = concatenate([renderer.closing[:1], renderer.closing])
    monkeypatch.setattr(renderer, "closing", twice)
    monkeypatch.setattr(renderer, "call_closing", twice)
    assert "doubled" in failures(examined(tiny_directory, renderer))["end_of_turn"]


def test_a_stop_id_that_is_ordinary_text_fails_end_of_turn(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = load_renderer(tiny_directory)
    monkeypatch.setattr(renderer, "stop_ids", (*renderer.stop_ids, 7))
    assert "stop" in failures(examined(tiny_directory, renderer))["end_of_turn"]


BROKEN = {"a play": (player, "prefix"), "a body": (bodies, "roles"), "a setting": (switches, "switches")}


@pytest.mark.parametrize("where", BROKEN)
def test_a_prompt_that_the_renderer_itself_breaks_off_is_no_difference(
    tiny: TemplateRenderer, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def torn(renderer: Any, session: Any, request: Any, length: int) -> Any:
        raise SeamError("no control token stands where new text follows")

    module, property = BROKEN[where]
    monkeypatch.setattr(module, "prepare", torn)
    report = examined(tiny_directory, tiny)
    assert "seam" in failures(report)[property]
    assert "no control token stands" in report.reason()


def test_a_later_turn_that_the_renderer_breaks_off_fails_prefix(
    tiny: TemplateRenderer, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = player.prepare

    def torn(renderer: Any, session: Any, request: Any, length: int) -> Any:
        if len(request.messages) > 3:
            raise SeamError("no control token stands where new text follows")
        return prepare(renderer, session, request, length)

    monkeypatch.setattr(player, "prepare", torn)
    assert failures(examined(tiny_directory, tiny)).keys() == {"prefix", "switches"}


def test_a_prompt_that_a_template_refuses_is_a_difference(
    tiny: TemplateRenderer, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = player.prepare

    def refusing(renderer: Any, session: Any, request: Any, length: int) -> Any:
        if len(request.messages) > 3 and request.tools:
            raise TemplateError("no tool loops")
        return prepare(renderer, session, request, length)

    monkeypatch.setattr(player, "prepare", refusing)
    report = examined(tiny_directory, tiny)
    assert failures(report) == {}
    assert report.row("roles").differs["refused"] > 0


@pytest.mark.parametrize("forgotten", ["switches", "root_switches"])
def test_a_switch_the_facts_do_not_name_fails_switches(
    planted: Any, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    directory = planted(
        "{%- set preface = messages[0].content %}",
        "{%- set preface = messages[0].content ~ (' Think.' if enable_thinking else '') %}",
    )
    renderer = load_renderer(directory)
    assert renderer.facts.root_switches == ("thinking",)
    monkeypatch.setattr(renderer, "facts", msgspec.structs.replace(renderer.facts, **{forgotten: ()}))
    report = examined(directory, renderer)
    assert "switches" in failures(report)
