"""Scripts: what an engine that does not think shall say, and what is true of each request it answers.

Knows the file format and how a conversation finds its turn; nothing of tokens, and of tools only that `calls` finds
them. Names no agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from bridle.decoding import decode
from bridle.engines.calls import Call, tool_call
from bridle.errors import ConfigError, EngineError
from bridle.messages import Kind, Message, ModelRequest, Part, Text, Thinking, Tool, last_user_text


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checker may hold a session of this script to. `reasons`: those permitted for tokens that do not train."""

    samples: int | None = None
    reasons: tuple[str, ...] = ()


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on a request; all that are given must hold."""

    system_contains: str = ""
    first_user_contains: str = ""
    last_user_contains: str = ""
    prompt_contains: str = ""
    """Anywhere in the text of any message."""
    result_contains: str = ""
    """In a tool result behind the last answer."""
    turns_at_least: int = 0
    """Answers in the conversation."""
    header: str = ""
    """A header that must be present."""
    header_contains: str = ""
    """What that header must contain."""
    tools: Literal["", "none", "some"] = ""
    offers: str = ""
    """A tool of this name must be offered."""

    def __post_init__(self) -> None:
        if self.header_contains and not self.header:
            raise ValueError("`header_contains` needs the name of the `header`")

    def holds(self, request: ModelRequest) -> bool:
        messages = request.messages
        return (
            _found(self.system_contains, (m.text for m in messages if m.role in ("system", "developer")))
            and self.first_user_contains in next((m.text for m in messages if m.role == "user"), "")
            and self.last_user_contains in last_user_text(messages)
            and _found(self.prompt_contains, (m.text for m in messages))
            and _found(self.result_contains, last_results(messages))
            and answered(messages) >= self.turns_at_least
            and (not self.header or self._has_header(request))
            and (not self.tools or (self.tools == "some") == bool(request.tools))
            and (not self.offers or any(tool.name == self.offers for tool in request.tools))
        )

    def _has_header(self, request: ModelRequest) -> bool:
        name = self.header.lower()
        return name in request.headers and self.header_contains in request.headers[name]


class ScriptTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer: its parts, or `raw` text with control strings, or `alternatives`; and what goes wrong with it.

    With `text: ""` alone nothing is said, and with `thinking` alone nothing but that: the stop id follows at once."""

    thinking: str | None = None
    text: str | None = None
    calls: tuple[Call, ...] = ()
    raw: str | None = None
    alternatives: tuple[ScriptTurn, ...] = ()
    when: When | None = None
    once: bool = False
    """An alternative that a session gets once."""
    finish: Literal["stop", "length"] = "stop"
    """length: cut there, no stop id."""
    delay_s: float = 0.0
    """Before each chunk."""
    error: str | None = None
    error_times: int | None = None
    """How often the error comes before the turn is said after all; None: every time."""
    drop_logprobs: bool = False
    extra_logprob: bool = False
    """One logprob more than ids."""
    no_stop: bool = False
    """The stop id is drawn but not returned."""
    stop: str | None = None
    """The control string to stop with, instead of the one the writer closes with."""

    def __post_init__(self) -> None:
        spoken = self.thinking is not None or self.text is not None or bool(self.calls)
        if spoken + (self.raw is not None) + bool(self.alternatives) > 1:
            raise ValueError("a turn has either thinking, text and calls, or `raw`, or `alternatives`")

    @property
    def scored(self) -> bool:
        """The faults that concern logprobs need an engine that claims to return them."""
        return self.drop_logprobs or self.extra_logprob


class Thread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests of one conversation. `kind`: what they truly are, whatever a gateway takes them for."""

    turns: tuple[ScriptTurn, ...]
    kind: Kind = "main"
    when: When = When()

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("a thread needs at least one turn")
        if any(turn.when is not None for turn in self.turns):
            raise ValueError("`when` belongs to a thread or to an alternative, not to a turn")
        if any(turn.once for turn in self.turns):
            raise ValueError("`once` belongs to an alternative, not to a turn")

    def turn(self, request: ModelRequest, said: Collection[int] = ()) -> ScriptTurn:
        """The turn after those already answered; the last one repeats. `said`: ids of alternatives that are used up."""
        turn = self.turns[min(answered(request.messages), len(self.turns) - 1)]
        if not turn.alternatives:
            return turn
        for alternative in turn.alternatives:
            if id(alternative) not in said and (alternative.when is None or alternative.when.holds(request)):
                return alternative
        count = len(turn.alternatives)
        raise EngineError(f"none of {count} alternatives holds for {_outline(request)}; add one without `when`")


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`resegment`: probability that a token is taken apart (BPE dropout), seeded by `seed` and the request's rid."""

    threads: tuple[Thread, ...]
    expect: Expect = Expect()
    resegment: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.threads:
            raise ValueError("a script needs at least one thread")
        if not 0 <= self.resegment <= 1:
            raise ValueError(f"resegment is a probability, not {self.resegment}")

    def thread(self, request: ModelRequest) -> int:
        """-> the number of the first thread whose conditions hold."""
        for number, thread in enumerate(self.threads):
            if thread.when.holds(request):
                return number
        raise EngineError(
            f"none of the {len(self.threads)} threads of the script holds for {_outline(request)}; "
            "add a thread for it, or a last one without `when`"
        )


def load(path: Path) -> Script:
    """A YAML or JSON file -> its script. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the script {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the script {path} is neither YAML nor JSON: {error}") from error
    return decode(document, Script, f"the script {path}")


def reply(turn: ScriptTurn, tools: tuple[Tool, ...]) -> Message:
    """`turn` in the tools the agent offers. Calls have no ids yet."""
    parts: list[Part] = []
    if turn.thinking is not None:
        parts.append(Thinking(turn.thinking))
    if turn.text is not None:
        parts.append(Text(turn.text))
    parts.extend(tool_call(call, tools) for call in turn.calls)
    return Message("assistant", tuple(parts))


def answered(messages: tuple[Message, ...]) -> int:
    """Answers in a conversation. Agents echo one answer as several messages in a row: such a row counts once."""
    roles = ["", *(message.role for message in messages)]
    return sum(role == "assistant" != before for before, role in pairwise(roles))


def last_results(messages: tuple[Message, ...]) -> Iterator[str]:
    """What the calls of the last answer gave: tool results behind it, whatever else stands among them."""
    for message in reversed(messages):
        if message.role == "assistant":
            return
        if message.role == "tool":
            yield message.text


def _found(needle: str, texts: Iterable[str]) -> bool:
    return not needle or any(needle in text for text in texts)


def _outline(request: ModelRequest) -> str:
    return (
        f"a request with {len(request.messages)} messages and {len(request.tools)} tools "
        f"whose last user message starts {last_user_text(request.messages)[:60]!r}"
    )
