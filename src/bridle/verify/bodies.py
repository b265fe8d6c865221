"""Bodies: no text of a user, a tool or a file becomes a control id, and every message is shown where it stands."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from bridle.errors import BridleError
from bridle.gateway.prompt import prepare
from bridle.messages import Message, ModelRequest, Role, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Renderer
from bridle.verify.conversations import TOOLS, developer, said, system, user
from bridle.verify.player import CONTEXT, REFUSALS, open_session
from bridle.verify.report import Finding, Ledger, broken

HARMLESS = "word"

Place = Callable[[str], tuple[list[Message], tuple[Tool, ...]]]
"""A text -> a conversation that holds it somewhere."""


def check_injection(renderer: Renderer, ledger: Ledger, thorough: bool) -> None:
    """Every control string of the vocabulary in every kind of body: the sequence of control ids is the one of harmless
    bodies, and the text is there."""
    controls = sorted(renderer.vocabulary.controls)
    for where, place in places(renderer).items():
        try:
            expected = _controls(renderer, _ids(renderer, *place(HARMLESS)))
        except REFUSALS as error:
            ledger.skipped("injection", f"{where}: {error.message}")
            continue
        except BridleError as error:
            ledger.fails("injection", broken(where, -1, error))
            continue
        for text in _texts(controls, thorough):
            _check_body(renderer, where, place, text, expected, ledger)


def _check_body(
    renderer: Renderer, where: str, place: Place, text: str, expected: Sequence[int], ledger: Ledger
) -> None:
    try:
        ids = _ids(renderer, *place(text))
    except BridleError as error:
        ledger.fails("injection", Finding(where, -1, "refused", error.message, expected=text))
        return
    found = _controls(renderer, ids)
    if found != expected:
        what = f"text in {where} changes the control ids"
        mine, theirs = renderer.vocabulary.decode(found), renderer.vocabulary.decode(expected)
        finding = Finding(f"{where}: {text!r}", -1, "control", what, mine, theirs, tuple(found), tuple(expected))
        ledger.fails("injection", finding)
    elif not _shows(renderer.vocabulary.decode(ids), text):
        what = f"text in {where} is not shown as it is"
        reasoning = where == "reasoning" and bool(renderer.facts.strips_reasoning)
        tell = ledger.differs if reasoning else ledger.fails
        shown = renderer.vocabulary.decode(ids)[-300:]
        tell(
            "injection", Finding(where, -1, "reasoning" if reasoning else "lost", what, shown, text, declared=reasoning)
        )
    else:
        ledger.passed("injection")


def places(renderer: Renderer) -> dict[str, Place]:
    """Where a text can come from. A body ends and begins with a word: templates trim."""

    def asked(*messages: Message) -> tuple[list[Message], tuple[Tool, ...]]:
        return [user("one"), *messages], TOOLS

    def called(arguments: str, name: str = "bash") -> Message:
        return Message("assistant", (ToolCall("callaaaa1", name, arguments),))

    def tool(**changes: object) -> tuple[list[Message], tuple[Tool, ...]]:
        fields = {"name": "bash", "description": "Runs.", "parameters": TOOLS[2].parameters, **changes}
        return [user("one")], (Tool(**fields),)  # type: ignore[arg-type]

    result = Message("tool", (Text("two"),), "callaaaa1")
    found: dict[str, Place] = {
        "a system message": lambda text: ([system(f"a {text} b"), user("one")], ()),
        "a user message": lambda text: asked(said("two"), user(f"a {text} b")),
        "a whole user message": lambda text: asked(said("two"), user(text)),
        "an answer": lambda text: asked(said(f"a {text} b"), user("two")),
        "reasoning": lambda text: asked(Message("assistant", (Thinking(f"a {text} b"), Text("two")))),
    }
    if renderer.facts.has_tools:
        found |= {
            "a tool's description": lambda text: tool(description=f"a {text} b"),
            "a parameter's name": lambda text: tool(
                parameters={"type": "object", "properties": {text: {"type": "string"}}}
            ),
            "a tool's output": lambda text: asked(
                called('{"command": "x"}'), Message("tool", (Text(f"a {text} b"),), "callaaaa1")
            ),
            "a whole tool output": lambda text: asked(
                called('{"command": "x"}'), Message("tool", (Text(text),), "callaaaa1")
            ),
        }
    if renderer.facts.has_tools and renderer.facts.calls.shown:
        found |= {
            "a file name": lambda text: asked(called(json.dumps({"path": f"/tmp/{text}.py"}), "read_file"), result),
            "an argument": lambda text: asked(called(json.dumps({"command": text}, ensure_ascii=False)), result),
            "an argument's name": lambda text: asked(called(json.dumps({text: "x"}, ensure_ascii=False)), result),
        }
    return found


def _texts(controls: Sequence[str], thorough: bool) -> Iterator[str]:
    """All at once; then each one whole, twice, halved and inside out."""
    yield " ".join(controls)
    yield "".join(controls)
    if thorough:
        for control in controls:
            half = len(control) // 2
            yield control
            yield f"{control}{control}"
            yield f"{control[half:]}{control}{control[:half]}"


def _ids(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """The prompt as it would be consumed."""
    request = ModelRequest("openai_chat", "m", tuple(messages), tuple(tools))
    prompt = prepare(renderer, open_session(renderer, "bodies"), request, CONTEXT)
    return [id for ids in (*prompt.rendered, prompt.lead) for id in ids.tolist()]


def _controls(renderer: Renderer, ids: Sequence[int]) -> list[int]:
    return [id for id in ids if id in renderer.vocabulary.control_ids]


def _shows(prompt: str, text: str) -> bool:
    """As it is, as JSON, or as HTML would have it: templates write schemas and arguments in either."""
    prompt = unicodedata.normalize("NFC", prompt)
    forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    escaped = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("'", "\\u0027")
    wanted = (unicodedata.normalize("NFC", form) for form in (*forms, escaped))
    return any(form in prompt for form in wanted) or "".join(text.split()) in "".join(prompt.split())


# --- roles ------------------------------------------------------------------------------------------------------------

SEQUENCES: dict[str, tuple[Role, ...]] = {
    "a chat": ("system", "user", "assistant", "user"),
    "without a system message": ("user", "assistant", "user"),
    "a developer message first": ("developer", "user"),
    "system and developer messages": ("system", "developer", "user"),
    "two system messages": ("system", "system", "user"),
    "a system message in the middle": ("system", "user", "assistant", "system", "user"),
    "a system message at the end": ("user", "assistant", "user", "system"),
    "a developer message in the middle": ("user", "assistant", "developer", "user"),
    "two users in a row": ("user", "user", "assistant", "user", "user"),
    "a tool loop": ("user", "tool", "assistant", "user"),
    "two tool results": ("user", "tools", "assistant", "user"),  # type: ignore[dict-item]
    "a user behind tool results": ("user", "tool", "user"),
    "a system message behind tool results": ("user", "tool", "system"),
    "two answers in a row": ("user", "assistant", "assistant", "user"),
    "an answer first": ("assistant", "user"),
}

ESSENTIAL = ("a chat", "without a system message")
"""What every agent sends: a model that is not shown this cannot be used."""


def check_roles(renderer: Renderer, ledger: Ledger) -> None:
    for name, roles in SEQUENCES.items():
        messages, words, called = _conversation(roles)
        try:
            ids = _ids(renderer, messages, TOOLS)
        except REFUSALS as error:
            tell = ledger.fails if name in ESSENTIAL else ledger.differs
            tell("roles", Finding(name, -1, "refused", f"{name} is refused: {error.message}", declared=True))
            continue
        except BridleError as error:
            ledger.fails("roles", broken(name, -1, error))
            continue
        shown = renderer.vocabulary.decode(ids)
        if lost := [word for word in words if word not in shown]:
            what = f"{name}: a message is not shown"
            finding = Finding(name, -1, "lost", what, shown[-300:], " ".join(words), declared=True)
            # Of a template that writes no calls the facts say so; results must be there all the same.
            silent = renderer.facts.calls.shown or set(lost) - set(called)
            (ledger.fails if silent else ledger.differs)("roles", finding)
        elif (places := [shown.rfind(word) for word in words]) != sorted(places):
            what = f"{name}: messages are shown in another order"
            ledger.differs("roles", Finding(name, -1, "order", what, shown[-300:], " ".join(words)))
        else:
            ledger.passed("roles")


def _conversation(roles: Sequence[str]) -> tuple[list[Message], list[str], list[str]]:
    """Messages of these roles and the words they hold, in order, and which of them stand in calls. A tool result brings
    the call it answers."""
    messages: list[Message] = []
    words: list[str] = []
    called: list[str] = []

    def word() -> str:
        words.append(f"zebra{len(words):02d}")
        return words[-1]

    for at, role in enumerate(roles):
        if role in ("tool", "tools"):
            ids = [f"callaaaa{at}{n}" for n in range(2 if role == "tools" else 1)]
            calls = [ToolCall(id, "bash", json.dumps({"command": word()})) for id in ids]
            called += words[-len(ids) :]
            messages.append(Message("assistant", tuple(calls)))
            messages += [Message("tool", (Text(word()),), id) for id in ids]
        else:
            make = {"system": system, "developer": developer, "user": user}.get(role, said)
            messages.append(make(word()))
    return messages, words, called
