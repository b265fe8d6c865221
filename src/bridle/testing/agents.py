"""Agents in miniature: they talk through an official SDK's client and send their history back with a chosen habit.

The client (AsyncAnthropic, AsyncOpenAI) is handed in: SDKs are nothing Bridle itself depends on.
A habit takes an assistant message as the protocol sent it and gives the messages that stand for it in the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bridle.gateway.client import OpenedSession

Wire = dict[str, Any]
Habit = Callable[[Wire], list[Wire]]

BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
SYSTEM = "You are a coding agent."


@dataclass(frozen=True)
class Answer:
    """`message` is the assistant message on the wire, `calls` are (id, name, arguments as JSON text)."""

    message: Wire
    text: str
    calls: tuple[tuple[str, str, str], ...]
    finish: str
    prompt_tokens: int


def as_it_was(message: Wire) -> list[Wire]:
    return [message]


class Agent:
    """One conversation with a session. `history` is what it sends, in the protocol's form."""

    def __init__(
        self,
        client: Any,
        session: OpenedSession,
        *,
        stream: bool = False,
        habit: Habit = as_it_was,
        system: str = SYSTEM,
        tools: Sequence[str] = ("bash",),
    ) -> None:
        self.client = client
        self.session = session
        self.streaming = stream
        self.habit = habit
        self.system = system
        self.tools = tools
        self.history: list[Wire] = []

    async def work(self, task: str, most: int = 20, backwards: bool = False) -> Answer:
        """Asks and answers every call until nothing is called. `backwards`: results in order of completion."""
        self.tell(task)
        for _ in range(most):
            answer = await self.ask()
            self.remember(answer)
            if not answer.calls:
                return answer
            calls = [(name, f"result of {name}") for name, _, _ in answer.calls]
            self.results(reversed(calls) if backwards else calls)
        raise AssertionError(f"still calling tools after {most} turns")

    def tell(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def remember(self, answer: Answer) -> None:
        self.history += self.habit(answer.message)

    def results(self, results: Iterable[tuple[str, str]]) -> None:
        """(call id, text) in the order they are sent."""
        raise NotImplementedError

    async def ask(self, **extra: Any) -> Answer:
        raise NotImplementedError


class AnthropicAgent(Agent):
    def results(self, results: Iterable[tuple[str, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results]
        self.history.append({"role": "user", "content": blocks})

    def request(self) -> Wire:
        tools = [{"name": name, "description": "run", "input_schema": BASH} for name in self.tools]
        return {"model": self.session.model, "system": self.system, "tools": tools, "messages": self.history}

    async def ask(self, **extra: Any) -> Answer:
        request = {"max_tokens": 4096, **self.request(), **extra}
        if self.streaming:
            async with self.client.messages.stream(**request) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await self.client.messages.create(**request)
        blocks = [_only(block.to_dict(), "type", *BLOCK_KEYS) for block in message.content]
        usage = message.usage
        return Answer(
            {"role": "assistant", "content": blocks},
            "\n".join(block["text"] for block in blocks if block["type"] == "text"),
            tuple((b["id"], b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"),
            message.stop_reason,
            usage.input_tokens + (usage.cache_read_input_tokens or 0),
        )


class OpenAIAgent(Agent):
    def results(self, results: Iterable[tuple[str, str]]) -> None:
        self.history += [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results]

    def request(self) -> Wire:
        functions = [{"name": name, "description": "run", "parameters": BASH} for name in self.tools]
        tools = [{"type": "function", "function": function} for function in functions]
        head = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.session.model, "messages": [*head, *self.history], **({"tools": tools} if tools else {})}

    async def ask(self, **extra: Any) -> Answer:
        return (await self.ask_all(**extra))[0]

    async def ask_all(self, **extra: Any) -> list[Answer]:
        """All siblings of a request with n > 1."""
        request = {**self.request(), **extra}
        if self.streaming:
            return await self._streamed(request)
        completion: Any = await self.client.chat.completions.create(**request)
        return [
            _openai_answer(choice.message.to_dict(), choice.finish_reason, completion.usage.prompt_tokens)
            for choice in completion.choices
        ]

    async def _streamed(self, request: Wire) -> list[Answer]:
        messages: dict[int, Wire] = {}
        finishes: dict[int, str] = {}
        prompt_tokens = 0
        stream: Any = await self.client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            prompt_tokens = chunk.usage.prompt_tokens if chunk.usage else prompt_tokens
            for choice in chunk.choices:
                _grow(messages.setdefault(choice.index, {"role": "assistant", "content": None}), choice.delta.to_dict())
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
        return [_openai_answer(messages[index], finishes[index], prompt_tokens) for index in sorted(messages)]


BLOCK_KEYS = ("text", "thinking", "signature", "id", "name", "input")


def _only(fields: Wire, *keys: str) -> Wire:
    return {key: fields[key] for key in keys if key in fields}


def _grow(message: Wire, delta: Wire) -> None:
    for key in ("content", "reasoning_content"):
        if delta.get(key) is not None:
            message[key] = (message.get(key) or "") + delta[key]
    for call in delta.get("tool_calls") or []:
        message.setdefault("tool_calls", []).append({key: call[key] for key in ("id", "type", "function")})


def _openai_answer(message: Wire, finish: str, prompt_tokens: int) -> Answer:
    kept = _only(message, "role", "content", "reasoning_content", "tool_calls")
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return Answer(kept, message.get("content") or "", tuple(calls), finish, prompt_tokens)


AGENTS: dict[str, type[Agent]] = {"anthropic": AnthropicAgent, "openai": OpenAIAgent}
