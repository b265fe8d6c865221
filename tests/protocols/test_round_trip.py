"""One conversation through every protocol: what a client writes a model gets, but for what the wire cannot say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from bridle.messages import (
    Document,
    Image,
    Message,
    ModelRequest,
    Part,
    Reply,
    Switches,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Usage,
    Wishes,
)
from bridle.protocols import NAMES
from bridle.protocols.arguments import freeform_tool
from bridle.protocols.base import Protocol
from bridle.registry import resolve
from bridle.sessions.match import match
from bridle.sessions.session import signature
from bridle.testing.answers import go_on
from bridle.testing.conversation import Played
from bridle.testing.requests import WRITERS, write

PROTOCOLS: dict[str, Protocol] = {name: resolve("protocol", NAMES, name)() for name in NAMES if name in WRITERS}

# --- conversations ---

NAMES_OF_TOOLS = ["read", "write_file", "mcp__git__log", "apply-patch", "x"]
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer", "minimum": -1.5}}},
    {
        "type": "object",
        "properties": {"list": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/é"}]}}},
        "required": ["list"],
        "additionalProperties": False,
        "$defs": {"é": {"type": "object", "properties": {"deep": {"enum": ["b", "a", None, 1e30, 2**60]}}}},
    },
]
ODD = [
    "",
    "\0",
    "\x1b[1m\r\n\t",
    "\ud7ff\ufffe\uffff",
    "👩‍👧 🐎",
    "\u2028\u2029",
    "<|im_end|>",
    " ",
    "\n",
    '"\\/',
    "\u202eabc",
]
texts = st.text(max_size=12) | st.sampled_from(ODD)
words = texts.filter(bool)
names = st.sampled_from(NAMES_OF_TOOLS)
identities = st.integers(0, 10**9).map(lambda number: f"id{number:x}")
payloads = st.binary(min_size=1, max_size=9).map(lambda data: base64.b64encode(data).decode())
json_values = st.recursive(
    st.sampled_from([None, True, 1.0, -0.0, 1e-9, 2**70]) | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
json_objects = st.dictionaries(texts, json_values, max_size=2)
spaced = st.builds(json.dumps, json_objects, separators=st.sampled_from([(",", ":"), (" , ", ":  ")]))
arguments = spaced | texts | st.builds(lambda text: json.dumps({"input": text}), texts)
LINKED = Image("", "https://h/a.png")
images = st.builds(Image, st.sampled_from(["image/png", "image/jpeg"]), payloads) | st.just(
    Image("", "https://h/a.png")
)
documents = st.builds(Document, st.just("application/pdf"), payloads, texts)
said = st.builds(Text, texts)
contents = st.lists(said | said | images | documents, max_size=3).map(tuple)
schemas = st.sampled_from(SCHEMAS)
functions = st.builds(Tool, names, texts, schemas, namespace=st.sampled_from(["", "", "agents"]))
tools = st.lists(functions | st.builds(freeform_tool, names, texts), max_size=3, unique_by=lambda tool: tool.name)


@st.composite
def assistants(draw: st.DrawFn) -> list[Message]:
    """An assistant message and, most of the time, the results of its calls."""
    parts: list[Part] = []
    first = draw(identities)
    for number, kind in enumerate(draw(st.lists(st.sampled_from(["thinking", "text", "call"]), max_size=5))):
        if kind == "thinking":
            parts.append(Thinking(draw(texts), draw(identities | st.just(""))))
        elif kind == "text":
            parts.append(Text(draw(texts)))
        else:
            parts.append(ToolCall(f"{first}x{number}", draw(names), draw(arguments)))
    message = Message("assistant", tuple(parts))
    results = [Message("tool", draw(contents), call.id, draw(st.booleans())) for call in message.calls]
    return [message, *results]


@st.composite
def requests(draw: st.DrawFn) -> ModelRequest:
    others = st.builds(Message, st.sampled_from(["system", "developer"]), st.lists(said, max_size=2).map(tuple))
    users = st.builds(Message, st.just("user"), contents)
    pieces = draw(st.lists((others | users).map(lambda message: [message]) | assistants(), max_size=6))
    pieces.insert(draw(st.integers(0, len(pieces))), [draw(users)])
    offered = draw(tools)
    return ModelRequest(
        protocol="",
        model="policy",
        messages=tuple(message for piece in pieces for message in piece),
        tools=tuple(offered),
        wishes=draw(wishes(offered)),
        stream=draw(st.booleans()),
        switches=Switches(draw(st.sampled_from([None, True, False])), draw(st.sampled_from(["", "low", "high"]))),
        response_schema=draw(st.none() | schemas),
        include_usage=draw(st.booleans()),
        show_thinking=draw(st.booleans()),
        framing=draw(st.sampled_from(["sse", "array"])),
        previous=draw(st.sampled_from(["", "", "turn1"])),
        store=draw(st.booleans()),
        metadata=draw(st.dictionaries(st.sampled_from(["user_id", "user", "prompt_cache_key", "task"]), words)),
    )


@st.composite
def wishes(draw: st.DrawFn, offered: list[Tool]) -> Wishes:
    choice = draw(st.sampled_from(["auto", "none", "required"] if offered else ["auto", "none"]))
    may = draw(st.sets(st.sampled_from([tool.name for tool in offered]))) if offered and choice != "none" else set()
    allowed = tuple(tool.name for tool in offered if tool.name in may)
    return change(draw(other_wishes), tool_choice=choice, allowed=allowed)


other_wishes = st.builds(
    Wishes,
    max_tokens=st.none() | st.integers(1, 10**6),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(-1, 100),
    seed=st.none() | st.integers(0, 2**31 - 1),
    stop=st.lists(words, max_size=2).map(tuple),
    n=st.integers(1, 4),
    logprobs=st.booleans(),
    parallel_calls=st.none() | st.booleans(),
)


# --- what each wire cannot say: the table of docs/protocols.md ---


def change(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


def everywhere(request: ModelRequest) -> ModelRequest:
    """No protocol says parts without a word."""
    messages = (change(message, parts=tuple(filter(says_something, message.parts))) for message in request.messages)
    return change(request, messages=tuple(messages))


def says_something(part: Part) -> bool:
    return part not in (Text(""), Thinking(""))


def without_responses(request: ModelRequest) -> ModelRequest:
    """What the Responses API alone says: `previous`, `store`, namespaces."""
    tools = tuple(change(tool, namespace="") for tool in request.tools)
    return change(request, previous="", store=False, tools=tools)


def without_gemini(request: ModelRequest) -> ModelRequest:
    """What Gemini alone says: how a stream is framed, and whether thoughts are wanted."""
    return change(request, framing="sse", show_thinking=True)


def as_functions(request: ModelRequest) -> ModelRequest:
    """Tools have one form, and arguments are objects: compact JSON in their own order."""
    messages = (change(one, parts=tuple(map(with_compact_arguments, one.parts))) for one in request.messages)
    tools = tuple(change(tool, form="function") for tool in request.tools)
    return change(request, tools=tools, messages=tuple(messages))


def with_compact_arguments(part: Part) -> Part:
    if not isinstance(part, ToolCall):
        return part
    try:
        value = json.loads(part.arguments)
    except ValueError:
        return part
    compact = msgspec.json.encode(value).decode() if isinstance(value, dict) else part.arguments
    return change(part, arguments=compact)


def with_freeform_arguments(request: ModelRequest) -> ModelRequest:
    """A freeform call carries its text alone."""
    freeform = {tool.name for tool in request.tools if tool.form == "custom"}
    messages = (
        change(message, parts=tuple(as_freeform(part, freeform) for part in message.parts))
        for message in request.messages
    )
    return change(request, messages=tuple(messages))


def as_freeform(part: Part, freeform: set[str]) -> Part:
    if not isinstance(part, ToolCall) or part.name not in freeform:
        return part
    try:
        value = json.loads(part.arguments)
    except ValueError:
        value = None
    whole = isinstance(value, dict) and value.keys() == {"input"} and isinstance(value["input"], str)
    text = value["input"] if whole else part.arguments
    return change(part, arguments=msgspec.json.encode({"input": text}).decode())


def in_anthropic(request: ModelRequest) -> ModelRequest:
    """No developers, no `seed`, `n`, `logprobs`; of tools that may be called the one that must be, of metadata the
    user's id alone."""
    request = as_functions(without_responses(without_gemini(request)))
    one = request.wishes.tool_choice == "required" and len(request.wishes.allowed) == 1
    return change(
        request,
        messages=tuple(change(one, role=ROLES.get(one.role, one.role)) for one in request.messages),
        wishes=change(request.wishes, seed=None, n=1, logprobs=False, allowed=request.wishes.allowed if one else ()),
        include_usage=False,
        metadata={name: value for name, value in request.metadata.items() if name == "user_id"},
    )


ROLES = {"developer": "system"}


def in_openai_chat(request: ModelRequest) -> ModelRequest:
    """No signature, no `is_error`, no order of thinking, text and calls; several thoughts are one."""
    request = with_freeform_arguments(without_responses(without_gemini(request)))
    return change(request, messages=tuple(map(in_chat_order, request.messages)))


def in_chat_order(message: Message) -> Message:
    if message.role != "assistant":
        return change(message, is_error=False)
    thoughts = [part.text for part in message.parts if isinstance(part, Thinking) and part.text]
    thinking = [Thinking("\n".join(thoughts))] if thoughts else []
    texts = [part for part in message.parts if isinstance(part, Text)]
    return change(message, parts=(*thinking, *texts, *message.calls), form="list" if len(texts) > 1 else "")


def in_openai_responses(request: ModelRequest) -> ModelRequest:
    """No `is_error`, no `top_k`, `seed`, `stop`, `n`; thinking off has no effort, thinking on is said by none; no end
    of an assistant message but where text begins anew."""
    request = with_freeform_arguments(without_gemini(request))
    messages = tuple(change(one, is_error=False) for one in in_items(request.messages))
    first = messages[0]
    off = request.switches.thinking is False
    return change(
        request,
        messages=messages,
        instructions=int(first.role == "system" and len(first.parts) == 1),
        wishes=change(request.wishes, top_k=None, seed=None, stop=(), n=1),
        switches=Switches(False) if off else Switches(None, request.switches.effort),
        include_usage=False,
    )


def in_items(messages: Sequence[Message]) -> Iterator[Message]:
    row: list[Part] = []
    for message in messages:
        if message.role != "assistant":
            yield from [Message("assistant", tuple(row))] if row else []
            row = []
            yield message
            continue
        for kind, parts in groupby(message.parts, key=type):
            spoken, called = (any(isinstance(part, what) for part in row) for what in (Text, ToolCall))
            if spoken and not called and kind is not ToolCall:
                yield Message("assistant", tuple(row))
                row = []
            row += parts
    yield from [Message("assistant", tuple(row))] if row else []


def in_gemini(request: ModelRequest) -> ModelRequest:
    """System text first and nowhere else; one signature a turn; texts of one kind in a row are one, and so are a
    result's; a link to an image has a type; no end of an assistant message but where a signature names another turn,
    and none behind a call; no `parallel_calls`."""
    request = as_functions(without_responses(request))
    first, *rest = request.messages
    top = [change(first, role="system")] if first.role in ROLES_ABOVE and first.parts and rest else []
    wishes = change(request.wishes, parallel_calls=None)
    return change(
        request,
        messages=(*top, *map(in_parts, as_turns(rest if top else request.messages))),
        wishes=change(wishes, top_k=None) if wishes.top_k == -1 else wishes,
        include_usage=False,
        framing=request.framing if request.stream else "array",
    )


ROLES_ABOVE = ("system", "developer")


def as_turns(messages: Sequence[Message]) -> Iterator[Message]:
    for said_by_model, group in groupby(messages, key=lambda message: message.role == "assistant"):
        if said_by_model:
            yield from (in_one(row) for row in rows(group))
        else:
            yield from (change(one, role="user") if one.role in ROLES_ABOVE else one for one in group)


def rows(run: Iterable[Message]) -> Iterator[list[Message]]:
    row: list[Message] = []
    turn = ""
    for message in run:
        own = next(iter(message.signatures), "")
        if turn and own and own != turn and not any(one.calls for one in row):
            yield row
            row, turn = [], ""
        row.append(message)
        turn = turn or own
    yield row


def in_one(row: Sequence[Message]) -> Message:
    parts = tuple(part for message in row for part in message.parts)
    return Message("assistant", parts, form="list" if len(row) > 1 else "")


def in_parts(message: Message) -> Message:
    texts, others = [], []
    parts = [change(one, media_type="image/*") if one == LINKED else one for one in message.parts]
    if message.role == "tool":
        texts = [part.text for part in parts if isinstance(part, Text)]
        others = [part for part in parts if not isinstance(part, Text)]
        return change(message, parts=(*([Text("\n".join(texts))] if texts else []), *others))
    if message.role != "assistant":
        return change(message, parts=tuple(parts))
    signature = next(iter(message.signatures), "")
    joined: list[Part] = []
    for part in parts:
        match joined, part:
            case [*_, Text(before)], Text(text):
                joined[-1] = Text(before + text)
            case [*_, Thinking(before)], Thinking(text):
                joined[-1] = Thinking(before + text, signature)
            case _, Thinking(""):
                pass
            case _:
                joined.append(change(part, signature=signature) if isinstance(part, Thinking) else part)
    if signature and not any(isinstance(part, Thinking) for part in joined):
        joined.insert(0, Thinking("", signature))
    return change(message, parts=tuple(joined))


UNSAID: dict[str, Callable[[ModelRequest], ModelRequest]] = {
    "anthropic": in_anthropic,
    "openai_chat": in_openai_chat,
    "openai_responses": in_openai_responses,
    "gemini": in_gemini,
}


def normal(name: str, request: ModelRequest) -> ModelRequest:
    """`request` without what the wire of protocol `name` cannot say."""
    return change(UNSAID[name](everywhere(request)), protocol=name)


def formless(request: ModelRequest) -> ModelRequest:
    """A client has one way to write a message; in which it was met is not part of what it says."""
    return change(request, messages=tuple(change(message, form="") for message in request.messages))


def through(name: str, request: ModelRequest) -> ModelRequest:
    wire = write(name, request)
    read = PROTOCOLS[name].parse(wire.body, {}, wire.target)
    assert {note.what for note in read.notes} <= {"redacted_thinking"}
    return change(read, notes=())


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=requests())
def test_a_conversation_comes_through_but_for_what_the_wire_cannot_say(name: str, asked: ModelRequest) -> None:
    once = through(name, asked)
    assert once == normal(name, asked)
    assert formless(through(name, once)) == formless(once)
    assert [list(tool.parameters) for tool in once.tools] == [list(tool.parameters) for tool in asked.tools]


# --- answers that come back ---

OFFERED = (Tool("read", "reads", {"type": "object"}), freeform_tool("patch", "patches"), Tool("log", namespace="git"))
EXPECTED = {"exact", "form", "whitespace", "split", "reasoning_dropped"}
plain_values = st.dictionaries(texts, st.none() | st.integers(-(2**53), 2**53) | texts | st.lists(texts, max_size=2))
sampled = st.builds(msgspec.json.encode, plain_values).map(bytes.decode) | st.builds(
    json.dumps, plain_values, ensure_ascii=st.just(False), separators=st.just((" , ", ":  "))
)


@st.composite
def answers(draw: st.DrawFn) -> Message:
    """What a parser makes of a draw: thinking and text, calls, text behind them, now and then a broken call."""
    parts: list[Part] = []
    for kind in draw(
        st.lists(st.sampled_from(["thinking", "text", "call", "patch", "broken"]), min_size=1, max_size=5)
    ):
        match kind:
            case "thinking":
                parts.append(Thinking(draw(words)))
            case "text":
                parts.append(Text(draw(words)))
            case "patch":
                parts.append(ToolCall("", "patch", msgspec.json.encode({"input": draw(texts)}).decode()))
            case _:
                written = draw(sampled if kind == "call" else texts)
                parts.append(ToolCall("", draw(st.sampled_from(["read", "log", "unknown"])), written))
    return Message("assistant", tuple(parts))


def streamed(protocol: Protocol, request: ModelRequest, reply: Reply, early: int) -> bytes:
    """`early`: how many characters of what may be streamed before the end are."""
    stream = protocol.stream(request, reply.id, reply.signature)
    chunks = [stream.start(Usage(1, 0))]
    last: type[Part] | None = None
    for part in reply.message.parts:
        if not isinstance(part, Text | Thinking) or type(part) is last or early <= 0:
            break
        grow = stream.thinking if isinstance(part, Thinking) else stream.text
        chunks += [stream.ping(), *(grow(part.text[at : at + 2]) for at in range(0, min(early, len(part.text)), 2))]
        last, early = type(part), early - len(part.text)
    return b"".join([*chunks, stream.finish([reply])])


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    answer=answers(),
    early=st.none() | st.integers(0, 60),
    framing=st.sampled_from(["sse", "array"]),
    show_thinking=st.booleans(),
)
def test_an_answer_that_comes_back_is_the_draw_it_was(
    name: str, answer: Message, early: int | None, framing: Any, show_thinking: bool
) -> None:
    asked = ModelRequest(
        *("", "policy", (Message("user", (Text("Go."),)),), OFFERED),
        stream=early is not None,
        framing=framing,
        show_thinking=show_thinking,
    )
    protocol, wire, played = PROTOCOLS[name], write(name, asked), Played()
    first = protocol.parse(wire.body, {}, wire.target)
    said = played.turn(first, answer)
    turn = played.last
    reply = Reply(turn.id, "policy", said, "stop", Usage(1, 1), signature=signature(turn.id))
    sent = protocol.encode(first, [reply]) if early is None else streamed(protocol, first, reply, early)
    again = go_on(name, wire, sent, "And then?")
    found = match(played.session.tree, protocol.parse(again.body, {}, again.target))
    assert found.base == turn.end
    assert [echo.turn for echo in found.echoes] == [turn.seq]
    assert {echo.echo for echo in found.echoes} <= EXPECTED
    assert [step.unit for step in found.steps][-1] == "message"
