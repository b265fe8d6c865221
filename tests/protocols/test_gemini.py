"""The official SDK (google-genai) against a server that answers with canned replies, and what parsing decides."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from google import genai
from google.genai import errors, types
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
    Text,
    Thinking,
    TokenLogprob,
    Tool,
    ToolCall,
    Usage,
)
from bridle.protocols.gemini import Gemini
from bridle.protocols.gemini_wire import sealed
from bridle.sessions.echo import classify

USER = {"role": "user", "parts": [{"text": "hi"}]}
ASK: dict[str, Any] = {"contents": [USER]}
SIGNATURE = "sigA1"
READ = ToolCall("callA1", "read", '{"path":"a.py"}')
LIST = ToolCall("callB2", "list", "{}")
USAGE = Usage(100, 20, 60, 5)
THOUGHTS = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
WHOLE = "/v1beta/models/policy:generateContent"
STREAMED = "/v1beta/models/policy:streamGenerateContent?alt=sse"
JAVASCRIPT_EVENT = re.compile(r"\s*data: ([^\n\r\u2028\u2029]*)(?:\n\n|\r\r|\r\n\r\n)")
"""How Google's JavaScript client takes an event from the front of what it has read."""


def parsed(body: Any, headers: dict[str, str] | None = None, target: str = WHOLE) -> ModelRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Gemini().parse(raw, headers or {}, target)


def reply(*parts: Part, finish_reason: FinishReason = "stop", usage: Usage = USAGE, **more: Any) -> Reply:
    return Reply("turnA1", "policy", Message("assistant", parts), finish_reason, usage, **more)


@pytest.fixture(scope="session")
def gemini(server: Any) -> Iterator[genai.Client]:
    with genai.Client(api_key="secret", http_options=types.HttpOptions(base_url=server.url)) as client:
        yield client


def asked(client: genai.Client, **config: Any) -> types.GenerateContentResponse:
    given = types.GenerateContentConfig(thinking_config=THOUGHTS.thinking_config, **config)
    return client.models.generate_content(model="policy", contents="hi", config=given)


def streamed(client: genai.Client) -> list[types.GenerateContentResponse]:
    return list(client.models.generate_content_stream(model="policy", contents="hi", config=THOUGHTS))


def contents(*answers: types.GenerateContentResponse) -> list[types.Content]:
    found = [answer.candidates[0].content for answer in answers if answer.candidates]
    return [content for content in found if content is not None]


def echo(client: genai.Client, canned: Any, *answers: types.GenerateContentResponse) -> Message:
    """The answer as it is parsed when a client sends it back, chunk by chunk as it came."""
    history: list[Any] = [types.UserContent("hi"), *contents(*answers)]
    client.models.generate_content(model="policy", contents=history, config=THOUGHTS)
    message: Message = canned.requests[-1].messages[1]
    return message


# --- answers ---


@pytest.mark.parametrize(
    "parts",
    [
        (Text("Hello"),),
        (Thinking("hm", SIGNATURE), Text("Hello")),
        (Thinking("hm", SIGNATURE), Text("Hello"), READ, LIST),
        (Thinking("hm", SIGNATURE), READ),
        (READ, LIST),
        (Text("a"), READ, Text("b")),
        (Text("sep \u2028 \u2029 arated"),),
        (ToolCall("callA1", "read", '{"nested":{"z":[1,{"é":null}]},"a":"\u2028"}'),),
    ],
    ids=["text", "thinking", "everything", "think-call", "calls", "text-behind", "separators", "nested"],
)
def test_streamed_and_plain_answers_come_back_as_what_was_said(
    gemini: genai.Client, canned: Any, parts: tuple[Part, ...]
) -> None:
    canned.answers(reply(*parts))
    assert echo(gemini, canned, asked(gemini)) == Message("assistant", parts)
    assert echo(gemini, canned, *streamed(gemini)) == Message("assistant", parts, form="list")


@pytest.mark.parametrize(
    ("finish_reason", "told"),
    [("stop", "STOP"), ("tool_calls", "STOP"), ("length", "MAX_TOKENS"), ("abort", "MAX_TOKENS")],
)
def test_finish_reasons_are_the_protocols_own(
    gemini: genai.Client, canned: Any, finish_reason: FinishReason, told: str
) -> None:
    canned.answers(reply(Text("x"), finish_reason=finish_reason))
    for answer in (asked(gemini), streamed(gemini)[-1]):
        assert answer.candidates is not None
        assert answer.candidates[0].finish_reason == told


def test_usage_counts_thoughts_apart_and_the_prompt_is_known_from_the_first_chunk(
    gemini: genai.Client, canned: Any
) -> None:
    canned.answers(reply(Text("x")))
    chunks = streamed(gemini)
    first = next(chunk.usage_metadata for chunk in chunks if chunk.usage_metadata)
    assert (first.prompt_token_count, first.cached_content_token_count) == (100, 60)
    for usage in (chunks[-1].usage_metadata, asked(gemini).usage_metadata):
        assert usage is not None
        assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (15, 5, 120)
        assert (usage.prompt_token_count, usage.cached_content_token_count) == (100, 60)


def test_thoughts_are_sent_only_where_they_were_asked_for(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Thinking("hm", SIGNATURE), Text("Hello")))
    plain = gemini.models.generate_content(model="policy", contents="hi")
    chunks = list(gemini.models.generate_content_stream(model="policy", contents="hi"))
    for answers in ([plain], chunks):
        texts = [(part.text, part.thought) for content in contents(*answers) for part in content.parts or []]
        assert "".join(text or "" for text, _ in texts) == "Hello"
        assert not any(thought for _, thought in texts)
        assert echo(gemini, canned, *answers).parts == (Thinking("", SIGNATURE), Text("Hello"))


def test_a_reply_of_thoughts_alone_still_says_which_turn_it_is(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Thinking("hm", SIGNATURE)))
    assert echo(gemini, canned, *streamed(gemini)).parts == (Thinking("hm", SIGNATURE),)
    hidden = gemini.models.generate_content(model="policy", contents="hi")
    assert echo(gemini, canned, hidden).parts == (Thinking("", SIGNATURE),)


def test_a_reply_without_thinking_is_signed_with_the_turns_own_identity(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Text("Hello"), signature=SIGNATURE))
    assert echo(gemini, canned, asked(gemini)).signatures == (SIGNATURE,)
    assert echo(gemini, canned, *streamed(gemini)).signatures == (SIGNATURE,)


def test_candidates_are_sibling_draws(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Text("one")), reply(Text("two"), READ))
    whole = asked(gemini, candidate_count=2)
    assert canned.requests[-1].wishes.n == 2
    assert whole.candidates is not None
    assert [one.content.parts[0].text for one in whole.candidates if one.content and one.content.parts] == [
        "one",
        "two",
    ]
    assert whole.usage_metadata is not None
    assert (whole.usage_metadata.prompt_token_count, whole.usage_metadata.candidates_token_count) == (100, 30)
    config = types.GenerateContentConfig(candidate_count=2)
    texts = {0: "", 1: ""}
    for chunk in gemini.models.generate_content_stream(model="policy", contents="hi", config=config):
        for candidate in chunk.candidates or []:
            assert candidate.content is not None
            texts[candidate.index or 0] += "".join(part.text or "" for part in candidate.content.parts or [])
    assert texts == {0: "one", 1: "two"}


def test_logprobs_are_given_where_there_are_some(gemini: genai.Client, canned: Any) -> None:
    logprobs = (TokenLogprob("He", -0.5, b"He"), TokenLogprob("llo", -1.5, b"llo"))
    canned.answers(reply(Text("Hello"), logprobs=logprobs))
    for answer in (asked(gemini, response_logprobs=True), streamed(gemini)[-1]):
        assert answer.candidates is not None
        candidate = answer.candidates[0]
        assert candidate.avg_logprobs == -1.0
        assert candidate.logprobs_result is not None
        chosen = candidate.logprobs_result.chosen_candidates or []
        assert [(one.token, one.log_probability) for one in chosen] == [("He", -0.5), ("llo", -1.5)]
    assert canned.requests[0].wishes.logprobs


def test_a_chat_session_keeps_a_streamed_turn_whole(gemini: genai.Client, canned: Any) -> None:
    """The SDK drops a turn from its history for a single chunk without parts, keep-alives among them."""
    chat = gemini.chats.create(model="policy", config=THOUGHTS)
    canned.answers(reply(Thinking("hm", SIGNATURE), Text("Hello there"), READ))
    list(chat.send_message_stream("hi"))
    canned.answers(reply(Text("done")))
    chat.send_message(types.Part.from_function_response(name="read", response={"output": "text"}))
    list(chat.send_message_stream("more"))
    messages = canned.requests[-1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[1].parts == (Thinking("hm", SIGNATURE), Text("Hello there"), READ)
    assert (messages[2].call_id, messages[2].text) == ("callA1", "text")


# --- the stream ---


def chunks(data: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]


def test_every_event_is_one_googles_javascript_client_takes_in() -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    spaced = ToolCall("callA1", "read", '{"a":\n "\u2028",\r\n "b": 1}')
    data = stream.ping() + stream.start(Usage(1, 0)) + stream.text("x \u2028 y") + stream.ping()
    left = (data + stream.finish([reply(Text("x \u2028 y"), spaced)])).decode()
    taken = []
    while found := JAVASCRIPT_EVENT.match(left):
        taken.append(json.loads(found[1]))
        left = left[found.end() :]
    assert left == ""
    assert len(taken) == 5
    assert all(chunk["candidates"][0]["content"]["parts"] for chunk in taken)


def test_no_call_and_no_end_is_sent_before_the_turn_is_finished() -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    early = stream.start(Usage(1, 0)) + stream.thinking("a") + stream.text("b") + stream.ping()
    assert b"functionCall" not in early
    assert b"finishReason" not in early
    (last,) = chunks(stream.finish([reply(Thinking("a", SIGNATURE), Text("b"), READ)]))
    assert last["candidates"][0]["finishReason"] == "STOP"
    assert [list(part) for part in last["candidates"][0]["content"]["parts"]] == [["functionCall", "thoughtSignature"]]


def test_the_first_text_is_signed_because_gemini_cli_keeps_the_fields_of_the_first() -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    first, second = (chunks(stream.text(text))[0]["candidates"][0]["content"]["parts"][0] for text in ("a", "b"))
    assert (first["thoughtSignature"], "thoughtSignature" in second) == (sealed(SIGNATURE), False)


def test_a_json_array_is_valid_at_its_end_and_element_by_element_before() -> None:
    request = parsed(ASK, target="/v1beta/models/policy:streamGenerateContent")
    assert (request.stream, request.framing) == (True, "array")
    stream = Gemini().stream(request, "t", "")
    assert stream.content_type.startswith("application/json")
    pieces = [stream.ping(), stream.start(Usage(1, 0)), stream.ping(), stream.text("Hel"), stream.ping()]
    assert len(json.loads(b"".join(pieces) + b"]")) == 2
    pieces += [stream.text("lo"), stream.finish([reply(Text("Hello"), READ)])]
    whole = json.loads(b"".join(pieces))
    assert [part for chunk in whole for part in chunk["candidates"][0]["content"]["parts"] if part.get("text")] == [
        {"text": "Hel"},
        {"text": "lo"},
    ]
    assert whole[-1]["candidates"][0]["finishReason"] == "STOP"
    broken = Gemini().stream(request, "t", "")
    ended = json.loads(broken.start(Usage(1, 0)) + broken.error(InfrastructureError("gone")))
    assert ended[-1]["error"]["status"] == "UNAVAILABLE"


def test_events_are_what_alt_sse_asks_for() -> None:
    query = "/v1beta/models/policy:streamGenerateContent?key=k&alt=sse"
    assert parsed(ASK, target=query).framing == parsed(ASK, target=STREAMED).framing == "sse"
    assert Gemini().stream(parsed(ASK, target=query), "t").content_type.startswith("text/event-stream")
    assert not parsed(ASK).stream


def test_finish_sends_what_streaming_left_out() -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    stream.text("Hel")
    (last,) = chunks(stream.finish([reply(Text("Hello"), Text("more"))]))
    assert last["candidates"][0]["content"]["parts"] == [{"text": "lo"}, {"text": "\nmore"}]


@pytest.mark.parametrize(
    ("finished", "complaint"),
    [
        ((Text("Help"),), "not the beginning"),
        ((Thinking("Hello"),), "streamed as Text"),
        ((), "the reply has None there"),
        ((Text("Hello"), Thinking("t", "another")), "signed"),
    ],
)
def test_a_reply_that_contradicts_what_was_streamed_is_refused(finished: tuple[Part, ...], complaint: str) -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    stream.text("Hello")
    with pytest.raises(ValueError, match=complaint):
        stream.finish([reply(*finished)])


def test_a_block_closed_by_the_next_one_cannot_grow() -> None:
    stream = Gemini().stream(parsed(ASK, target=STREAMED), "t", SIGNATURE)
    stream.thinking("a")
    stream.text("b")
    with pytest.raises(ValueError, match="closed before"):
        stream.finish([reply(Thinking("a more", SIGNATURE), Text("b"))])


@pytest.mark.parametrize("depth", [100, *range(900, 1000, 5), 3000])
def test_arguments_nested_deeper_than_a_decoder_goes_are_given_as_text(depth: int) -> None:
    deep = ToolCall("callA1", "read", '{"a":' * depth + "1" + "}" * depth)
    whole = Gemini().encode(parsed(ASK), [reply(deep)])
    events = Gemini().stream(parsed(ASK, target=STREAMED), "t").finish([reply(deep)])
    if depth < 850:
        assert deep.arguments.encode() in whole
        assert deep.arguments.encode() in events
    if depth == 3000:
        part = json.loads(whole)["candidates"][0]["content"]["parts"][0]
        assert part["functionCall"]["args"] == {"INVALID_JSON": deep.arguments}


def test_arguments_that_are_no_object_come_back_as_they_were(gemini: genai.Client, canned: Any) -> None:
    broken = ToolCall("callA1", "read", '{"path": "a')
    canned.answers(reply(broken))
    answer = asked(gemini)
    assert answer.function_calls is not None
    assert answer.function_calls[0].args == {"INVALID_JSON": '{"path": "a'}
    assert echo(gemini, canned, answer).calls == (broken,)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(min_size=1, max_size=20)
arguments = st.builds(
    lambda value, compact: json.dumps(
        value, separators=(",", ":") if compact else (" , ", ":\n  "), ensure_ascii=not compact
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
    for number, text in enumerate(draw(st.lists(arguments, max_size=3))):
        parts.append(ToolCall(f"call{number}", draw(texts), text))
        if draw(st.booleans()):
            parts.append(Text(draw(texts)))
    letters = [(0, type(part), letter) for part in head for letter in part.text]
    return reply(*parts, signature=SIGNATURE), letters[: draw(st.integers(0, len(letters)))]


@settings(max_examples=20, deadline=None)
@given(replies())
def test_any_reply_survives_streaming_and_the_echo(server: Any, gemini: genai.Client, planned: Any) -> None:
    answer, deltas = planned
    server.canned.answers(answer, deltas=deltas)
    plain, stream = [asked(gemini)], streamed(gemini)
    for answers in (plain, stream):
        came_back = echo(gemini, server.canned, *answers)
        assert classify(answer.message, came_back) in ("exact", "form", "args_rewritten")
        assert came_back.signatures
        assert came_back.calls == tuple(_compact(call) for call in answer.message.calls)


def _compact(call: ToolCall) -> ToolCall:
    return ToolCall(call.id, call.name, msgspec.json.encode(json.loads(call.arguments)).decode())


# --- errors ---


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (BadRequest("no"), 400, "INVALID_ARGUMENT"),
        (AccessDenied("no"), 403, "PERMISSION_DENIED"),
        (LimitReached("no"), 403, "PERMISSION_DENIED"),
        (NotFound("no"), 404, "NOT_FOUND"),
        (BodyTooLarge("no"), 413, "INVALID_ARGUMENT"),
        (EngineUnfit("no"), 500, "INTERNAL"),
        (InfrastructureError("no"), 503, "UNAVAILABLE"),
    ],
)
def test_refusals_raise_the_sdks_own_error(
    gemini: genai.Client, canned: Any, error: BridleError, code: int, status: str
) -> None:
    canned.refusal = error
    with pytest.raises(errors.ClientError if code < 500 else errors.ServerError) as caught:
        asked(gemini)
    assert (caught.value.code, caught.value.status, caught.value.message) == (code, status, "no")
    assert canned.hits == 1


def test_a_pause_is_told_as_the_status_google_knows() -> None:
    told = json.loads(Gemini().error(Paused("no")))["error"]
    assert (told["code"], told["status"], told["message"]) == (503, "UNAVAILABLE", "no")


def test_an_overlong_prompt_is_told_in_googles_words() -> None:
    told = json.loads(Gemini().error(PromptTooLong(5000, 4096)))["error"]
    assert told["message"] == "The input token count (5000) exceeds the maximum number of tokens allowed (4096)."
    assert (told["code"], told["status"]) == (400, "INVALID_ARGUMENT")


def test_an_error_in_mid_stream_reaches_the_client(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Text("Hello")))
    canned.broken_stream = InfrastructureError("the engine went away")
    with pytest.raises(errors.ServerError, match="the engine went away") as caught:
        streamed(gemini)
    assert caught.value.code == 503
    sent = Gemini().stream(parsed(ASK, target=STREAMED), "t").error(canned.broken_stream)
    assert "error" in json.loads(sent), "by itself it is JSON, which is what the JavaScript client looks for"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b'{"contents": [{"role": "\xff"}]}', "not valid JSON"),
        (b"[]", "body: expected object, got array"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"top_p":' * 800 + b"1" + b"}" * 800, "nested too deeply"),
        ({}, "contents: required"),
        ({"contents": []}, "contents: required"),
        ({"contents": "hi"}, "contents: expected array | null, got str"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents[0].role: invalid enum value 'system'; known: user"),
        ({"contents": [{"parts": [{"text": 5}]}]}, "contents[0].parts[0].text: expected str | null, got int"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png"}}]}]},
            "contents[0].parts[0].inlineData.data: required",
        ),
        (
            {"contents": [{"parts": [{"functionCall": {"name": "read"}}]}]},
            'contents[0].parts[0].functionCall: only a content with role "model"',
        ),
        (
            {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "read", "args": []}}]}]},
            "contents[0].parts[0].functionCall.args: expected object | null, got array",
        ),
        (
            {"contents": [USER, {"parts": [{"functionResponse": {"name": "read", "response": {}}}]}]},
            "contents[1].parts[0].functionResponse: no call of 'read' waits for it; calls of the turn before",
        ),
        ({**ASK, "cachedContent": "cachedContents/1"}, "cachedContent: contents are not kept here"),
        ({**ASK, "generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens: expected int >= 1"),
        ({**ASK, "generation_config": {"top_p": 2}}, "generationConfig.topP: expected float <= 1"),
        ({**ASK, "tools": [{"functionDeclarations": [{"name": ""}]}]}, "tools[0].functionDeclarations[0].name"),
        (
            {**ASK, "toolConfig": {"functionCallingConfig": {"mode": "SOME"}}},
            "toolConfig.functionCallingConfig.mode: invalid enum value 'SOME'; known: AUTO, ANY",
        ),
    ],
)
def test_a_malformed_body_is_refused_with_the_path_of_its_fault(body: Any, complaint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(body)
    assert complaint in caught.value.message


def test_a_call_that_names_no_model_is_refused_and_a_body_may_name_it() -> None:
    with pytest.raises(BadRequest, match="model: required"):
        parsed(ASK, target="")
    assert parsed({**ASK, "model": "models/policy"}, target="").model == "policy"
    assert parsed({**ASK, "model": "models/another"}).model == "policy"


# --- requests ---


def said(*parts: Any, **more: Any) -> Message:
    message = parsed({"contents": [USER, {"role": "model", "parts": list(parts)}], **more}).messages[1]
    assert message.role == "assistant"
    return message


def test_keys_are_read_in_either_spelling_and_those_of_others_are_left_alone() -> None:
    own = {"mime_type": 1, "inlineData": {"file_uri": 2}}
    camel = {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": own}, "thoughtSignature": "x"}]},
            {"parts": [{"functionResponse": {"name": "f", "response": own}}]},
            {"parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBO"}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": own}]}],
        "generationConfig": {"topK": 3, "thinkingConfig": {"includeThoughts": True}, "responseJsonSchema": own},
    }
    snake = {
        "system_instruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": own}, "thought_signature": "x"}]},
            {"parts": [{"function_response": {"name": "f", "response": own}}]},
            {"parts": [{"inline_data": {"mime_type": "image/png", "data": "iVBO"}}]},
        ],
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": own}]}],
        "generation_config": {"top_k": 3, "thinking_config": {"include_thoughts": True}, "response_json_schema": own},
    }
    request = parsed(camel)
    assert parsed(snake) == request
    assert request.tools[0].parameters == request.response_schema == own
    assert json.loads(request.messages[1].calls[0].arguments) == own
    assert json.loads(request.messages[2].text) == own
    assert request.wishes.top_k == 3


@pytest.mark.parametrize(
    "instruction",
    ["be brief", {"parts": [{"text": "be brief"}]}, {"role": "user", "parts": [{"text": "be brief"}]}],
    ids=["string", "content", "with a role"],
)
def test_a_system_instruction_stands_first_in_any_form(instruction: Any) -> None:
    messages = parsed({**ASK, "systemInstruction": instruction}).messages
    assert messages == (Message("system", (Text("be brief"),)), Message("user", (Text("hi"),)))


def test_a_missing_role_and_the_function_role_are_the_users_side() -> None:
    call = {"functionCall": {"name": "read", "id": "a"}}
    answer = {"functionResponse": {"name": "read", "id": "a", "response": {"output": "x"}}}
    body = {
        "contents": [
            {"parts": [{"text": "hi"}]},
            {"role": "model", "parts": [call]},
            {"role": "function", "parts": [answer]},
        ]
    }
    assert [message.role for message in parsed(body).messages] == ["user", "assistant", "tool"]


def results(calls: list[Any], responses: list[Any]) -> list[tuple[str, str]]:
    body = {
        "contents": [
            USER,
            {"role": "model", "parts": [{"functionCall": call} for call in calls]},
            {"role": "user", "parts": [{"functionResponse": response} for response in responses]},
        ]
    }
    return [(message.call_id, message.text) for message in parsed(body).messages if message.role == "tool"]


def given_back(text: str, **fields: Any) -> Any:
    return {"name": "read", "response": {"output": text}, **fields}


def test_responses_find_their_calls_by_id_else_by_name_and_order() -> None:
    read, other = {"name": "read"}, {"name": "other"}
    assert results([read, other, read], [given_back("1"), given_back("2"), given_back("3", name="other")]) == [
        ("unnamed0", "1"),
        ("unnamed2", "2"),
        ("unnamed1", "3"),
    ]
    two = [{"name": "read", "id": "a"}, {"name": "read", "id": "b"}]
    assert results(two, [given_back("b", id="b"), given_back("a")]) == [("b", "b"), ("a", "a")]
    assert results(two, [given_back("a"), given_back("b", id="b")]) == [("a", "a"), ("b", "b")]
    assert results(two, [given_back("x", id="invented1"), given_back("y", id="invented2")]) == [("a", "x"), ("b", "y")]
    assert results([read], [given_back("1", id="read_1723_0")]) == [("unnamed0", "1")]


def test_ids_that_never_came_are_the_same_in_every_request() -> None:
    call = {"role": "model", "parts": [{"functionCall": {"name": "read"}}]}
    answer = {"parts": [{"functionResponse": {"name": "read", "response": {"output": "x"}}}]}
    first = parsed({"contents": [USER, call, answer]}).messages
    second = parsed({"contents": [USER, call, answer, call, answer]}).messages
    assert second[: len(first)] == first
    assert second[3].calls[0].id == second[4].call_id != first[1].calls[0].id


@pytest.mark.parametrize(
    "call",
    [
        {"id": "callA1", "name": "read"},
        {"name": "read"},
        {"id": "read_1723_0", "name": "read"},
    ],
    ids=["as it was", "dropped", "invented"],
)
def test_a_call_is_known_again_whatever_became_of_its_id(call: Any) -> None:
    part = {"functionCall": {**call, "args": {}}, "thoughtSignature": sealed(SIGNATURE, "callA1")}
    answer = {"functionResponse": {"name": "read", "response": {"output": "x"}, "id": call.get("id", "callA1")}}
    body = {"contents": [USER, {"role": "model", "parts": [part]}, {"role": "user", "parts": [answer]}]}
    _, assistant, result = parsed(body).messages
    assert assistant.parts == (Thinking("", SIGNATURE), ToolCall("callA1", "read", "{}"))
    assert result.call_id == "callA1"


@pytest.mark.parametrize("signature", ["skip_thought_signature_validator", "", "Zm9v", "WyJh", "é", "W10", "e30="])
def test_a_signature_that_was_not_made_here_says_nothing(signature: str) -> None:
    part = {"functionCall": {"id": "a", "name": "read"}, "thoughtSignature": signature}
    assert said(part).parts == (ToolCall("a", "read", "{}"),)
    assert said({"text": "x", "thoughtSignature": signature}).parts == (Text("x"),)


def test_what_the_model_said_in_a_row_is_one_message_in_whatever_pieces_it_came() -> None:
    pieces = [
        {"role": "model", "parts": [{"text": ""}]},
        {"role": "model", "parts": [{"text": "th", "thought": True}]},
        {"role": "model", "parts": [{"text": "ought", "thought": True}, {"text": "Hel"}]},
        {"role": "model", "parts": [{"text": "lo"}, {"text": ""}]},
        {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "read"}}]},
    ]
    message = parsed({"contents": [USER, *pieces, USER]}).messages[1]
    assert message.parts == (Thinking("thought"), Text("Hello"), ToolCall("a", "read", "{}"))
    assert message.form == "list"
    assert said({"text": "Hel"}, {"text": "lo"}).form == ""


def test_what_two_turns_said_in_a_row_are_two_messages() -> None:
    """Gemini CLI takes the note between them away."""
    first = [{"text": "Hel", "thoughtSignature": sealed("siga")}, {"text": "lo"}]
    second = {"functionCall": {"name": "read"}, "thoughtSignature": sealed("sigb", "callb")}
    pieces = [{"role": "model", "parts": [part]} for part in (*first, second)]
    answer = {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "x"}}}]}
    one, two, result = parsed({"contents": [USER, *pieces, answer]}).messages[1:]
    assert one.parts == (Thinking("", "siga"), Text("Hello"))
    assert two.parts == (Thinking("", "sigb"), ToolCall("callb", "read", "{}"))
    assert result.call_id == "callb"


def test_results_become_messages_where_they_stand() -> None:
    answers = [
        {"functionResponse": {"id": "a", "name": "read", "response": {"error": "no such file"}}},
        {"text": "between"},
        {"functionResponse": {"id": "b", "name": "read", "response": {"result": [1], "more": None}}},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
    ]
    calls = [{"functionCall": {"id": name, "name": "read"}} for name in "ab"]
    body = {"contents": [USER, {"role": "model", "parts": calls}, {"role": "user", "parts": answers}]}
    assert parsed(body).messages[2:] == (
        Message("tool", (Text("no such file"),), call_id="a", is_error=True),
        Message("user", (Text("between"),)),
        Message("tool", (Text('{"result":[1],"more":null}'),), call_id="b"),
        Message("user", (Image("image/png", "iVBO"),)),
    )


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "x"}, "x"),
        ({"output": {"a": 1}}, '{"a":1}'),
        ({"output": ""}, ""),
        ({}, ""),
        (None, ""),
        ({"output": "x", "exit": 0}, '{"output":"x","exit":0}'),
    ],
)
def test_the_output_of_a_function_is_what_google_calls_it_or_all_of_it(response: Any, text: str) -> None:
    ((_, found),) = results([{"name": "read"}], [{"name": "read", "response": response, "willContinue": False}])
    assert found == text


def test_files_are_images_text_or_documents() -> None:
    blob = b64encode("plain é".encode()).decode()
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": "-_8="}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://a.jpg"}},
        {"inlineData": {"mimeType": "text/plain", "data": blob, "displayName": "a.txt"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBE", "displayName": "a.pdf"}},
        {"fileData": {"fileUri": "https://files/1"}},
    ]
    assert parsed({"contents": [{"parts": parts}]}).messages[0].parts == (
        Image("image/png", "+/8="),
        Image("image/jpeg", "gs://a.jpg"),
        Text("a.txt\n\nplain é"),
        Document("application/pdf", "JVBE", "a.pdf"),
        Document("", "https://files/1"),
    )


def test_a_function_response_may_hold_files(gemini: genai.Client, canned: Any) -> None:
    blob = types.FunctionResponseBlob(mime_type="image/png", data=b"\xfb\xff")
    canned.answers(reply(READ))
    answer = asked(gemini)
    result = types.Part.from_function_response(
        name="read", response={"output": "x"}, parts=[types.FunctionResponsePart(inline_data=blob)]
    )
    history: list[Any] = [types.UserContent("hi"), *contents(answer), types.UserContent(result)]
    gemini.models.generate_content(model="policy", contents=history)
    assert canned.requests[-1].messages[2].parts == (Text("x"), Image("image/png", "+/8="))


def test_what_ran_at_the_provider_is_left_out_with_a_note() -> None:
    ran = [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}, {"newThing": {}}]
    request = parsed({"contents": [USER, {"role": "model", "parts": [*ran, {"text": "x"}]}]})
    assert request.messages[1].parts == (Text("x"),)
    assert [(note.what, note.detail.partition(" ")[0]) for note in request.notes] == [
        ("code_execution_dropped", "contents[1].parts[0]"),
        ("code_execution_dropped", "contents[1].parts[1]"),
        ("part_dropped", "contents[1].parts[2]"),
    ]


def test_functions_keep_their_schema_and_tools_of_the_provider_are_dropped_with_a_note() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    request = parsed(
        {
            **ASK,
            "tools": [
                {"functionDeclarations": [{"name": "f", "description": "d", "parametersJsonSchema": schema}]},
                {"googleSearch": {}, "functionDeclarations": [{"name": "g", "behavior": "BLOCKING"}]},
                {"urlContext": {}, "codeExecution": {}},
            ],
        }
    )
    assert request.tools == (Tool("f", "d", schema), Tool("g"))
    assert list(request.tools[0].parameters["properties"]) == ["z", "a"]
    assert request.notes == tuple(
        Note("server_tool_dropped", where)
        for where in ("tools[1].googleSearch", "tools[2].urlContext", "tools[2].codeExecution")
    )


def test_googles_schema_becomes_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["A", "B"], "format": "enum"},
            "list": {"type": "ARRAY", "items": {"type": "INTEGER", "nullable": True}, "minItems": "1", "max_items": 3},
            "either": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        },
        "required": ["type"],
        "propertyOrdering": ["type", "list"],
    }
    request = parsed({**ASK, "tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]})
    assert request.tools[0].parameters == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["A", "B"], "format": "enum"},
            "list": {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 1, "maxItems": 3},
            "either": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        },
        "required": ["type"],
    }


def test_the_sdks_wishes_are_recorded(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=3,
        stop_sequences=["END"],
        max_output_tokens=100,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        response_mime_type="application/json",
        response_schema={"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
        safety_settings=[types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")],  # type: ignore[arg-type]
        thinking_config=types.ThinkingConfig(thinking_budget=0, thinking_level="LOW"),  # type: ignore[arg-type]
    )
    gemini.models.generate_content(model="policy", contents="hi", config=config)
    request = canned.requests[-1]
    wishes = request.wishes
    assert (wishes.temperature, wishes.top_p, wishes.top_k, wishes.seed) == (0.5, 0.9, 40, 3)
    assert (wishes.stop, wishes.max_tokens, wishes.n, wishes.logprobs) == (("END",), 100, 1, False)
    assert request.response_schema == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert (request.switches.thinking, request.switches.effort) == (False, "low")
    assert request.messages[0].role == "system"
    assert [note.detail for note in request.notes] == ["presence_penalty: 0.1", "frequency_penalty: 0.1"]


@pytest.mark.parametrize(
    ("config", "thinking", "effort"),
    [
        ({}, None, ""),
        ({"thinkingBudget": 0}, False, ""),
        ({"thinkingBudget": -1}, None, ""),
        ({"thinkingBudget": 1024, "includeThoughts": True}, True, ""),
        ({"thinkingLevel": "HIGH"}, None, "high"),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None, ""),
    ],
)
def test_thinking_is_switched_only_where_the_request_says_so(config: Any, thinking: bool | None, effort: str) -> None:
    request = parsed({**ASK, "generationConfig": {"thinkingConfig": config}})
    assert (request.switches.thinking, request.switches.effort) == (thinking, effort)
    assert request.show_thinking == bool(config.get("includeThoughts"))


def test_json_may_be_wanted_with_a_schema_or_without() -> None:
    def wanted(**config: Any) -> Any:
        return parsed({**ASK, "generationConfig": config}).response_schema

    assert wanted() is wanted(responseMimeType="text/plain") is None
    assert wanted(responseMimeType="application/json") == {}
    assert wanted(responseMimeType="application/json", responseJsonSchema={"type": "array"}) == {"type": "array"}


def test_labels_are_metadata_and_unknown_fields_are_accepted() -> None:
    noisy = {**ASK, "safetySettings": [{"category": 1}], "serviceTier": "x", "generationConfig": {"speechConfig": {}}}
    assert parsed(noisy) == parsed(ASK)
    assert parsed({**ASK, "labels": {"run": "1"}}).metadata == {"run": "1"}


def test_null_is_as_good_as_absent() -> None:
    part = {"text": "hi", "thought": None, "functionCall": None, "thoughtSignature": None}
    body = {"contents": [{"role": None, "parts": [part]}], "tools": None, "generationConfig": None, "labels": None}
    assert parsed(body) == parsed(ASK)


def test_credentials_never_stay_with_a_request(gemini: genai.Client, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    options = types.HttpOptions(headers={"X-Session": "s1"})
    config = types.GenerateContentConfig(http_options=options)
    gemini.models.generate_content(model="policy", contents="hi", config=config)
    headers = canned.requests[-1].headers
    assert headers["x-session"] == "s1"
    assert "secret" not in str(headers)


def test_half_a_surrogate_pair_is_mended_and_noted_in_either_spelling() -> None:
    for key in ("systemInstruction", "system_instruction"):
        raw = b'{"%s":"a","contents":[{"parts":[{"text":"\\ud83d, whole \\ud83d\\ude00"}]}]}' % key.encode()
        request = parsed(raw)
        assert request.messages[1].text == "\ufffd, whole 😀"
        assert [note.what for note in request.notes] == ["lone_surrogate"]


def test_tokens_are_counted_and_models_are_listed(gemini: genai.Client, canned: Any) -> None:
    assert gemini.models.count_tokens(model="policy", contents="hi").total_tokens == 1234
    assert canned.requests[-1].model == "policy"
    models = list(gemini.models.list(config={"query_base": True}))
    assert [(model.name, model.input_token_limit) for model in models] == [
        ("models/policy", 32768),
        ("models/draft", 32768),
    ]
    assert "countTokens" in (gemini.models.get(model="policy").supported_actions or [])
    whole = {"generateContentRequest": {"model": "models/policy", "systemInstruction": "be brief", **ASK}}
    counted = parsed(whole, target="/v1beta/models/policy:countTokens")
    assert [message.role for message in counted.messages] == ["system", "user"]
    assert not counted.stream


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_the_asynchronous_client_is_answered_alike(server: Any, canned: Any) -> None:
    parts = (Thinking("hm", SIGNATURE), Text("Hello"), READ)
    canned.answers(reply(*parts))
    options = types.HttpOptions(base_url=server.url)
    async with genai.Client(api_key="secret", http_options=options).aio as client:
        stream = await client.models.generate_content_stream(model="policy", contents="hi", config=THOUGHTS)
        chunks = [chunk async for chunk in stream]
        history: list[Any] = [types.UserContent("hi"), *contents(*chunks)]
        await client.models.generate_content(model="policy", contents=history, config=THOUGHTS)
        assert canned.requests[-1].messages[1].parts == parts
        canned.broken_stream = InfrastructureError("the engine went away")
        with pytest.raises(errors.ServerError, match="went away"):
            async for _ in await client.models.generate_content_stream(model="policy", contents="hi"):
                pass
