from __future__ import annotations

import json
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import Message as SdkMessage
from hypothesis import given, settings, strategies as st

from bridle.errors import (
    AccessDenied,
    BadRequest,
    BodyTooLarge,
    BridleError,
    EngineUnfit,
    InfrastructureError,
    LimitReached,
    NotFound,
    Paused,
    PromptTooLong,
)
from bridle.messages import (
    Document,
    FinishReason,
    Image,
    Message,
    ModelRequest,
    Note,
    Part,
    Reply,
    Switches,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Usage,
)
from bridle.protocols.anthropic import Anthropic

SIGNATURE = "turnX1Y2"
USAGE = Usage(100, 20, 60)
USER = {"role": "user", "content": "hi"}
ASK: Any = {"model": "policy", "max_tokens": 100, "messages": [USER]}
READ = ToolCall("callA1", "read", '{"path":"a.py","lines":[1,2]}')
LIST = ToolCall("callB2", "list", "{}")
REPLIES: dict[str, tuple[Part, ...]] = {
    "text": (Text("Hello, wörld 🐎\n"),),
    "thinking": (Thinking("let me see", SIGNATURE), Text("Done.")),
    "thinking alone": (Thinking("hm", SIGNATURE),),
    "a call": (Text("Reading."), READ),
    "parallel calls": (Thinking("both", SIGNATURE), READ, LIST),
    "interleaved": (Thinking("a", SIGNATURE), Text("b"), Thinking("c", SIGNATURE), Text("d"), READ, Text("after")),
    "text between calls": (READ, Text("and"), LIST),
    "two texts": (Text("before"), Text("<tool_call>{broken")),
    "nothing": (),
}


def reply(*parts: Part, finish_reason: FinishReason = "stop", usage: Usage = USAGE) -> Reply:
    return Reply("msgA1", "policy", Message("assistant", parts), finish_reason, usage)


def parsed(body: Any, headers: dict[str, str] | None = None) -> ModelRequest:
    return Anthropic().parse(body if isinstance(body, bytes) else msgspec.json.encode(body), headers or {})


def said(*blocks: Any) -> Message:
    """An assistant message as it is parsed."""
    return parsed({**ASK, "messages": [{"role": "assistant", "content": list(blocks)}]}).messages[0]


def streamed(claude: anthropic.Anthropic) -> SdkMessage:
    with claude.messages.stream(**ASK) as stream:
        return stream.get_final_message()


def echo(claude: anthropic.Anthropic, canned: Any, message: SdkMessage) -> Message:
    """What the SDK's answer becomes when an agent sends it back."""
    claude.messages.create(**{**ASK, "messages": [USER, {"role": "assistant", "content": message.content}]})
    return canned.requests[-1].messages[1]


# --- answers through the official SDK ---


@pytest.mark.parametrize("parts", REPLIES.values(), ids=REPLIES)
def test_streamed_and_plain_answers_are_the_same_and_come_back_as_what_was_said(
    claude: anthropic.Anthropic, canned: Any, parts: tuple[Part, ...]
) -> None:
    canned.answers(reply(*parts))
    plain, stream = claude.messages.create(**ASK), streamed(claude)
    assert [block.to_dict() for block in stream.content] == [block.to_dict() for block in plain.content]
    assert stream.usage.to_dict() == plain.usage.to_dict()
    assert echo(claude, canned, plain) == echo(claude, canned, stream) == Message("assistant", parts)


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [("stop", "end_turn"), ("tool_calls", "tool_use"), ("length", "max_tokens"), ("abort", "max_tokens")],
)
def test_stop_reasons_are_the_protocols_own(
    claude: anthropic.Anthropic, canned: Any, finish_reason: str, stop_reason: str
) -> None:
    canned.answers(reply(Text("x"), finish_reason=finish_reason))
    assert claude.messages.create(**ASK).stop_reason == streamed(claude).stop_reason == stop_reason


def test_a_stop_text_ends_a_turn_under_its_own_reason(claude: anthropic.Anthropic, canned: Any) -> None:
    canned.answers(Reply("msgA1", "policy", Message("assistant", (Text("x"),)), "stop", USAGE, stop_sequence="END"))
    for message in (claude.messages.create(**ASK), streamed(claude)):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


def test_usage_counts_cached_tokens_apart_and_is_known_from_the_first_event(
    claude: anthropic.Anthropic, canned: Any
) -> None:
    canned.answers(reply(Text("x"), usage=USAGE))
    with claude.messages.stream(**ASK) as stream:
        start = next(event for event in stream if event.type == "message_start")
        assert (start.message.usage.input_tokens, start.message.usage.cache_read_input_tokens) == (40, 60)
        final = stream.get_final_message().usage
    assert (final.input_tokens, final.cache_read_input_tokens, final.output_tokens) == (40, 60, 20)


def test_a_thinking_block_is_signed_before_it_closes_and_closes_before_text_opens(
    claude: anthropic.Anthropic, canned: Any
) -> None:
    canned.answers(reply(Thinking("abc", SIGNATURE), Text("xyz"), READ, finish_reason="tool_calls"))
    streamed(claude)
    events = [json.loads(line[6:]) for chunk in canned.events for line in chunk.splitlines() if line[:6] == b"data: "]
    kinds = [event.get("delta", {}).get("type") or event["type"] for event in events if event["type"] != "ping"]
    assert kinds == [
        *("message_start", "content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop", "message_delta", "message_stop"),
    ]


def test_no_call_and_no_end_is_sent_before_the_turn_is_finished() -> None:
    stream = Anthropic().stream(parsed(ASK), "msgA1", SIGNATURE)
    early = stream.start(Usage(1, 0)) + stream.thinking("a") + stream.text("b")
    assert b"tool_use" not in early
    assert b"message_delta" not in early
    assert b"message_stop" not in early
    assert b"tool_use" in stream.finish([reply(Thinking("a", SIGNATURE), Text("b"), READ)])


def test_arguments_go_out_byte_for_byte() -> None:
    spaced = ToolCall("callA1", "read", '{"b":  1.0,\n "a": "\\u00e9"}')
    stream = Anthropic().stream(parsed(ASK), "msgA1")
    deltas = [line[6:] for line in stream.finish([reply(spaced)]).splitlines() if b"input_json_delta" in line]
    assert json.loads(deltas[0])["delta"]["partial_json"] == spaced.arguments
    assert spaced.arguments.encode() in Anthropic().encode(parsed(ASK), [reply(spaced)])


@pytest.mark.parametrize("depth", [100, *range(900, 1000, 5), 3000])
def test_arguments_nested_deeper_than_a_decoder_goes_are_given_as_text(depth: int) -> None:
    deep = ToolCall("callA1", "read", '{"a":' * depth + "1" + "}" * depth)
    whole = Anthropic().encode(parsed(ASK), [reply(deep)])
    events = Anthropic().stream(parsed(ASK), "msgA1").finish([reply(deep)])
    sent = next(line[6:] for line in events.splitlines() if b"input_json_delta" in line)
    streamed = json.loads(sent)["delta"]["partial_json"]
    if depth < 850:
        assert streamed == deep.arguments
        assert deep.arguments.encode() in whole
    if depth == 3000:
        assert json.loads(streamed) == {"INVALID_JSON": deep.arguments}
        assert json.loads(whole)["content"][0]["input"] == {"INVALID_JSON": deep.arguments}


def test_finish_sends_what_streaming_left_out(claude: anthropic.Anthropic, canned: Any) -> None:
    canned.answers(reply(Text("Hello"), READ), deltas=[(0, Text, "Hel")])
    assert streamed(claude).content[0].to_dict() == {"type": "text", "text": "Hello"}
    assert canned.events[-1].count(b'"text_delta","text":"lo"') == 1


@pytest.mark.parametrize(
    ("finished", "complaint"),
    [
        ((Text("Help"),), "not the beginning"),
        ((Text("Hel"), Thinking("t", SIGNATURE)), "signed"),
        ((Thinking("Hello"),), "streamed as Text"),
        ((), "streamed as Text"),
    ],
)
def test_a_reply_that_contradicts_what_was_streamed_is_refused(finished: tuple[Part, ...], complaint: str) -> None:
    stream = Anthropic().stream(parsed(ASK), "msgA1")
    stream.text("Hello")
    with pytest.raises(ValueError, match=complaint):
        stream.finish([reply(*finished)])


def test_a_block_closed_by_the_next_one_cannot_grow() -> None:
    stream = Anthropic().stream(parsed(ASK), "msgA1")
    stream.thinking("a")
    stream.text("b")
    with pytest.raises(ValueError, match="closed before"):
        stream.finish([reply(Thinking("a more"), Text("b"))])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(min_size=1, max_size=20)
calls = st.builds(
    lambda arguments, compact: json.dumps(
        arguments, separators=(",", ":") if compact else (" , ", ":  "), ensure_ascii=not compact
    ),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.booleans(),
)


@st.composite
def replies(draw: st.DrawFn) -> tuple[Reply, list[tuple[int, type[Text] | type[Thinking], str]]]:
    """A reply, and how much of its beginning is streamed in which pieces."""
    kinds = [Thinking, Text] if draw(st.booleans()) else [Text, Thinking]
    head = [kinds[number % 2](draw(texts)) for number in range(draw(st.integers(0, 4)))]
    parts: list[Part] = [Thinking(part.text, SIGNATURE) if isinstance(part, Thinking) else part for part in head]
    for number, arguments in enumerate(draw(st.lists(calls, max_size=3))):
        parts.append(ToolCall(f"call{number}", draw(texts), arguments))
        if draw(st.booleans()):
            parts.append(Text(draw(texts)))
    letters = [(0, type(part), letter) for part in head for letter in part.text]
    return reply(*parts), letters[: draw(st.integers(0, len(letters)))]


@settings(max_examples=60, deadline=None)
@given(replies())
def test_any_reply_survives_streaming_and_the_echo(server: Any, claude: anthropic.Anthropic, planned: Any) -> None:
    answer, deltas = planned
    server.canned.answers(answer, deltas=deltas)
    plain, stream = claude.messages.create(**ASK), streamed(claude)
    first, second = (echo(claude, server.canned, message) for message in (plain, stream))
    assert first == second
    assert [_loose(part) for part in first.parts] == [_loose(part) for part in answer.message.parts]


def _loose(part: Part) -> Any:
    """The SDK parses arguments, so only their meaning survives it."""
    return (part.id, part.name, json.loads(part.arguments)) if isinstance(part, ToolCall) else part


# --- errors ---


@pytest.mark.parametrize(
    ("error", "raised", "kind"),
    [
        (BadRequest("no"), anthropic.BadRequestError, "invalid_request_error"),
        (PromptTooLong(5000, 4096), anthropic.BadRequestError, "invalid_request_error"),
        (AccessDenied("no"), anthropic.PermissionDeniedError, "permission_error"),
        (LimitReached("no"), anthropic.PermissionDeniedError, "permission_error"),
        (NotFound("no"), anthropic.NotFoundError, "not_found_error"),
        (BodyTooLarge("no"), anthropic.APIStatusError, "request_too_large"),
    ],
)
def test_refusals_raise_the_sdks_own_error_at_once(
    claude: anthropic.Anthropic, canned: Any, error: BridleError, raised: type[anthropic.APIStatusError], kind: str
) -> None:
    canned.refusal = error
    with pytest.raises(raised) as caught:
        claude.messages.create(**ASK)
    assert canned.hits == 1
    assert caught.value.body == {"type": "error", "error": {"type": kind, "message": error.message}}


def test_infrastructure_failures_are_overload_or_api_errors() -> None:
    errors = (InfrastructureError, Paused, EngineUnfit)
    kinds = [json.loads(Anthropic().error(error("x")))["error"]["type"] for error in errors]
    assert kinds == ["overloaded_error", "overloaded_error", "api_error"]


def test_an_overlong_prompt_is_told_in_the_words_that_make_agents_compact() -> None:
    assert b"prompt is too long: 5000 tokens > 4096 maximum" in Anthropic().error(PromptTooLong(5000, 4096))


def test_an_error_in_mid_stream_reaches_the_client(claude: anthropic.Anthropic, canned: Any) -> None:
    canned.answers(reply(Text("Hello")))
    canned.broken_stream = InfrastructureError("the engine went away")
    with pytest.raises(anthropic.APIStatusError, match="the engine went away"):
        streamed(claude)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b"[]", "body: expected object, got array"),
        (b'{"a":' * 100_000, "nested too deeply"),
        ({"messages": [USER]}, "model: required, but missing"),
        ({**ASK, "model": 7}, "model: expected str, got int"),
        ({**ASK, "messages": []}, "messages: expected array of length >= 1"),
        ({**ASK, "messages": None}, "messages: expected array, got null"),
        (
            {**ASK, "messages": [{"role": "tool", "content": "x"}]},
            "messages[0].role: invalid value 'tool'; known: user",
        ),
        ({**ASK, "messages": [{"content": "x"}]}, "messages[0].role: required, but missing"),
        ({**ASK, "messages": [USER, {"role": "user"}]}, "messages[1].content: required, but missing"),
        ({**ASK, "messages": [{"role": "user", "content": 5}]}, "messages[0].content: expected str | array, got int"),
        (
            {**ASK, "messages": [{"role": "user", "content": [{"type": "audio"}]}]},
            "messages[0].content[0].type: invalid value 'audio'; known: text, image, document",
        ),
        (
            {
                **ASK,
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}
                ],
            },
            "messages[0].content[0].source.type: invalid value 'file'; known: base64, url; in documents also text",
        ),
        (
            {**ASK, "messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
            "messages[0].content[0].type: invalid value 'tool_result'",
        ),
        (
            {**ASK, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 5}]}]},
            "messages[0].content[0].tool_use_id: expected str, got int",
        ),
        (
            {**ASK, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
            "messages[0].content[0].input: required, but missing",
        ),
        ({**ASK, "max_tokens": 0}, "max_tokens: expected int >= 1"),
        ({**ASK, "max_tokens": 2**64}, "max_tokens: expected int <= 9223372036854775807"),
        ({**ASK, "stop_sequences": ["a", ""]}, "stop_sequences[1]: expected str of length >= 1"),
        (b'{"model":"m","temperature":-Infinity}', "not valid JSON"),
        ({**ASK, "max_tokens": "many"}, "max_tokens: expected int"),
        ({**ASK, "temperature": -1}, "temperature: expected float >= 0"),
        ({**ASK, "tools": [{"name": "read"}]}, "tools[0]: a tool of the client's own needs a name and an input_schema"),
        ({**ASK, "tools": [{"input_schema": {}}]}, "tools[0]: a tool of the client's own needs a name"),
        ({**ASK, "tools": [{"name": "read", "input_schema": []}]}, "tools[0].input_schema: expected object"),
        ({**ASK, "tool_choice": {"type": "tool"}}, "tool_choice.name: required"),
        ({**ASK, "tool_choice": {"type": "some"}}, "tool_choice.type: invalid enum value 'some'; known: auto, any"),
        ({**ASK, "thinking": {"type": "hard"}}, "thinking.type: invalid enum value 'hard'; known: enabled"),
        ({**ASK, "system": [{"type": "image"}]}, "system[0].type: invalid value 'image'; known: text"),
    ],
)
def test_a_malformed_body_is_refused_with_the_path_of_its_fault(body: Any, complaint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(body)
    assert complaint in caught.value.message


# --- requests ---


def test_tool_results_become_messages_where_they_stand() -> None:
    content = [
        {"type": "text", "text": "first"},
        {"type": "tool_result", "tool_use_id": "callA1", "content": "one", "is_error": True},
        {
            "type": "tool_result",
            "tool_use_id": "callB2",
            "content": [
                {"type": "text", "text": "two"},
                {"type": "text", "text": "three"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
            ],
        },
        {"type": "tool_result", "tool_use_id": "callC3"},
        {"type": "text", "text": "last", "cache_control": {"type": "ephemeral"}},
    ]
    messages = parsed({**ASK, "messages": [{"role": "user", "content": content}]}).messages
    assert messages == (
        Message("user", (Text("first"),)),
        Message("tool", (Text("one"),), call_id="callA1", is_error=True),
        Message("tool", (Text("two"), Text("three"), Image("image/png", "iVBO")), call_id="callB2"),
        Message("tool", call_id="callC3"),
        Message("user", (Text("last"),)),
    )
    assert messages[2].text == "two\nthree"


def test_a_user_message_is_the_same_as_string_and_as_blocks() -> None:
    blocks = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": ""}]
    assert parsed({**ASK, "messages": [{"role": "user", "content": blocks}]}).messages == parsed(ASK).messages


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_user_message_stays_a_message(content: Any) -> None:
    assert parsed({**ASK, "messages": [{"role": "user", "content": content}]}).messages == (Message("user"),)


def test_an_assistant_message_remembers_a_foreign_form() -> None:
    messages = [
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ]
    string, blocks = parsed({**ASK, "messages": messages}).messages
    assert (string.form, blocks.form) == ("string", "")
    assert string.parts == blocks.parts == (Text("x"),)


def test_system_text_stands_first_or_where_it_was_said() -> None:
    body = {
        **ASK,
        "system": "top",
        "messages": [USER, {"role": "system", "content": [{"type": "text", "text": "mid"}]}],
    }
    assert [(message.role, message.text) for message in parsed(body).messages] == [
        ("system", "top"),
        ("user", "hi"),
        ("system", "mid"),
    ]


def test_the_attribution_block_is_removed_and_noted() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.328; cch=00000;"
    body = {**ASK, "system": [{"type": "text", "text": header}, {"type": "text", "text": "You are"}]}
    request = parsed(body)
    assert request.messages[0] == Message("system", (Text("You are"),))
    assert request.notes == (Note("attribution_removed", header),)
    assert parsed({**ASK, "system": [{"type": "text", "text": header}]}).messages == parsed(ASK).messages
    assert parsed({**ASK, "system": f"{header}\n\nYou are"}).messages == request.messages
    inside = parsed({**ASK, "messages": [{"role": "system", "content": body["system"]}, USER]})
    assert (inside.messages, inside.notes) == (request.messages, request.notes)


def test_tools_keep_their_schema_and_server_tools_are_dropped_with_a_note() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    request = parsed(
        {
            **ASK,
            "tools": [
                {"name": "read", "description": "reads", "input_schema": schema, "defer_loading": True},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                {"type": "custom", "name": "bare", "input_schema": {}},
            ],
        }
    )
    assert request.tools == (Tool("read", "reads", schema), Tool("bare"))
    assert list(request.tools[0].parameters["properties"]) == ["z", "a"]
    assert request.notes == (Note("server_tool_dropped", "web_search (web_search_20250305)"),)


def seen(*blocks: Any) -> tuple[Part, ...]:
    """What blocks are to a model: the same in a user message and in a tool result."""
    result = {"type": "tool_result", "tool_use_id": "callA1", "content": list(blocks)}
    user, tool = parsed({**ASK, "messages": [{"role": "user", "content": [*blocks, result]}]}).messages
    assert user.parts == tool.parts
    return user.parts


def test_a_document_of_text_is_text_under_its_title() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "one\ntwo"}
    named = {"type": "document", "source": source, "title": "notes.txt", "context": "from Ada", "citations": {}}
    assert seen(named) == (Text("notes.txt\n\nfrom Ada\n\none\ntwo"),)
    assert seen({"type": "document", "source": source, "title": None}) == (Text("one\ntwo"),)
    inline = {"type": "base64", "media_type": "text/markdown", "data": "aGk="}
    assert seen({"type": "document", "source": inline, "title": "a.md"}) == (Text("a.md\n\nhi"),)


def test_a_document_of_blocks_is_its_blocks_and_any_other_stays_a_document() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    blocks = {"type": "content", "content": [{"type": "text", "text": "a"}, image]}
    assert seen({"type": "document", "source": blocks, "title": "t"}) == (
        Text("t"),
        Text("a"),
        Image("image/png", "iVBO"),
    )
    assert seen({"type": "document", "source": {"type": "content", "content": "a"}}) == (Text("a"),)
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    document = {"type": "document", "source": pdf, "title": "a.pdf", "context": "c"}
    assert seen(document) == (Text("c"), Document("application/pdf", "JVBE", "a.pdf"))
    link = {"type": "url", "url": "https://host/a.pdf"}
    assert seen({"type": "document", "source": link}) == (Document("", "https://host/a.pdf"),)


def test_search_results_and_tool_references_are_text() -> None:
    content = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]
    found = {"type": "search_result", "source": "https://host", "title": "Title", "content": content}
    assert seen(found) == (Text("Title\nhttps://host\n\nfirst\n\nsecond"),)
    assert seen({"type": "tool_reference", "tool_name": "read"}) == (Text("read"),)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": [{"type": "web_search_result"}]},
        {"type": "mcp_tool_use", "id": "m1", "name": "x", "server_name": "y", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "content": "x"},
        {"type": "container_upload", "file_id": "f"},
    ],
    ids=lambda block: block["type"],
)
def test_blocks_of_tools_at_the_provider_are_left_out_with_a_note(role: str, block: Any) -> None:
    body = {**ASK, "messages": [USER, {"role": role, "content": [block, {"type": "text", "text": "x"}]}]}
    request = parsed(body)
    assert request.messages[1].parts == (Text("x"),)
    assert request.notes == (Note("server_block_dropped", f"messages[1].content[0]: {block['type']}"),)


def test_servers_of_tools_at_the_provider_are_left_out_with_a_note() -> None:
    request = parsed(
        {**ASK, "mcp_servers": [{"type": "url", "name": "y", "url": "u", "authorization_token": "secret"}]}
    )
    assert request.notes == (Note("server_tool_dropped", "y (mcp server)"),)


def test_redacted_thinking_is_left_out_with_a_note() -> None:
    content = [{"type": "redacted_thinking", "data": "opaque"}, {"type": "text", "text": "x"}]
    request = parsed({**ASK, "messages": [USER, {"role": "assistant", "content": content}]})
    assert request.messages[1].parts == (Text("x"),)
    assert request.notes == (Note("redacted_thinking", "messages[1].content[0] left out"),)


def test_thinking_keeps_an_empty_signature_and_a_signature_without_text() -> None:
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": ""},
        {"type": "thinking", "thinking": "", "signature": "s"},
    ]
    assert said(*blocks).parts == (Thinking("t"), Thinking("", "s"))


def test_tool_input_becomes_compact_json_in_its_own_order() -> None:
    raw = b'{"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b",'
    raw += b'"input": {"z": 1.0, "a": [1, 123456789012345678901234567890], "e": "\\u00e9"}}]}]}'
    assert parsed(raw).messages[0].calls[0].arguments == '{"z":1.0,"a":[1,123456789012345678901234567890],"e":"é"}'


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"INVALID_JSON": '{"path": "a'}, '{"path": "a'),
        ({"INVALID_JSON": ""}, ""),
        ({"INVALID_JSON": "{}"}, '{"INVALID_JSON":"{}"}'),
        ({"INVALID_JSON": 5}, '{"INVALID_JSON":5}'),
        ({"__unparsedToolInput": {"raw": "{"}}, '{"__unparsedToolInput":{"raw":"{"}}'),
        ([1], "[1]"),
        ("text", '"text"'),
        (None, "null"),
    ],
)
def test_tool_input_may_be_anything_a_client_echoes(given: Any, arguments: str) -> None:
    assert said({"type": "tool_use", "id": "a", "name": "b", "input": given}).calls[0].arguments == arguments


def test_sampling_wishes_are_recorded() -> None:
    wishes = parsed(
        {
            **ASK,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop_sequences": ["END"],
        }
    ).wishes
    assert (wishes.max_tokens, wishes.temperature, wishes.top_p, wishes.top_k) == (100, 0.5, 0.9, 40)
    assert wishes.stop == ("END",)


@pytest.mark.parametrize(("apart", "wish"), [(True, False), (False, True), (None, None)])
def test_calls_in_parallel_are_a_wish(apart: bool | None, wish: bool | None) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": apart}
    assert parsed({**ASK, "tool_choice": choice}).wishes.parallel_calls is wish


def test_an_effort_is_a_switch_and_a_user_id_is_metadata() -> None:
    body = {**ASK, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "metadata": {"user_id": "u"}}
    assert parsed(body).switches == Switches(None, "high")
    assert parsed(body).metadata == {"user_id": "u"}


@pytest.mark.parametrize(
    ("switch", "thinking"),
    [({"type": "enabled", "budget_tokens": 1024}, True), ({"type": "disabled"}, False), ({"type": "adaptive"}, None)],
)
def test_thinking_is_switched_only_where_the_request_says_so(switch: Any, thinking: bool | None) -> None:
    assert parsed({**ASK, "thinking": switch}).switches.thinking is thinking
    assert parsed(ASK).switches.thinking is None


def test_an_output_schema_is_a_response_schema() -> None:
    config = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert parsed({**ASK, "output_config": config}).response_schema == {"type": "object"}
    assert parsed({**ASK, "output_format": config["format"]}).response_schema == {"type": "object"}
    assert parsed({**ASK, "output_config": {"effort": "low"}}).response_schema is None


def test_unknown_fields_are_accepted() -> None:
    known = parsed(ASK)
    noisy = {
        **ASK,
        "betas": ["b"],
        "metadata": {"user_id": None, "x": 1},
        "container": "c",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        ],
        "context_management": {"edits": []},
        "service_tier": "x",
    }
    assert parsed(noisy) == known


def test_credentials_never_stay_with_a_request(claude: anthropic.Anthropic, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    claude.messages.create(**ASK, extra_headers={"X-Claude-Code-Session-Id": "s1", "Authorization": "Bearer secret"})
    headers = canned.requests[0].headers
    assert headers["x-claude-code-session-id"] == "s1"
    assert headers["x-stainless-retry-count"] == "0"
    assert "secret" not in str(headers)
    assert parsed(ASK, {"x-auth-token": "a", "cookie": "b", "x-goog-api-key": "c", "accept": "d"}).headers == {}


def test_half_a_surrogate_pair_is_mended_and_noted() -> None:
    raw = (
        rb'{"model":"m","messages":[{"role":"user","content":"\ud83d, low \ude00, whole \ud83d\ude00, text \\ud83d"}]}'
    )
    request = parsed(raw)
    assert request.messages[0].text == "\ufffd, low \ufffd, whole 😀, text \\ud83d"
    assert [note.what for note in request.notes] == ["lone_surrogate"]


def test_tokens_are_counted_without_max_tokens_and_models_are_listed(claude: anthropic.Anthropic, canned: Any) -> None:
    assert (
        claude.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "hi"}]).input_tokens == 1234
    )
    models = claude.models.list().data
    assert [(model.id, model.max_input_tokens) for model in models] == [("policy", 32768), ("draft", 32768)]
    assert json.loads(Anthropic().models([], 1))["data"] == []
