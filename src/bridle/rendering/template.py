"""The renderer of a Hugging Face model directory: its vocabulary, its chat template, and what a probe found out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Note, Role, Switches, Tool
from bridle.registry import resolve
from bridle.rendering import NAMES
from bridle.rendering.base import GenerationPrompt, ReplyParser, TemplateFacts
from bridle.rendering.chat_template import RENDER_DATE, load_template, read_json, special_tokens
from bridle.rendering.probe import CALL, TOOL, assistant, probe, settings
from bridle.rendering.reply import THINK, THINK_END, CallFormat, ReplyFormat, TagParser, write_reply
from bridle.rendering.roles import find_roles
from bridle.rendering.units import Units
from bridle.tokens import Ids, Vocabulary

GENERATIONS = 64
"""Generation prompts held, one per setting of the switches; efforts are open words."""


class TemplateRenderer:
    """The contract over `Units` (messages to ids) and `ReplyFormat` (ids to messages)."""

    def __init__(self, units: Units, facts: TemplateFacts, form: ReplyFormat) -> None:
        self.vocabulary = units.vocabulary
        self.facts = facts
        self.stop_ids = form.stop_ids
        self.closing = units.closing()
        self.thinking_end = form.id(THINK_END) if form.thinks else None
        self._units = units
        self._form = form
        self._generation = lru_cache(GENERATIONS)(partial(_generation, units))

    def taken(self, asked: Switches) -> Switches:
        thinking = asked.thinking if "thinking" in self.facts.switches else None
        effort = asked.effort if "effort" in self.facts.switches else ""
        if effort and not self._takes(Switches(thinking, effort)):
            effort = ""
        return Switches(thinking, effort)

    def _takes(self, switches: Switches) -> bool:
        try:
            self._generation(switches)
        except TemplateError:
            return False
        return True

    def root(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        return self._units.root(messages, tools, switches)

    def mapped(self, roles: Sequence[Role], at: int) -> tuple[Note, ...]:
        return self._units.rules.notes(roles, at)

    def unit(self, messages: Sequence[Message], before: Message | None, tools: Sequence[Tool]) -> Ids:
        """`tools` are of no use here: the probe proved that units read the same without them."""
        return self._units.unit(messages, before)

    def whole(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        return self._units.whole(messages, tools, switches)

    def generation(self, switches: Switches) -> GenerationPrompt:
        return self._generation(switches)

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser:
        return TagParser(self._form, thinking_open, tools)

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        return [*write_reply(self._form, message, thinking_open), self.stop_ids[0]]


def load_renderer(directory: Path, calls: str = "auto", now: datetime = RENDER_DATE) -> TemplateRenderer:
    """`directory`: tokenizer.json, tokenizer_config.json and, where there is one, generation_config.json.

    `calls`: the form of tool calls, by name; "auto" takes the one that reads back what the template writes, "none" has
    none. `now`: what the template believes the date to be. Raises ConfigError.
    """
    vocabulary = Vocabulary.load(directory)
    template = load_template(directory, now)
    units = Units(vocabulary, template, find_roles(template))
    try:
        bare = ReplyFormat(vocabulary, _stop_ids(directory, units), None, _opens_line(units))
        form, call_notes = _with_calls(units, bare, calls)
        return TemplateRenderer(units, probe(units, call_notes), form)
    except TemplateError as error:
        raise ConfigError(f"the chat template in {directory} cannot be used: {error.message}") from error


def _generation(units: Units, switches: Switches) -> GenerationPrompt:
    ids = units.generation(switches)
    text = units.vocabulary.decode(ids.tolist())
    return GenerationPrompt(ids, text.rfind(THINK) > text.rfind(THINK_END))


def _opens_line(units: Units) -> bool:
    """Whether a reasoning block that the prompt opens ends in a newline."""
    prompts = [_generation(units, switches) for switches in settings(units.template)]
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


def _with_calls(units: Units, bare: ReplyFormat, name: str) -> tuple[ReplyFormat, tuple[Note, ...]]:
    if name == "none":
        return bare, ()
    if name != "auto":
        return _having(bare, resolve("form of tool calls", NAMES, name)()), ()
    for candidate in NAMES:
        form = _having(bare, resolve("form of tool calls", NAMES, candidate)())
        if _reads_back(units, form):
            return form, ()
    return bare, (Note("no_tool_calls", f"no known form ({', '.join(NAMES)}) reads the calls this template writes"),)


def _having(bare: ReplyFormat, calls: CallFormat) -> ReplyFormat:
    return ReplyFormat(bare.vocabulary, bare.stop_ids, calls, bare.opened_line)


def _reads_back(units: Units, form: ReplyFormat) -> bool:
    """Whether a call that the template writes is read as that call."""
    try:
        ids = units.unit([assistant("", CALL)], None)
    except TemplateError:
        return False
    parser = TagParser(form, False, (TOOL,))
    parser.feed(ids.tolist())
    message, _ = parser.finish()
    return message.calls == (msgspec.structs.replace(CALL, id=""),)
