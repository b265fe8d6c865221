"""The conversations a model is tried on: what an agent says, what the model answers, how that ends and comes back.

Made from a seed alone. Nothing here knows a template: what one cannot say (calls, reasoning) is left out by the player.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from bridle.messages import Message, Switches, Text, Thinking, Tool, ToolCall

End = Literal["stop", "other_stop", "length", "text", "unreturned"]
"""How a draw ends: with the stop id, with another one of the model's, cut by length, by a stop text of the client, or
with a stop id that the engine keeps to itself."""

Echo = Literal["same", "reasoning_dropped", "args_rewritten", "whitespace"]
"""What the agent does to an answer before it sends it back."""

Needs = Literal["calls", "thinking"]


class Step(msgspec.Struct, frozen=True):
    """One model call. `results` answer the calls of the thread's last answer, in order; `says` stands behind them.
    `keep`: of a draw cut by length, the share that is kept. `fold`: first, a summary takes the place of all but the
    thread's last answer. `stop`: the client's stop text."""

    answer: Message
    says: tuple[Message, ...] = ()
    results: tuple[str, ...] = ()
    thread: str = ""
    end: End = "stop"
    keep: float = 0.5
    stop: str = ""
    echo: Echo = "same"
    switches: Switches = Switches()
    fold: bool = False


class Play(msgspec.Struct, frozen=True):
    """`begins`: by thread, the messages before the first one. `plain`: what is said is what templates write."""

    name: str
    steps: tuple[Step, ...]
    begins: Mapping[str, tuple[Message, ...]] = {}
    tools: tuple[Tool, ...] = ()
    needs: tuple[Needs, ...] = ()
    plain: bool = True


TOOLS = (
    Tool(
        "read_file",
        "Reads lines of a file.",
        {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "Where it lies."}, "line": {"type": "integer"}},
            "required": ["path"],
        },
    ),
    Tool(
        "edit",
        "Changes a file in several places.",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "edits": {"type": "array", "items": {"type": "object", "properties": {"old": {"type": "string"}}}},
            },
            "required": ["path", "edits"],
        },
    ),
    Tool(
        "bash",
        "Runs a command.",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
)

WORDS = (
    *("look", "into", "the", "parser", "and", "fix", "its", "rounding", "error", "before", "running", "tests", "again"),
    *("naïve", "größer", "日本語", "файл", "👩‍💻", "x_1", "café", "½", "`code`", "(a, b)", "3.14", "--flag"),
)
CODE = (
    "def f(x):\n    return x + 1\n",
    "{'a': [1, 2]}",
    "a\n\n\nb",
    "\tif (x) {\n\t}\n",
    "$ ls -la | wc -l\n",
    "\\n\\t\\\\",
)
STOP_TEXT = " HALT"
LONG = 100
"""Turns of the longest chat."""


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def developer(text: str) -> Message:
    return Message("developer", (Text(text),))


def said(text: str = "", *calls: ToolCall, thinking: str = "") -> Message:
    reasoning = (Thinking(thinking),) if thinking else ()
    return Message("assistant", (*reasoning, *((Text(text),) if text else ()), *calls))


class Writer:
    """Texts, commands and calls from one random stream."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = random.Random(f"{seed}/{name}")

    def line(self, words: int = 8) -> str:
        """Without white space at its ends, which templates trim."""
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(2, words)))

    def text(self) -> str:
        return "\n".join([self.line(), self.rng.choice(CODE), self.line()])

    def call(self) -> ToolCall:
        choice = self.rng.randrange(3)
        path = f"src/{self.rng.choice(('app', 'größe', 'a b'))}.py"
        if choice == 0:
            return call("read_file", path=path, line=self.rng.randrange(1000))
        if choice == 1:
            return call("edit", path=path, edits=[{"old": self.line()}, {"old": "a < b && c > d\n"}])
        return call("bash", command=f"cd /tmp && echo {self.line()!r} > 'a b'\nls")


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))


def plays(seed: int, random_plays: int = 6, long: int = LONG) -> list[Play]:
    """All of them, then `random_plays` mixed ones. `long`: turns of the longest chat."""
    fixed = [make(Writer(seed, make.__name__)) for make in MAKERS]
    return [
        *fixed,
        long_chat(Writer(seed, "long"), long),
        *(mixed(Writer(seed, f"mixed {n}"), n) for n in range(random_plays)),
    ]


def few(seed: int) -> list[Play]:
    """Those that show the most, for a look at every start."""
    makers = (chat, tool_loop, thinking_kept, cut_by_length, odd_answers)
    return [make(Writer(seed, make.__name__)) for make in makers]


# --- the plays --------------------------------------------------------------------------------------------------------


def chat(w: Writer) -> Play:
    steps = tuple(Step(said(w.line()), (user(w.text()),)) for _ in range(3))
    return Play("chat", steps, {"": (system(w.text()),)})


def tool_loop(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call()), (user(w.line()),)),
        Step(said("", w.call()), results=(w.text(),)),
        Step(said(w.line(), w.call()), results=("",)),
        Step(said(w.line()), results=(w.text(),)),
        Step(said("", w.call()), (user(w.line()),)),
        Step(said(w.line()), results=(w.line(),)),
    )
    return Play("tool loop", steps, {"": (system(w.line()),)}, TOOLS, ("calls",))


def parallel_calls(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call(), w.call()), (user(w.line()),)),
        Step(said("", w.call(), w.call(), w.call()), results=(w.text(), "")),
        Step(said(w.line()), results=(w.line(), w.text(), w.line())),
    )
    return Play("parallel calls", steps, {}, TOOLS, ("calls",))


def thinking_kept(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), thinking=w.text()), (user(w.line()),)),
        Step(said(w.line(), thinking=w.line()), (user(w.line()),)),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("thinking", steps, {}, (), ("thinking",))


def thinking_dropped(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call(), thinking=w.line()), (user(w.line()),), echo="reasoning_dropped"),
        Step(said("", w.call(), thinking=w.text()), results=(w.line(),), echo="reasoning_dropped"),
        Step(said(w.line(), thinking=w.line()), results=(w.line(),), echo="reasoning_dropped"),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("thinking dropped by the agent", steps, {"": (system(w.line()),)}, TOOLS, ("calls", "thinking"))


def cut_by_length(w: Writer) -> Play:
    steps = (
        Step(said(w.text()), (user(w.line()),), end="length", keep=0.4),
        Step(said(w.text()), (user(w.line()),), end="length", keep=0.8),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("cut by length", steps)


def cut_in_a_call(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call(), thinking=w.line()), (user(w.line()),), end="length", keep=0.9),
        Step(said(w.line()), (user(w.line()),)),
        Step(said(w.line(), w.call()), (user(w.line()),), end="length", keep=0.7),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("cut in a call", steps, {}, TOOLS, ("calls",), plain=False)


def cut_in_thinking(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), thinking=w.text()), (user(w.line()),), end="length", keep=0.5),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("cut in thinking", steps, {}, (), ("thinking",), plain=False)


def stop_text(w: Writer) -> Play:
    steps = (
        Step(said(f"{w.line()}{STOP_TEXT} {w.line()}"), (user(w.line()),), end="text", stop=STOP_TEXT),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("stop text", steps)


def stop_not_returned(w: Writer) -> Play:
    steps = (
        Step(said(w.line()), (user(w.line()),), end="unreturned"),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("stop id not returned", steps)


def other_stops(w: Writer) -> Play:
    steps = tuple(Step(said(w.line()), (user(w.line()),), end="other_stop") for _ in range(3))
    return Play("other stop ids", steps)


def bodies(w: Writer) -> Play:
    hard = ("\ufeff\u200b\u00a0", "e\u0301 \u212b", "a" * 200, " \n \n\t", "\x00\x01\x7f\x85\u2028", "{{ x }} {% y %}")
    steps = tuple(Step(said(f"{w.line()} {text.strip()}."), (user(text),)) for text in hard)
    return Play("unicode", steps, {"": (system(hard[0]),)}, plain=False)


def sub_agents(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call()), (user(w.line()),)),
        Step(said("", w.call()), (user(w.line()),), thread="sub"),
        Step(said(w.line()), results=(w.line(),), thread="sub"),
        Step(said(w.line(), w.call()), results=(w.text(),)),
        Step(said(w.line()), (user(w.line()),), thread="sub"),
        Step(said(w.line()), results=(w.line(),)),
    )
    begins = {"": (system(w.line()),), "sub": (system(w.line()),)}
    return Play("sub-agents", steps, begins, TOOLS, ("calls",))


def compaction(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call()), (user(w.line()),)),
        Step(said(w.line(), w.call()), results=(w.text(),)),
        Step(said(w.line()), results=(w.line(),), fold=True),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("compaction", steps, {"": (system(w.line()),)}, TOOLS, ("calls",))


def echoes(w: Writer) -> Play:
    steps = (
        Step(said(w.line(), w.call()), (user(w.line()),), echo="args_rewritten"),
        Step(said(w.line(), w.call()), results=(w.line(),), echo="whitespace"),
        Step(said(w.line()), results=(w.line(),)),
    )
    return Play("echoes rewritten by the agent", steps, {}, TOOLS, ("calls",))


def odd_answers(w: Writer) -> Play:
    """What models sample and no template writes."""
    compact = ToolCall("", "bash", '{"command":"ls\\u0020-la" ,  "extra":1.0e1}')
    steps = (
        Step(said(f"\n {w.line()} \n\n"), (user(w.line()),)),
        Step(said(f"{w.line()}\n", compact), (user(w.line()),)),
        Step(said(w.line(), ToolCall("", "unknown_tool", "{}")), results=(w.line(),)),
        Step(said(w.line()), results=(w.line(),)),
        Step(said(w.line(), thinking=f"  {w.line()}\n\n"), (user(w.line()),)),
        Step(said(w.line()), (user(w.line()),)),
    )
    return Play("odd answers", steps, {}, TOOLS, ("calls", "thinking"), plain=False)


def long_chat(w: Writer, turns: int) -> Play:
    steps = tuple(Step(said(w.line()), (user(w.line()),)) for _ in range(turns))
    return Play(f"chat of {turns} turns", steps, {"": (system(w.line()),)})


def mixed(w: Writer, number: int) -> Play:
    """Anything behind anything."""
    steps: list[Step] = []
    open_calls = 0
    for _ in range(w.rng.randint(3, 8)):
        says = (user(w.text()),) if not open_calls or not steps else ()
        results = tuple(w.rng.choice((w.line(), w.text(), "")) for _ in range(open_calls))
        open_calls = w.rng.choice((0, 1, 1, 2))
        text = w.line() if not open_calls or w.rng.random() < 0.5 else ""
        thinking = w.line() if w.rng.random() < 0.5 else ""
        steps.append(Step(said(text, *(w.call() for _ in range(open_calls)), thinking=thinking), says, results))
    begins = {"": (system(w.line()),)} if w.rng.random() < 0.7 else {}
    return Play(f"mixed {number + 1}", tuple(steps), begins, TOOLS, ("calls", "thinking"))


MAKERS: tuple[Callable[[Writer], Play], ...] = (
    *(chat, tool_loop, parallel_calls, thinking_kept, thinking_dropped, cut_by_length, cut_in_a_call, cut_in_thinking),
    *(stop_text, stop_not_returned, other_stops, bodies, sub_agents, compaction, echoes, odd_answers),
)


def switched(seed: int, settings: tuple[Switches, ...]) -> Iterator[Play]:
    """One play that keeps each setting, and one that goes through all of them."""
    steps: tuple[Step, ...]
    for at, setting in enumerate(settings):
        w = Writer(seed, f"switch {at}")
        steps = (
            Step(said(w.line(), thinking=w.line()), (user(w.line()),), switches=setting),
            Step(said(w.line()), (user(w.line()),), switches=setting),
        )
        yield Play(f"switches {spelled(setting)}", steps, {"": (system(w.line()),)}, (), ("thinking",))
    w = Writer(seed, "switching")
    steps = tuple(Step(said(w.line()), (user(w.line()),), switches=setting) for setting in (*settings, *settings))
    yield Play("switches changed on the way", steps, {"": (system(w.line()),)}, plain=False)


def spelled(switches: Switches) -> str:
    thinking = {None: "unset", True: "on", False: "off"}[switches.thinking]
    return f"thinking {thinking}{f', effort {switches.effort}' if switches.effort else ''}"
