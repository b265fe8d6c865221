"""Which form of replies a model has, found in its vocabulary and in what its template writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Note, Switches
from bridle.registry import resolve
from bridle.rendering import NAMES
from bridle.rendering.base import GenerationPrompt
from bridle.rendering.calls import CallForm, parsed
from bridle.rendering.chat_template import read_json, special_tokens
from bridle.rendering.probe import CALL, TOOL, assistant, settings
from bridle.rendering.reply import THOUGHTS, ReplyFormat, TagParser, Thoughts
from bridle.rendering.units import Units
from bridle.tokens import Vocabulary


def choose_replies(directory: Path, units: Units, calls: str) -> tuple[ReplyFormat, tuple[Note, ...]]:
    """`calls`: "auto", "none" or the name of a form. Raises ConfigError, TemplateError."""
    thoughts = _thoughts(units)
    opened_line = _opens_line(units, thoughts)

    def having(form: CallForm | None) -> ReplyFormat:
        return ReplyFormat(units.vocabulary, _stop_ids(directory, units), form, opened_line, thoughts)

    if calls == "none":
        return having(None), ()
    if calls != "auto":
        return having(_named(calls, units.vocabulary)), ()
    for form in _possible(units.vocabulary):
        if _reads_back(units, having(form)):
            return having(form), ()
    return having(None), (Note("no_tool_calls", f"no known form ({', '.join(NAMES)}) reads what this template writes"),)


def generation_prompt(units: Units, thoughts: Thoughts | None, switches: Switches) -> GenerationPrompt:
    ids = units.generation(switches)
    held = ids.tolist()
    tags = [units.vocabulary.controls[tag] for tag in (thoughts.open, thoughts.close)] if thoughts else []
    opened, closed = ([at for at, id in enumerate(held) if id == tag] for tag in tags) if tags else ([], [])
    return GenerationPrompt(ids, max(opened, default=-1) > max(closed, default=-1))


def _thoughts(units: Units) -> Thoughts | None:
    """The tags a model reasons between: of those its vocabulary has, the ones its template speaks of first."""
    controls = units.vocabulary.controls
    held = [tags for tags in THOUGHTS if tags.open in controls and tags.close in controls]
    return next((tags for tags in held if tags.close in units.template.source), held[0] if held else None)


def _opens_line(units: Units, thoughts: Thoughts | None) -> bool:
    """Whether a reasoning block that the prompt opens ends in a newline."""
    prompts = [generation_prompt(units, thoughts, switches) for switches in settings(units.template)]
    return any(p.thinking_open and units.vocabulary.decode(p.ids.tolist()).endswith("\n") for p in prompts)


def _stop_ids(directory: Path, units: Units) -> tuple[int, ...]:
    """The token that closes a message in the template, then what the model's own files say ends a turn."""
    end = special_tokens(read_json(directory / "tokenizer_config.json")).get("eos_token", "")
    named = read_json(directory / "generation_config.json").get("eos_token_id", [])
    closing = [id for id in units.closing().tolist() if id in units.vocabulary.control_ids]
    ids = [
        *closing[:1],
        *([units.vocabulary.controls[end]] if end in units.vocabulary.controls else []),
        *(named if isinstance(named, list) else [named]),
    ]
    if not ids:
        raise TemplateError("nothing ends a turn: no closing token in the template, no eos_token, no generation_config")
    return tuple(dict.fromkeys(ids))


def _named(name: str, vocabulary: Vocabulary) -> CallForm:
    form: CallForm = resolve("form of tool calls", NAMES, name)()
    if missing := _lacking(form, vocabulary):
        raise ConfigError(
            f'calls "{name}": this vocabulary has no token for {", ".join(missing)}; say "auto" or "none"'
        )
    return form


def _possible(vocabulary: Vocabulary) -> Iterator[CallForm]:
    for name in NAMES:
        form: CallForm = resolve("form of tool calls", NAMES, name)()
        if not _lacking(form, vocabulary):
            yield form


def _lacking(form: CallForm, vocabulary: Vocabulary) -> list[str]:
    return [tag for tag in (*form.opens, *form.closes, *form.inner) if tag not in vocabulary.controls]


def _reads_back(units: Units, form: ReplyFormat) -> bool:
    """Whether a call that the template writes is read as that call."""
    try:
        ids = units.unit([assistant("", CALL)], None)
    except TemplateError:
        return False
    parser = TagParser(form, False, (TOOL,))
    parser.feed(ids.tolist())
    calls = parser.finish()[0].calls
    return [(call.name, parsed(call.arguments), call.status) for call in calls] == [
        (CALL.name, parsed(CALL.arguments), "ok")
    ]
