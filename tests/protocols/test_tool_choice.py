"""Whether an answer may, may not or must call a tool, and which: one wish in every protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridle.errors import BadRequest
from bridle.messages import Message, ModelRequest, Reply, Usage
from bridle.protocols import NAMES
from bridle.protocols.base import Protocol
from bridle.registry import resolve

PROTOCOLS: dict[str, Protocol] = {name: resolve("protocol", NAMES, name)() for name in NAMES}
USER = {"role": "user", "content": "hi"}
READ, LIST = {"name": "read"}, {"name": "list"}
PARTS = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
OFFERS: dict[str, dict[str, Any]] = {
    "anthropic": {"model": "m", "messages": [USER], "tools": [tool | {"input_schema": {}} for tool in (READ, LIST)]},
    "openai_chat": {
        "model": "m",
        "messages": [USER],
        "tools": [{"type": "function", "function": READ}, {"type": "custom", "custom": LIST}],
    },
    "openai_responses": {
        "model": "m",
        "input": "hi",
        "tools": [{"type": "function", **READ}, {"type": "custom", **LIST}],
    },
    "gemini": {**PARTS, "model": "m", "tools": [{"functionDeclarations": [READ, LIST]}]},
}
HOSTED: dict[str, list[dict[str, Any]]] = {
    "anthropic": [{"type": "web_search_20250305", "name": "web_search"}],
    "openai_chat": [{"type": "web_search"}],
    "openai_responses": [{"type": "web_search"}],
    "gemini": [{"googleSearch": {}}],
}


def choosing(protocol: str, choice: Any) -> dict[str, Any]:
    if protocol == "gemini":
        return {"toolConfig": {"functionCallingConfig": choice}}
    return {"tool_choice": choice}


def parsed(protocol: str, choice: Any, **changes: Any) -> ModelRequest:
    body = OFFERS[protocol] | choosing(protocol, choice) | changes
    return PROTOCOLS[protocol].parse(msgspec.json.encode(body), {})


def wished(request: ModelRequest) -> tuple[str, tuple[str, ...]]:
    return request.wishes.tool_choice, request.wishes.allowed


REQUIRED: dict[str, Any] = {
    "anthropic": {"type": "any"},
    "openai_chat": "required",
    "openai_responses": "required",
    "gemini": {"mode": "ANY"},
}
NAMED: dict[str, Any] = {
    "anthropic": {"type": "tool", "name": "list"},
    "openai_chat": {"type": "custom", "custom": LIST},
    "openai_responses": {"type": "custom", "name": "list"},
    "gemini": {"mode": "ANY", "allowedFunctionNames": ["list"]},
}
CHAT_ALLOWED = [{"type": "custom", "custom": LIST}, {"type": "function", "function": READ}]
ALLOWED: dict[str, Any] = {
    "openai_chat": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": CHAT_ALLOWED}},
    "openai_responses": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "custom", "name": "list"}, {"type": "function", "name": "read"}, {"type": "web_search"}],
    },
    "gemini": {"mode": "ANY", "allowedFunctionNames": ["list", "read"]},
}


@pytest.mark.parametrize(
    ("protocol", "choice", "wish"),
    [
        *((name, None, ("auto", ())) for name in NAMES),
        ("anthropic", {"type": "auto"}, ("auto", ())),
        ("anthropic", {"type": "none"}, ("none", ())),
        ("openai_chat", "auto", ("auto", ())),
        ("openai_chat", "none", ("none", ())),
        ("openai_responses", "none", ("none", ())),
        ("openai_responses", {"type": "allowed_tools", "mode": "required", "tools": []}, ("required", ())),
        ("gemini", {}, ("auto", ())),
        ("gemini", {"mode": "AUTO"}, ("auto", ())),
        ("gemini", {"mode": "NONE", "allowedFunctionNames": ["read"]}, ("none", ())),
        ("gemini", {"mode": "VALIDATED"}, ("auto", ("read", "list"))),
        ("gemini", {"mode": "VALIDATED", "allowedFunctionNames": ["list"]}, ("auto", ("list",))),
        *((name, choice, ("required", ())) for name, choice in REQUIRED.items()),
        *((name, choice, ("required", ("list",))) for name, choice in NAMED.items()),
        *((name, choice, ("required", ("read", "list"))) for name, choice in ALLOWED.items()),
    ],
)
def test_a_choice_is_one_wish_in_every_protocol(protocol: str, choice: Any, wish: Any) -> None:
    request = parsed(protocol, choice)
    assert wished(request) == wish
    assert request.notes == ()
    assert [tool.name for tool in request.tools] == ["read", "list"], "the prompt stays the same"


@pytest.mark.parametrize("protocol", NAMES)
def test_a_tool_that_is_not_offered_is_refused_with_those_that_are(protocol: str) -> None:
    choice = msgspec.json.decode(msgspec.json.encode(NAMED[protocol]).replace(b"list", b"write"))
    where = "toolConfig.functionCallingConfig" if protocol == "gemini" else "tool_choice"
    with pytest.raises(BadRequest, match=f"{where}: no tool is named 'write'; offered: read, list"):
        parsed(protocol, choice)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_call_that_no_tool_is_offered_for_is_refused(protocol: str) -> None:
    with pytest.raises(BadRequest, match="a call is asked for, and no tool is offered"):
        parsed(protocol, REQUIRED[protocol], tools=[])


@pytest.mark.parametrize("protocol", NAMES)
def test_a_choice_of_tools_that_run_at_the_provider_is_left_out_with_a_note(protocol: str) -> None:
    """Claude Code searches the web so: one request that offers the provider's search alone, and must call it."""
    choices = [REQUIRED[protocol]]
    if protocol == "anthropic":
        choices.append({"type": "tool", "name": "web_search"})
    if protocol == "openai_responses":
        search = {"type": "web_search"}
        choices += [search, {"type": "allowed_tools", "mode": "auto", "tools": [search]}]
    for choice in choices:
        request = parsed(protocol, choice, tools=HOSTED[protocol])
        assert wished(request) == ("auto", ())
        assert [note.what for note in request.notes] == ["server_tool_dropped", "tool_choice_dropped"]


def test_a_choice_names_a_tool_of_a_namespace_without_it_or_as_it_is_offered() -> None:
    function = {"type": "function", "name": "read"}
    space = {"type": "namespace", "name": "git", "tools": [function]}
    for name, allowed in [("read", ("read", "git__read")), ("git__read", ("git__read",))]:
        request = parsed("openai_responses", {"type": "function", "name": name}, tools=[function, space])
        assert wished(request) == ("required", allowed)


@pytest.mark.parametrize("choice", ["none", "required", NAMED["openai_responses"]])
def test_a_response_says_the_choice_as_it_was_asked_for(choice: Any) -> None:
    request = parsed("openai_responses", choice)
    reply = Reply("r", "m", Message("assistant"), "stop", Usage(1, 1))
    assert msgspec.json.decode(PROTOCOLS["openai_responses"].encode(request, [reply]))["tool_choice"] == choice


def test_a_response_says_which_tools_were_allowed() -> None:
    own = ALLOWED["openai_responses"]["tools"][:2]
    request = parsed("openai_responses", {"type": "allowed_tools", "mode": "auto", "tools": own})
    reply = Reply("r", "m", Message("assistant"), "stop", Usage(1, 1))
    told = msgspec.json.decode(PROTOCOLS["openai_responses"].encode(request, [reply]))["tool_choice"]
    assert told == {"type": "allowed_tools", "mode": "auto", "tools": own[::-1]}
