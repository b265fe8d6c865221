"""The renderer of a Hugging Face model directory: its vocabulary, its chat template, and what a probe found out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from msgspec.structs import replace

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Note, Role, Switches, Tool
from bridle.rendering.base import GenerationPrompt, Replies, ReplyParser, TemplateFacts
from bridle.rendering.chat_template import RENDER_DATE, load_template
from bridle.rendering.choose import choose_replies, generation_prompt, rewritten
from bridle.rendering.history import settled
from bridle.rendering.probe import probe
from bridle.rendering.roles import find_roles
from bridle.rendering.units import Units
from bridle.tokens import Ids, Vocabulary

GENERATIONS = 64
"""Generation prompts held, one per setting of the switches; efforts are open words."""


class TemplateRenderer:
    """The contract over `Units` (messages to ids) and `Replies` (ids to messages)."""

    def __init__(self, units: Units, facts: TemplateFacts, replies: Replies) -> None:
        self.vocabulary = units.vocabulary
        self.facts = facts
        self.stop_ids = replies.stop_ids
        self.ends = replies.ends
        self.closing = units.closing()
        self.call_closing = units.closing(called=True)
        self.thinking_end = replies.thinking_end
        self._units = units
        self._replies = replies
        self._generation = lru_cache(GENERATIONS)(partial(generation_prompt, units, replies))

    def taken(self, asked: Switches) -> Switches:
        thinking = asked.thinking if "thinking" in self.facts.switches else None
        effort = asked.effort if "effort" in self.facts.switches else ""
        if effort and not self._takes(Switches(thinking, effort)):
            effort = ""
        return Switches(thinking, effort)

    def _takes(self, switches: Switches) -> bool:
        try:
            self._generation(switches, "user")
        except TemplateError:
            return False
        return True

    def root(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        return self._units.root(messages, tools, switches)

    def mapped(
        self, roles: Sequence[Role], at: int, message: Message, before: Message | None = None
    ) -> tuple[Note, ...]:
        rules = self._units.rules
        return (*rules.notes(roles, at), *rules.call_notes(message), *rules.result_notes(before))

    def settled(self, messages: Sequence[Message]) -> int:
        return settled(messages, self.facts.strips_reasoning, self._units.rules)

    def reasons(self, ids: Ids) -> bool:
        return self._replies.reasons(ids)

    def unit(
        self,
        messages: Sequence[Message],
        before: Message | None,
        tools: Sequence[Tool],
        switches: Switches = Switches(),
        behind: Role = "user",
        settled: bool = False,
    ) -> Ids:
        """`tools` are of no use here: the probe proved that units read the same without them."""
        return self._units.unit(messages, before, switches, behind, settled)

    def whole(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        return self._units.whole(messages, tools, switches)

    def prompted(
        self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches
    ) -> tuple[Ids, GenerationPrompt]:
        ids, prompt = self._units.prompted(messages, tools, switches)
        return ids, GenerationPrompt(prompt, self._replies.thinking_open(prompt))

    def generation(self, switches: Switches, behind: Role = "user") -> GenerationPrompt:
        return self._generation(switches, behind)

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser:
        return self._replies.parser(thinking_open, tools)

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        return self._replies.write(message, thinking_open)


def load_renderer(directory: Path, calls: str = "auto", now: datetime = RENDER_DATE) -> TemplateRenderer:
    """`directory`: tokenizer.json, tokenizer_config.json and, where there is one, generation_config.json.

    `calls`: the form of tool calls, by name; "auto" takes the one that reads back what the template writes, "none" has
    none. `now`: what the template believes the date to be. Raises ConfigError.
    """
    vocabulary = Vocabulary.load(directory)
    template = load_template(directory, now)
    units = Units(vocabulary, template, find_roles(template))
    try:
        replies, notes = choose_replies(directory, units, calls)
        facts = probe(units, notes, replies.same_but_reasoning)
        return TemplateRenderer(units, replace(facts, rewrites=rewritten(units, replies)), replies)
    except TemplateError as error:
        raise ConfigError(f"the chat template in {directory} cannot be used: {error.message}") from error
