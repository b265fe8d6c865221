"""The renderer of a Hugging Face model directory: its vocabulary, its chat template, and what a probe found out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Note, Role, Switches, Tool
from bridle.rendering.base import GenerationPrompt, ReplyParser, TemplateFacts
from bridle.rendering.chat_template import RENDER_DATE, load_template
from bridle.rendering.choose import choose_replies, generation_prompt
from bridle.rendering.probe import probe
from bridle.rendering.reply import ReplyFormat, TagParser, write_reply
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
        self.thinking_end = form.id(form.thoughts.close) if form.thoughts else None
        self._units = units
        self._form = form
        self._generation = lru_cache(GENERATIONS)(partial(generation_prompt, units, form.thoughts))

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
        form, notes = choose_replies(directory, units, calls)
        return TemplateRenderer(units, probe(units, notes), form)
    except TemplateError as error:
        raise ConfigError(f"the chat template in {directory} cannot be used: {error.message}") from error
