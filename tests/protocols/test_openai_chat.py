from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from bridle.errors import (
    AccessDenied,
    BadRequest,
    BodyTooLarge,
    BridleError,
    EngineError,
    LimitReached,
    NotFound,
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
    TokenLogprob,
    Tool,
    ToolCall,
    Usage,
)
from bridle.protocols.openai_chat import OpenAIChat

USAGE = Usage(100, 20, 60)
USER = {"role": "user", "content": "hi"}
ASK: Any = {"model": "policy", "messages": [USER]}
READ = ToolCall("callA1", "read", '{"path":  "a.py",\n "é": "\\u00e9"}')
LIST = ToolCall("callB2", "list", "{}")
REPLIES: dict[str, tuple[Part, ...]] = {
    "text": (Text("Hello, wörld 🐎\n"),),
    "thinking": (Thinking("let me see"), Text("Done.")),
    "thinking alone": (Thinking("hm"),),
    "a call": (Text("Reading."), READ),
    "calls alone": (READ, LIST),
    "parallel calls": (Thinking("both"), Text("Reading."), READ, LIST),
    "nothing": (),
}
FLATTENED: dict[str, tuple[Part, ...]] = {
    "interleaved": (Thinking("a"), Text("b"), Thinking("c"), Text("d"), READ, Text("after")),
    "text after calls": (READ, Text("and"), LIST, Text("so")),
    "two texts": (Text("before"), Text("<tool_call>{broken")),
}


def reply(*parts: Part, finish_reason: FinishReason = "stop", usage: Usage = USAGE, **more: Any) -> Reply:
    return Reply("msgA1", "policy", Message("assistant", parts), finish_reason, usage, **more)


def parsed(body: Any, headers: dict[str, str] | None = None) -> ModelRequest:
    return OpenAIChat().parse(body if isinstance(body, bytes) else msgspec.json.encode(body), headers or {})


def assistant(**fields: Any) -> Message:
    return parsed({**ASK, "messages": [{"role": "assistant", **fields}]}).messages[0]


def streamed(chat: openai.OpenAI, **more: Any) -> ChatCompletion:
    with chat.chat.completions.stream(**{**ASK, **more}) as stream:
        return stream.get_final_completion()


def echo(chat: openai.OpenAI, canned: Any, message: ChatCompletionMessage) -> Message:
    """What the SDK's answer becomes when an agent sends it back."""
    chat.chat.completions.create(**{**ASK, "messages": [USER, message]})
    return canned.requests[-1].messages[1]


# --- answers through the official SDK ---


@pytest.mark.parametrize("parts", REPLIES.values(), ids=REPLIES)
def test_streamed_and_plain_answers_are_the_same_and_come_back_as_what_was_said(
    chat: openai.OpenAI, canned: Any, parts: tuple[Part, ...]
) -> None:
    canned.answers(reply(*parts))
    plain, stream = chat.chat.completions.create(**ASK), streamed(chat)
    assert stream.choices[0].message.content == plain.choices[0].message.content
    for completion in (plain, stream):
        assert echo(chat, canned, completion.choices[0].message) == Message("assistant", parts)


@pytest.mark.parametrize("parts", FLATTENED.values(), ids=FLATTENED)
def test_parts_in_an_order_the_protocol_cannot_say_keep_their_text_and_calls(
    chat: openai.OpenAI, canned: Any, parts: tuple[Part, ...]
) -> None:
    canned.answers(reply(*parts))
    plain, stream = chat.chat.completions.create(**ASK), streamed(chat)
    back = echo(chat, canned, plain.choices[0].message)
    assert back == echo(chat, canned, stream.choices[0].message)
    whole = Message("assistant", parts)
    assert (back.thinking, back.text, back.calls, back.form) == (whole.thinking, whole.text, whole.calls, "")


def test_content_is_null_beside_calls_and_empty_alone(chat: openai.OpenAI, canned: Any) -> None:
    for parts, content in (((READ,), None), ((), ""), ((Thinking("t"),), "")):
        canned.answers(reply(*parts))
        assert chat.chat.completions.create(**ASK).choices[0].message.content == content
        assert streamed(chat).choices[0].message.content == content


@pytest.mark.parametrize(
    ("finish_reason", "said"),
    [("stop", "stop"), ("tool_calls", "tool_calls"), ("length", "length"), ("abort", "length")],
)
def test_finish_reasons_are_the_protocols_own(
    chat: openai.OpenAI, canned: Any, finish_reason: FinishReason, said: str
) -> None:
    canned.answers(reply(Text("x"), finish_reason=finish_reason))
    assert chat.chat.completions.create(**ASK).choices[0].finish_reason == said
    chunks = list(chat.chat.completions.create(**ASK, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [said]


def test_usage_is_streamed_only_when_asked_for(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    plain = chat.chat.completions.create(**ASK).usage
    assert plain is not None
    assert (plain.prompt_tokens, plain.completion_tokens, plain.total_tokens) == (100, 20, 120)
    assert plain.prompt_tokens_details is not None
    assert plain.prompt_tokens_details.cached_tokens == 60
    assert streamed(chat, stream_options={"include_usage": True}).usage == plain
    assert streamed(chat).usage is None


def test_sibling_draws_are_streamed_side_by_side(chat: openai.OpenAI, canned: Any) -> None:
    answers = [reply(Text("one")), reply(Thinking("t"), Text("two"), READ)]
    deltas = [(0, Text, "o"), (1, Thinking, "t"), (0, Text, "ne"), (1, Text, "tw")]
    canned.answers(*answers, deltas=deltas)
    plain = chat.chat.completions.create(**ASK, n=2)
    stream = streamed(chat, n=2)
    assert [choice.message.content for choice in stream.choices] == ["one", "two"]
    assert [choice.message.content for choice in plain.choices] == ["one", "two"]
    assert [choice.index for choice in stream.choices] == [0, 1]
    assert plain.usage is not None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (100, 40)


def test_logprobs_are_given_where_a_reply_has_them(chat: openai.OpenAI, canned: Any) -> None:
    given = (TokenLogprob("Hé", -0.5, "Hé".encode()), TokenLogprob("\ufffd", -1.25, b"\xf0"))
    expected = [
        {"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -1.25, "bytes": [240], "top_logprobs": []},
    ]
    canned.answers(reply(Text("Hé\ufffd"), READ, logprobs=given), reply(Text("x")))
    for completion in (
        chat.chat.completions.create(**ASK, logprobs=True, n=2),
        streamed(chat, logprobs=True, top_logprobs=0, n=2),
    ):
        first, second = (choice.logprobs for choice in completion.choices)
        assert first is not None
        assert [one.to_dict() for one in first.content or ()] == expected
        assert second is None
    assert canned.requests[0].wishes.logprobs


def test_reasoning_tokens_are_counted_apart(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(*[reply(Text("x"), usage=Usage(100, 20, 60, 7))] * 2)
    usage = chat.chat.completions.create(**ASK, n=2).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 14


def test_a_stop_text_ends_a_turn_as_a_stop_does(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("x"), stop_sequence="END"))
    assert chat.chat.completions.create(**ASK).choices[0].finish_reason == "stop"


def test_a_ping_is_an_event_that_changes_nothing() -> None:
    stream = OpenAIChat().stream(parsed(ASK), "msgA1")
    (choice,) = json.loads(stream.ping().removeprefix(b"data: "))["choices"]
    assert choice == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}


def test_no_call_and_no_end_is_sent_before_the_turn_is_finished() -> None:
    stream = OpenAIChat().stream(parsed(ASK), "msgA1")
    early = stream.start(Usage(1, 0)) + stream.thinking("a") + stream.text("b")
    assert b"tool_calls" not in early
    assert early.count(b'"finish_reason":null') == 3
    assert b"DONE" not in early
    late = stream.finish([reply(Thinking("a"), Text("b"), READ)])
    assert b"tool_calls" in late
    assert late.endswith(b"data: [DONE]\n\n")


def test_a_reply_that_contradicts_what_was_streamed_is_refused() -> None:
    stream = OpenAIChat().stream(parsed(ASK), "msgA1")
    stream.text("Hello")
    with pytest.raises(ValueError, match="not the beginning"):
        stream.finish([reply(Text("Help"))])


texts = st.text(min_size=1, max_size=20)


@st.composite
def replies(draw: st.DrawFn) -> tuple[Reply, list[tuple[int, type[Text] | type[Thinking], str]]]:
    """A reply, and how much of its beginning is streamed in which pieces."""
    kinds = [Thinking, Text] if draw(st.booleans()) else [Text, Thinking]
    head = [kinds[number % 2](draw(texts)) for number in range(draw(st.integers(0, 4)))]
    parts: list[Part] = list(head)
    for number, arguments in enumerate(draw(st.lists(st.text(max_size=20), max_size=3))):
        parts.append(ToolCall(f"call{number}", draw(texts), arguments))
        if draw(st.booleans()):
            parts.append(Text(draw(texts)))
    letters = [(0, type(part), letter) for part in head for letter in part.text]
    return reply(*parts), letters[: draw(st.integers(0, len(letters)))]


@settings(max_examples=60, deadline=None)
@given(replies())
def test_any_reply_survives_streaming_and_the_echo(server: Any, chat: openai.OpenAI, planned: Any) -> None:
    answer, deltas = planned
    server.canned.answers(answer, deltas=deltas)
    whole = answer.message
    for completion in (chat.chat.completions.create(**ASK), streamed(chat)):
        back = echo(chat, server.canned, completion.choices[0].message)
        assert (back.thinking, back.text, back.calls, back.form) == (whole.thinking, whole.text, whole.calls, "")


# --- errors ---


@pytest.mark.parametrize(
    ("error", "raised", "kind", "code"),
    [
        (BadRequest("no"), openai.BadRequestError, "invalid_request_error", "bad_request"),
        (AccessDenied("no"), openai.PermissionDeniedError, "permission_error", "access_denied"),
        (LimitReached("no"), openai.PermissionDeniedError, "permission_error", "limit_reached"),
        (NotFound("no"), openai.NotFoundError, "invalid_request_error", "not_found"),
        (BodyTooLarge("no"), openai.APIStatusError, "invalid_request_error", "body_too_large"),
    ],
)
def test_refusals_raise_the_sdks_own_error_at_once(
    chat: openai.OpenAI, canned: Any, error: BridleError, raised: type[openai.APIStatusError], kind: str, code: str
) -> None:
    canned.refusal = error
    with pytest.raises(raised) as caught:
        chat.chat.completions.create(**ASK)
    assert canned.hits == 1
    assert caught.value.body == {"message": "no", "type": kind, "param": None, "code": code}


def test_an_overlong_prompt_is_told_by_code_and_in_the_usual_words(chat: openai.OpenAI, canned: Any) -> None:
    canned.refusal = PromptTooLong(5000, 4096)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
        chat.chat.completions.create(**ASK)
    assert (caught.value.code, canned.hits) == ("context_length_exceeded", 1)


def test_an_error_in_mid_stream_reaches_the_client(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("Hello")))
    canned.broken_stream = EngineError("the engine went away")
    with pytest.raises(openai.APIError, match="the engine went away") as caught:
        list(chat.chat.completions.create(**ASK, stream=True))
    assert caught.value.type == "server_error"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'"text"', "body: expected object, got str"),
        (b'{"a":' * 100_000, "nested too deeply"),
        ({"messages": [USER]}, "model: required, but missing"),
        ({"model": "policy"}, "messages: required, but missing"),
        ({**ASK, "messages": []}, "messages: expected array of length >= 1"),
        ({**ASK, "messages": ["hi"]}, "messages[0]: expected object, got str"),
        ({**ASK, "messages": [{"role": "robot"}]}, "messages[0].role: invalid value 'robot'; known: system"),
        ({**ASK, "messages": [{"role": "function"}]}, 'messages[0].role: "function" is no longer spoken; answer tool'),
        (
            {**ASK, "messages": [{"role": "assistant", "function_call": {"name": "read", "arguments": "{}"}}]},
            "messages[0].function_call: no longer spoken; use tool_calls",
        ),
        ({**ASK, "functions": [{"name": "read"}]}, "functions: no longer spoken; offer them as tools"),
        (
            {**ASK, "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages[0].content[0].file.file_data: required, because no files are kept here",
        ),
        (
            {**ASK, "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}]},
            "[0].custom: req",
        ),
        ({**ASK, "tools": [{"type": "custom"}]}, "tools[0].custom: required, but missing"),
        ({**ASK, "tool_choice": {"type": "any"}}, "tool_choice.type: invalid value 'any'; known: function, custom"),
        ({**ASK, "stop": ""}, "stop: expected str of length >= 1"),
        ({**ASK, "seed": 2**63}, "seed: expected int <= 9223372036854775807"),
        (b'{"model":"m","temperature":NaN}', "not valid JSON"),
        (b'{"model":"m","temperature":1e999}', "temperature: number out of range"),
        (b'{"model":"m","seed":' + b"9" * 10_000 + b"}", "seed: integer value out of range"),
        ({**ASK, "messages": [{"role": "user"}]}, "messages[0].content: required, but missing"),
        (
            {**ASK, "messages": [{"role": "user", "content": None}]},
            "messages[0].content: expected str | array, got null",
        ),
        (
            {**ASK, "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type: invalid value 'input_audio'; known: text, image_url, file",
        ),
        ({**ASK, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id: required, but missing"),
        (
            {**ASK, "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "b"}}]}]},
            "messages[0].tool_calls[0].function.arguments: required, but missing",
        ),
        (
            {**ASK, "messages": [{"role": "assistant", "tool_calls": [{"id": 1, "function": {}}]}]},
            "messages[0].tool_calls[0].id: expected str, got int",
        ),
        ({**ASK, "max_tokens": 0}, "max_tokens: expected int >= 1"),
        ({**ASK, "n": 0}, "n: expected int >= 1"),
        ({**ASK, "temperature": "hot"}, "temperature: expected float | null, got str"),
        ({**ASK, "tools": [{"type": "function"}]}, "tools[0].function: required, but missing"),
        ({**ASK, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: required, but missing"),
        ({**ASK, "tool_choice": "some"}, "tool_choice: invalid enum value 'some'; known: auto, none, required"),
        ({**ASK, "response_format": {"type": "json_schema"}}, "response_format.json_schema: required"),
        ({**ASK, "response_format": {"type": "xml"}}, "response_format.type: invalid enum value 'xml'; known: text"),
    ],
)
def test_a_malformed_body_is_refused_with_the_path_of_its_fault(body: Any, complaint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(body)
    assert complaint in caught.value.message


# --- requests ---


def test_every_role_is_understood() -> None:
    url = "data:image/png;base64,iVBO"
    call = {"id": "callA1", "type": "function", "function": {"name": "read", "arguments": '{ "a":1 }'}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "user", "name": "ada", "content": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call], "refusal": None},
        {
            "role": "tool",
            "tool_call_id": "callA1",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}]},
    ]
    assert parsed({**ASK, "messages": messages}).messages == (
        Message("system", (Text("be brief"),)),
        Message("developer", (Text("be kind"),)),
        Message("user", (Image("image/png", "iVBO"),)),
        Message("assistant", (Thinking("hm"), ToolCall("callA1", "read", '{ "a":1 }'))),
        Message("tool", (Text("1"), Text("2")), call_id="callA1"),
        Message("user", (Image("", "https://host/a.png"),)),
    )


CALLS = [{"id": "callA1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"content": "x"}, ""),
        ({"content": "x", "tool_calls": CALLS}, ""),
        ({"content": None, "tool_calls": CALLS}, ""),
        ({"content": ""}, ""),
        ({"content": "", "tool_calls": CALLS}, "string"),
        ({"content": None}, "null"),
        ({"tool_calls": CALLS}, "absent"),
        ({"content": [{"type": "text", "text": "x"}]}, "list"),
    ],
)
def test_an_assistant_message_remembers_a_foreign_form(fields: dict[str, Any], form: str) -> None:
    assert assistant(**fields).form == form


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_from_either_field(field: str) -> None:
    assert assistant(content="x", **{field: "why"}) == Message("assistant", (Thinking("why"), Text("x")))
    assert assistant(content="x", **{field: ""}) == Message("assistant", (Text("x"),))


def test_a_refusal_beside_the_answer_is_ignored() -> None:
    content = [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "x"}]
    assert assistant(content=content, refusal="no").parts == (Text("x"),)


def test_functions_and_freeform_tools_are_offered_and_others_dropped_with_a_note() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    function = {"name": "read", "description": "reads", "parameters": schema, "strict": True}
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x+/"}}
    custom = {"name": "patch", "description": "patches", "format": grammar}
    specs = [{"type": "function", "function": function}, {"type": "custom", "custom": custom}, {"type": "web_search"}]
    request = parsed({**ASK, "tools": [*specs, {"type": "function", "function": {"name": "bare"}}]})
    read, patch, bare = request.tools
    assert (read, bare) == (Tool("read", "reads", schema), Tool("bare"))
    assert list(read.parameters["properties"]) == ["z", "a"]
    assert (patch.name, patch.form, list(patch.parameters["properties"])) == ("patch", "custom", ["input"])
    assert patch.description == "patches\n\nThe input has to match this lark grammar:\nstart: /x+/"
    assert request.notes == (Note("server_tool_dropped", "tools[2] (web_search)"),)


@pytest.mark.parametrize(
    "arguments", ['{"input":"*** é\\n"}', '{"input": 5}', '{"input":"a","more":1}', "not json", ""]
)
def test_a_freeform_call_carries_its_text_both_ways(chat: openai.OpenAI, canned: Any, arguments: str) -> None:
    tools: Any = [{"type": "custom", "custom": {"name": "patch"}}, {"type": "function", "function": {"name": "read"}}]
    canned.answers(reply(ToolCall("callA1", "patch", arguments), LIST))
    plain = chat.chat.completions.create(**ASK, tools=tools).choices[0].message
    chunks = list(chat.chat.completions.create(**ASK, tools=tools, stream=True))
    calls = [call.to_dict() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert plain.tool_calls is not None
    assert calls == [{"index": index, **call.to_dict()} for index, call in enumerate(plain.tool_calls)]
    text = "*** é\n" if "é" in arguments else arguments
    assert plain.tool_calls[0].to_dict()["custom"] == {"name": "patch", "input": text}
    back = echo(chat, canned, plain).calls
    assert json.loads(back[0].arguments) == {"input": text}
    assert back[1] == LIST


def test_sampling_wishes_are_recorded() -> None:
    body = {**ASK, "max_completion_tokens": 50, "max_tokens": 60, "stop": ["A", "B"], "temperature": 0.5, "top_p": 0.9}
    wishes = parsed({**body, "top_k": 40, "seed": 7, "n": 2, "logprobs": True}).wishes
    assert (wishes.max_tokens, wishes.temperature, wishes.top_p, wishes.top_k) == (50, 0.5, 0.9, 40)
    assert (wishes.stop, wishes.seed, wishes.n, wishes.logprobs) == (("A", "B"), 7, 2, True)
    assert parsed({**ASK, "stop": "A", "max_tokens": 60, "seed": None, "tools": None}).wishes.stop == ("A",)


def test_a_response_format_is_a_response_schema() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "title", "schema": {"type": "object", "title": "T"}}}
    assert parsed({**ASK, "response_format": schema}).response_schema == {"type": "object", "title": "T"}
    assert parsed({**ASK, "response_format": {"type": "json_object"}}).response_schema == {"type": "object"}
    assert parsed({**ASK, "response_format": {"type": "text"}}).response_schema is None


@pytest.mark.parametrize("switch", [True, False, None])
def test_thinking_is_switched_as_sglang_and_vllm_do(switch: bool | None) -> None:
    assert parsed({**ASK, "chat_template_kwargs": {"enable_thinking": switch}}).switches.thinking is switch
    assert parsed(ASK).switches.thinking is None


def test_an_effort_is_a_switch_and_none_turns_thinking_off() -> None:
    assert parsed({**ASK, "reasoning_effort": "high"}).switches == Switches(None, "high")
    assert parsed({**ASK, "reasoning_effort": "none"}).switches == Switches(False)
    plain = {"enable_thinking": True}
    assert parsed({**ASK, "reasoning_effort": "low", "chat_template_kwargs": plain}).switches == Switches(True, "low")
    assert parsed({**ASK, "reasoning_effort": "none", "chat_template_kwargs": plain}).switches == Switches(True)


@pytest.mark.parametrize("wish", [True, False, None])
def test_parallel_calls_are_a_wish(wish: bool | None) -> None:
    assert parsed({**ASK, "parallel_tool_calls": wish}).wishes.parallel_calls is wish


def test_what_a_body_says_of_itself_is_metadata() -> None:
    body = {
        **ASK,
        "metadata": {"task": "t1", "step": 3},
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": None,
    }
    assert parsed(body).metadata == {"task": "t1", "user": "u", "prompt_cache_key": "k"}
    assert parsed(body).messages == parsed(ASK).messages


def test_a_file_is_a_document_and_one_of_plain_text_a_text() -> None:
    def shown(**file: str) -> tuple[Part, ...]:
        content = [{"type": "file", "file": file}]
        return parsed({**ASK, "messages": [{"role": "user", "content": content}]}).messages[0].parts

    pdf = Document("application/pdf", "JVBE", "a.pdf")
    assert shown(file_data="data:application/pdf;base64,JVBE", filename="a.pdf") == (pdf,)
    assert shown(file_data="JVBE") == (Document("", "JVBE"),)
    assert shown(file_data="data:text/plain;charset=utf-8;base64,aGk=", filename="a.txt") == (Text("a.txt\n\nhi"),)
    assert shown(file_data="data:text/plain;base64,") == ()
    assert shown(file_data="data:text/plain;base64,/w==") == (Document("text/plain", "/w=="),)


def test_wishes_that_nothing_follows_are_noted() -> None:
    asked = {**ASK, "presence_penalty": 0.5, "logit_bias": {"5": -100}, "top_logprobs": 2, "frequency_penalty": 0}
    told = [note.detail for note in parsed(asked).notes if note.what == "wish_dropped"]
    assert told == ["top_logprobs: 2", "presence_penalty: 0.5", "logit_bias: {'5': -100}"]


def test_unknown_fields_are_accepted() -> None:
    noisy = {
        **ASK,
        "store": False,
        "verbosity": "low",
        "functions": [],
        "function_call": "auto",
        "modalities": ["text"],
        "messages": [{"role": "user", "content": "hi", "x": 1}],
    }
    assert parsed(noisy) == parsed(ASK)
    call = {"role": "assistant", "content": "x", "function_call": None, "audio": None, "tool_calls": None}
    assert parsed({**ASK, "messages": [call]}).messages == (Message("assistant", (Text("x"),)),)


def test_credentials_never_stay_with_a_request(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    chat.chat.completions.create(**ASK, extra_headers={"X-Session-Id": "s1", "session-id": "s2"})
    headers = canned.requests[0].headers
    assert (headers["x-session-id"], headers["session-id"], headers["x-stainless-retry-count"]) == ("s1", "s2", "0")
    assert headers["user-agent"].startswith("OpenAI/Python")
    assert "secret" not in str(headers)


def test_models_are_listed_with_their_context_length(chat: openai.OpenAI, canned: Any) -> None:
    models = [model.to_dict() for model in chat.models.list().data]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("policy", 32768), ("draft", 32768)]


def test_counting_tokens_is_refused_by_name() -> None:
    with pytest.raises(NotFound, match="no call that counts tokens"):
        OpenAIChat().token_count(5)
