from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.responses import Response
from pydantic import BaseModel

from bridle.errors import (
    AccessDenied,
    BadRequest,
    BridleError,
    EngineError,
    LimitReached,
    NotFound,
    PreviousNotFound,
    PromptTooLong,
)
from bridle.messages import (
    FinishReason,
    Image,
    KindRule,
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
    kind_of,
)
from bridle.protocols.arguments import FREEFORM
from bridle.protocols.openai_responses import LOCAL_SHELL, OpenAIResponses
from bridle.sessions.match import match
from bridle.testing.conversation import Played, request as asked, user

SIGNATURE = "sig0a1b2c"
USAGE = Usage(100, 20, 60, 7)
ASK: Any = {"model": "policy", "input": "hi"}
READ = ToolCall("callA1", "read", '{"path":  "a.py",\n "é": "\\u00e9"}')
LIST = ToolCall("callB2", "list", "{}")
THOUGHT = Thinking("let me see", SIGNATURE)
REPLIES: dict[str, tuple[Part, ...]] = {
    "thinking": (THOUGHT, Text("Done.")),
    "thinking alone": (THOUGHT,),
    "a call": (Text("Reading."), READ),
    "calls alone": (READ, LIST),
    "parallel calls": (THOUGHT, Text("Reading."), READ, LIST),
    "interleaved": (THOUGHT, Text("b"), Thinking("c", SIGNATURE), Text("d"), READ, Text("after")),
    "two texts": (THOUGHT, Text("before"), Text("<tool_call>{broken")),
}
APPLY_PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edits",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"},
}
SPACE: Any = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}


def reply(*parts: Part, finish_reason: FinishReason = "stop", usage: Usage = USAGE) -> Reply:
    return Reply("msgA1", "policy", Message("assistant", parts), finish_reason, usage, signature=SIGNATURE)


def parsed(body: Any, headers: dict[str, str] | None = None) -> ModelRequest:
    return OpenAIResponses().parse(body if isinstance(body, bytes) else msgspec.json.encode(body), headers or {})


def heard(*items: Any, **more: Any) -> tuple[Message, ...]:
    return parsed({"model": "policy", "input": list(items), **more}).messages


def streamed(chat: openai.OpenAI, **more: Any) -> Response:
    with chat.responses.stream(**{**ASK, **more}) as stream:
        return stream.get_final_response()


def echo(chat: openai.OpenAI, canned: Any, response: Response, *, ids: bool = True) -> tuple[Message, ...]:
    """What the SDK's answer becomes when an agent sends it back, with the items' ids or without."""
    items = [item.to_dict() for item in response.output]
    for item in items if not ids else []:
        item.pop("id")
        item.pop("encrypted_content", None)
    chat.responses.create(**{**ASK, "input": [{"role": "user", "content": "hi"}, *items]})
    said: tuple[Message, ...] = canned.requests[-1].messages[1:]
    return said


def events(*parts: Part, deltas: int = 0, **more: Any) -> list[dict[str, Any]]:
    """The events of a stream that sends `deltas` letters of each leading text early, and the rest at the end."""
    stream = OpenAIResponses().stream(parsed(ASK | more), "msgA1", SIGNATURE)
    sent = [stream.start(Usage(1, 0))]
    for part in parts:
        if deltas and isinstance(part, Text | Thinking):
            say = stream.thinking if isinstance(part, Thinking) else stream.text
            sent += [say(letter) for letter in part.text[:deltas]]
    sent.append(stream.finish([reply(*parts)]))
    return told(b"".join(sent))


def told(sent: bytes) -> list[dict[str, Any]]:
    lines = [block.split(b"\n") for block in sent.split(b"\n\n") if block]
    found = [json.loads(data.removeprefix(b"data: ")) for _, data in lines]
    assert [name.removeprefix(b"event: ").decode() for name, _ in lines] == [event["type"] for event in found]
    return found


# --- answers through the official SDK ---


@pytest.mark.parametrize("parts", REPLIES.values(), ids=REPLIES)
def test_streamed_and_plain_answers_are_the_same_and_come_back_as_what_was_said(
    chat: openai.OpenAI, canned: Any, parts: tuple[Part, ...]
) -> None:
    canned.answers(reply(*parts))
    plain, stream = chat.responses.create(**ASK), streamed(chat)
    last: Any = list(chat.responses.create(**ASK, stream=True))[-1]
    assert last.response == plain
    for response in (plain, stream):
        assert echo(chat, canned, response) == (Message("assistant", parts),)


def test_the_id_of_a_text_alone_brings_the_turn_back(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("Done.")))
    response = streamed(chat)
    assert echo(chat, canned, response) == (Message("assistant", (Thinking("", SIGNATURE), Text("Done."))),)
    assert echo(chat, canned, response, ids=False) == (Message("assistant", (Text("Done."),)),)


def test_an_answer_of_nothing_has_no_items(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply())
    for response in (chat.responses.create(**ASK), streamed(chat)):
        assert (response.output, response.status) == ([], "completed")


def test_reasoning_is_a_summary_and_carries_the_turns_identity(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(THOUGHT, Text("Done.")))
    item: Any = streamed(chat).output[0]
    assert (item.type, item.summary[0].text, item.encrypted_content) == ("reasoning", "let me see", SIGNATURE)
    assert item.id == f"rs_{SIGNATURE}_0"


@pytest.mark.parametrize("kept", ["summary", "content", "id", "encrypted_content"])
def test_reasoning_is_known_again_by_whatever_an_agent_keeps_of_it(kept: str) -> None:
    whole = {
        "id": f"rs_{SIGNATURE}_0",
        "encrypted_content": SIGNATURE,
        "summary": [{"type": "summary_text", "text": "hm"}],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    (message,) = heard({"type": "reasoning", "summary": [], kept: whole[kept]})
    by_text = kept in ("summary", "content")
    assert message.parts == (Thinking("hm" if by_text else "", "" if by_text else SIGNATURE),)
    assert heard({"type": "reasoning", **whole, "encrypted_content": None}) == (
        Message("assistant", (Thinking("hm", SIGNATURE),)),
    )


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [("stop", "completed"), ("tool_calls", "completed"), ("length", "incomplete"), ("abort", "incomplete")],
)
def test_an_answer_that_was_cut_is_incomplete(
    chat: openai.OpenAI, canned: Any, finish_reason: FinishReason, status: str
) -> None:
    canned.answers(reply(Text("x"), finish_reason=finish_reason))
    last: Any = list(chat.responses.create(**ASK, stream=True))[-1]
    assert last.type == f"response.{status}"
    for response in (chat.responses.create(**ASK), last.response):
        assert response.status == status
        assert (response.incomplete_details is None) == (status == "completed")


def test_usage_counts_what_was_held_and_what_was_thought(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("x")))
    for response in (chat.responses.create(**ASK), streamed(chat)):
        usage = response.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 20, 120)
        assert usage.input_tokens_details.cached_tokens == 60
        assert usage.output_tokens_details.reasoning_tokens == 7


def test_structured_output_is_parsed_by_the_sdk(chat: openai.OpenAI, canned: Any) -> None:
    class Title(BaseModel):
        title: str

    canned.answers(reply(Text('{"title": "T"}')))
    assert chat.responses.parse(**ASK, text_format=Title).output_parsed == Title(title="T")
    assert canned.requests[0].response_schema["properties"]["title"]["type"] == "string"
    with chat.responses.stream(**ASK, text_format=Title) as stream:
        assert stream.get_final_response().output_parsed == Title(title="T")


def test_tokens_are_counted_and_models_listed(chat: openai.OpenAI, canned: Any) -> None:
    assert chat.responses.input_tokens.count(**ASK).input_tokens == 1234
    assert OpenAIResponses().model("policy", 5) in OpenAIResponses().models(["policy"], 5)


# --- calls in their forms ---


def test_a_freeform_call_is_its_text_and_comes_back_as_the_same_arguments(chat: openai.OpenAI, canned: Any) -> None:
    said = ToolCall("callA1", "apply_patch", '{"input":"*** Begin\\n\\"é\\""}')
    canned.answers(reply(said))
    for response in (chat.responses.create(**ASK, tools=[APPLY_PATCH]), streamed(chat, tools=[APPLY_PATCH])):
        item: Any = response.output[0]
        assert (item.type, item.input, item.call_id) == ("custom_tool_call", '*** Begin\n"é"', "callA1")
        assert echo(chat, canned, response) == (Message("assistant", (said,)),)


def test_a_freeform_call_that_is_no_object_with_an_input_is_given_as_it_was_sampled(
    chat: openai.OpenAI, canned: Any
) -> None:
    canned.answers(reply(ToolCall("callA1", "apply_patch", "*** Begin")))
    item: Any = chat.responses.create(**ASK, tools=[APPLY_PATCH]).output[0]
    assert item.input == "*** Begin"


def test_a_call_into_a_namespace_names_it_and_comes_back_under_the_name_models_see(
    chat: openai.OpenAI, canned: Any
) -> None:
    both = [{"type": "function", "name": "spawn"}, SPACE]
    said = ToolCall("callA1", "agents__spawn", "{}")
    canned.answers(reply(said))
    response = chat.responses.create(**ASK, tools=both)
    item: Any = response.output[0]
    assert (item.namespace, item.name) == ("agents", "spawn")
    assert [tool.name for tool in canned.requests[0].tools] == ["spawn", "agents__spawn"]
    assert heard(item.to_dict(), tools=both) == (Message("assistant", (said,)),)
    assert [tool.name for tool in parsed({**ASK, "tools": [SPACE]}).tools] == ["spawn"]


def test_a_local_shell_call_is_an_action(chat: openai.OpenAI, canned: Any) -> None:
    said = ToolCall("callA1", "local_shell", '{"command":["ls","-l"],"env":{}}')
    canned.answers(reply(said))
    for response in (
        chat.responses.create(**ASK, tools=[{"type": "local_shell"}]),
        streamed(chat, tools=[{"type": "local_shell"}]),
    ):
        item: Any = response.output[0]
        assert (item.type, item.action.command, item.action.type) == ("local_shell_call", ["ls", "-l"], "exec")
        assert echo(chat, canned, response) == (Message("assistant", (said,)),)
    assert heard(item.to_dict(), {"type": "local_shell_call_output", "id": item.id, "output": "{}"})[1] == Message(
        "tool", (Text("{}"),), call_id="callA1"
    )


def test_a_call_of_an_unknown_tool_is_a_function_call(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(ToolCall("callA1", "nope", "{broken")))
    item: Any = streamed(chat, tools=[APPLY_PATCH]).output[0]
    assert (item.type, item.name, item.arguments) == ("function_call", "nope", "{broken")


# --- events ---


def test_events_come_in_order_and_are_numbered() -> None:
    names = [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    custom = ToolCall("callB2", "apply_patch", '{"input":"x"}')
    sent = events(Thinking("ab", SIGNATURE), Text("cd"), READ, custom, deltas=2, tools=[APPLY_PATCH])
    assert [event["type"] for event in sent] == [f"response.{name}" for name in names]
    assert [event["sequence_number"] for event in sent] == list(range(len(names)))


@pytest.mark.parametrize("deltas", [0, 1, 100])
@pytest.mark.parametrize("parts", REPLIES.values(), ids=REPLIES)
def test_deltas_add_up_to_the_items_and_the_items_to_the_response(parts: tuple[Part, ...], deltas: int) -> None:
    leading = 1 if deltas else 0
    sent = events(*parts[:leading], deltas=deltas) if leading else events(*parts)
    done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    added = [event["item"]["id"] for event in sent if event["type"] == "response.output_item.added"]
    assert sent[-1]["response"]["output"] == done
    assert added == [item["id"] for item in done]
    for number, item in enumerate(done):
        own = [event for event in sent if event.get("output_index") == number]
        said = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        whole = [item.get("arguments"), *(words["text"] for words in item.get("content", item.get("summary", [])))]
        assert said in whole
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}


def test_no_call_and_no_end_is_sent_before_the_turn_is_finished() -> None:
    stream = OpenAIResponses().stream(parsed(ASK), "msgA1", SIGNATURE)
    early = stream.start(Usage(1, 0)) + stream.thinking("a") + stream.text("b") + stream.ping()
    assert b"function_call" not in early
    assert b"completed" not in early.replace(b'"status":"completed"', b"")
    late = told(early + stream.finish([reply(Thinking("a", SIGNATURE), Text("b"), READ)]))
    assert [event["sequence_number"] for event in late] == list(range(len(late)))
    assert late[-1]["type"] == "response.completed"


def test_a_reply_that_contradicts_what_was_streamed_is_refused() -> None:
    for said in ((Text("Help"),), (Thinking("Hello"),), ()):
        stream = OpenAIResponses().stream(parsed(ASK), "msgA1", SIGNATURE)
        stream.text("Hello")
        with pytest.raises(ValueError, match=r"not the beginning|streamed as Text"):
            stream.finish([reply(*said)])
    stream = OpenAIResponses().stream(parsed(ASK), "msgA1", SIGNATURE)
    stream.thinking("Hel")
    stream.text("x")
    with pytest.raises(ValueError, match="closed before"):
        stream.finish([reply(Thinking("Hello", SIGNATURE), Text("x"))])


arguments = st.one_of(st.text(max_size=20), st.dictionaries(st.text(max_size=3), st.text(max_size=3)).map(json.dumps))


@st.composite
def answers(draw: st.DrawFn) -> tuple[Reply, list[tuple[int, type[Text] | type[Thinking], str]]]:
    """A reply, and how much of its beginning is streamed in which pieces."""
    kinds = [Thinking, Text] if draw(st.booleans()) else [Text, Thinking]
    said = st.text(min_size=1, max_size=20)
    head: list[Any] = []
    for number in range(draw(st.integers(0, 4))):
        kind = kinds[number % 2]
        head.append(Thinking(draw(said), SIGNATURE) if kind is Thinking else Text(draw(said)))
    parts: list[Part] = list(head)
    for number, sampled in enumerate(draw(st.lists(arguments, max_size=3))):
        parts.append(ToolCall(f"call{number}", draw(said), sampled))
        if draw(st.booleans()):
            parts.append(Text(draw(said)))
    letters = [(0, type(part), letter) for part in head for letter in part.text]
    return reply(*parts), letters[: draw(st.integers(0, len(letters)))]


@settings(max_examples=30, deadline=None)
@given(answers())
def test_any_reply_survives_streaming_and_the_echo(server: Any, chat: openai.OpenAI, planned: Any) -> None:
    answer, deltas = planned
    server.canned.answers(answer, deltas=deltas)
    for response in (chat.responses.create(**ASK), streamed(chat)):
        back = [message.parts for message in echo(chat, server.canned, response)]
        parts = [part for message in back for part in message if part != Thinking("", SIGNATURE)]
        assert tuple(parts) == answer.message.parts
        assert len(back) == min(1, len(answer.message.parts))


# --- any split of a turn ---


def as_items(part: Part) -> dict[str, Any]:
    match part:
        case Thinking():
            return {"type": "reasoning", "summary": [{"text": part.text}], "encrypted_content": part.signature}
        case Text():
            return {"role": "assistant", "content": part.text}
        case ToolCall():
            return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    raise AssertionError(part)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["thinking", "text"]), max_size=4),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_a_turn_is_found_again_in_whatever_items_it_comes_back(
    spoken: list[str], calls: int, named: bool, before: bool
) -> None:
    """Without ids of items, as some agents send them. A draw of plain text right before one that speaks is not mixed up
    with it; before one that only calls it would be."""
    played = Played()
    parts: list[Part] = [Thinking(f"t{n}") if kind == "thinking" else Text(f"x{n}") for n, kind in enumerate(spoken)]
    parts += [ToolCall("", "bash", "{}") for _ in range(calls)]
    parts = parts or [Text("x")]
    asking = [user("go")]
    if before and spoken:
        asking.append(played.turn(asked(*asking), Message("assistant", (Text("Wait."),))))
    said = played.turn(asked(*asking), Message("assistant", tuple(parts)))
    said = said if named else msgspec.structs.replace(said, parts=tuple(_unsigned(part) for part in said.parts))
    items = [as_items(part) for message in [*asking[1:], said] for part in message.parts]
    echoed = heard({"role": "user", "content": "go"}, *items, {"role": "user", "content": "on"})
    found = match(played.session.tree, asked(*echoed))
    assert found.base == played.session.tree.turns[-1].end
    assert {echo.echo for echo in found.echoes} <= {"exact", "split"}


def _unsigned(part: Part) -> Part:
    return msgspec.structs.replace(part, signature="") if isinstance(part, Thinking) else part


def test_items_of_a_broken_stream_do_not_mix_with_the_turn_that_followed() -> None:
    """Codex keeps the reasoning it had of a stream that broke off."""
    items = [
        {"type": "reasoning", "id": "rs_sigA_0", "summary": [{"text": "cut"}]},
        {"type": "reasoning", "id": "rs_sigB_0", "summary": [{"text": "whole"}]},
        {"type": "message", "role": "assistant", "id": "msg_sigB_1", "content": "Done."},
    ]
    assert heard(*items) == (
        Message("assistant", (Thinking("cut", "sigA"),)),
        Message("assistant", (Thinking("whole", "sigB"), Text("Done."))),
    )


def test_calls_in_a_row_are_one_message_so_that_each_result_finds_its_call() -> None:
    items = [as_items(part) for part in (READ, LIST)]
    results = [{"type": "function_call_output", "call_id": call.id, "output": "ok"} for call in (LIST, READ)]
    said, *told = heard(*items, *results)
    assert said.calls == (READ, LIST)
    assert [message.call_id for message in told] == ["callB2", "callA1"]


# --- errors ---


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (BadRequest("no"), openai.BadRequestError, "bad_request"),
        (PreviousNotFound("no"), openai.BadRequestError, "previous_response_not_found"),
        (AccessDenied("no"), openai.PermissionDeniedError, "access_denied"),
        (LimitReached("no"), openai.PermissionDeniedError, "limit_reached"),
        (NotFound("no"), openai.NotFoundError, "not_found"),
        (PromptTooLong(5000, 4096), openai.BadRequestError, "context_length_exceeded"),
    ],
)
def test_refusals_raise_the_sdks_own_error_at_once(
    chat: openai.OpenAI, canned: Any, error: BridleError, raised: type[openai.APIStatusError], code: str
) -> None:
    canned.refusal = error
    with pytest.raises(raised) as caught:
        chat.responses.create(**ASK)
    assert (canned.hits, caught.value.code) == (1, code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("the engine went away"), "server_error"),
        (PromptTooLong(5000, 4096), "context_length_exceeded"),
        (LimitReached("the engine went away"), "invalid_prompt"),
    ],
)
def test_an_error_in_mid_stream_is_a_failed_response(
    chat: openai.OpenAI, canned: Any, error: BridleError, code: str
) -> None:
    canned.answers(reply(Text("Hello")))
    canned.broken_stream = error
    last: Any = list(chat.responses.create(**ASK, stream=True))[-1]
    assert (last.type, last.response.status, last.response.error.code) == ("response.failed", "failed", code)


def message_of(content: Any) -> dict[str, Any]:
    return {"model": "m", "input": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b'{"model":"m","input":' + b"[" * 100_000, "nested too deeply"),
        (b'{"model":"m","input":[' + b'{"action":' * 100_000, "nested too deeply"),
        ({"input": "hi"}, "model: required, but missing"),
        ({"model": "m"}, "input: required, but missing"),
        ({"model": "m", "input": []}, "input: required, but missing"),
        ({"model": "m", "input": 5}, "input: expected str | array"),
        ({"model": "m", "input": ["hi"]}, "input[0]: body: expected object, got str"),
        (
            {"model": "m", "input": [{"role": "tool", "content": ""}]},
            "input[0]: role: invalid enum value 'tool'; known",
        ),
        ({"model": "m", "input": [{"content": "x"}]}, "input[0]: role: required, but missing"),
        ({"model": "m", "input": [{"type": "function_call"}]}, "input[0]: call_id: required, but missing"),
        ({"model": "m", "input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id: required"),
        ({"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]: no item 'msg_1' in what was"),
        ({"model": "m", "input": [{"type": "item_reference", "id": "cmp_a_0"}]}, "input[0]: no item 'cmp_a_0' in what"),
        ({"model": "m", "input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]: no item 'x' in what"),
        (
            {"model": "m", "input": [{"type": "compaction_trigger"}, {"role": "user", "content": "x"}]},
            "input[0]: compaction_trigger asks to summarize what stands before it, so it must be the last item",
        ),
        ({"model": "m", "input": [{"type": "compaction_trigger"}]}, "input: required, but missing or empty"),
        (message_of([{"type": "input_audio"}]), "input[0]: content[0].type: invalid value 'input_audio'; known"),
        (message_of([{"type": "input_image", "file_id": "f"}]), "input[0].content[0].image_url: required; files are"),
        (message_of([{"type": "input_file", "file_id": "f"}]), "input[0].content[0].file_data: required; files are"),
        ({**ASK, "background": True}, "background: responses are not made in the background"),
        ({**ASK, "conversation": "conv_1"}, "conversation: conversations are not kept"),
        ({**ASK, "prompt": {"id": "p"}}, "prompt: prompts are not kept here"),
        ({**ASK, "max_output_tokens": 0}, "max_output_tokens: expected int >= 1"),
        ({**ASK, "tools": [{"name": "x"}]}, "tools[0]: type: required, but missing"),
        ({**ASK, "tools": [{"type": "function"}]}, "tools[0]: name: required, but missing"),
        ({**ASK, "tools": [{**SPACE, "tools": [{"type": "function"}]}]}, "tools[0].tools[0]: name: required"),
        ({**ASK, "tool_choice": "some"}, "tool_choice: invalid enum value 'some'; known: auto, none, required"),
        ({**ASK, "tool_choice": {"type": "function"}}, "tool_choice.name: required"),
        ({**ASK, "text": {"format": {"type": "json_schema"}}}, "text.format.schema: required"),
    ],
)
def test_a_malformed_body_is_refused_with_the_path_of_its_fault(body: Any, complaint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(body)
    assert complaint in caught.value.message


# --- requests ---


def test_every_role_and_item_is_understood() -> None:
    url = "data:image/png;base64,iVBO"
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_image", "image_url": url}, {"type": "text", "text": "see"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
        {"type": "function_call", "call_id": "callA1", "name": "read", "arguments": '{ "a":1 }', "status": "completed"},
        {"type": "function_call_output", "call_id": "callA1", "output": [{"type": "input_image", "image_url": url}]},
        {"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,aGk="}]},
    ]
    assert heard(*items, instructions="be good") == (
        Message("system", (Text("be good"),)),
        Message("developer", (Text("be kind"),)),
        Message("system", (Text("be brief"),)),
        Message("user", (Image("image/png", "iVBO"), Text("see"))),
        Message("assistant", (Text("I see."), ToolCall("callA1", "read", '{ "a":1 }'))),
        Message("tool", (Image("image/png", "iVBO"),), call_id="callA1"),
        Message("user", (Text("hi"),)),
    )


def test_items_of_tools_that_run_at_the_provider_are_left_out_and_noted() -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"type": "reasoning", "summary": [], "encrypted_content": "foreign"},
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "something_new", "content": 5},
    ]
    request = parsed({"model": "m", "input": items})
    assert [message.role for message in request.messages] == ["assistant", "user"]
    assert request.notes == (
        Note("item_dropped", "input[0]: an item of type web_search_call"),
        Note("redacted_thinking", "input[1]: encrypted reasoning without text"),
        Note("item_dropped", "input[3]: an item of type something_new"),
    )


def test_tools_are_offered_in_their_forms_and_hosted_ones_dropped_with_a_note() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    function = {"type": "function", "name": "read", "description": "reads", "parameters": schema, "strict": True}
    hosted = [{"type": "web_search"}, {"type": "mcp", "server_label": "x", "tools": 5}]
    request = parsed({**ASK, "tools": [function, APPLY_PATCH, SPACE, {"type": "local_shell"}, *hosted]})
    read, patch, spawn, shell = request.tools
    assert (read, spawn, shell) == (
        Tool("read", "reads", schema),
        Tool("spawn", namespace="agents"),
        LOCAL_SHELL,
    )
    assert list(read.parameters["properties"]) == ["z", "a"]
    assert (patch.name, patch.form, patch.parameters) == ("apply_patch", "custom", FREEFORM)
    assert "start: begin" in patch.description
    assert [note.detail for note in request.notes] == ["tools[4] (web_search)", "tools[5] (mcp)"]


def test_wishes_and_switches_are_read() -> None:
    body = {**ASK, "max_output_tokens": 50, "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": False}
    wishes = parsed({**body, "include": ["message.output_text.logprobs"], "stream": None}).wishes
    assert (wishes.max_tokens, wishes.temperature, wishes.top_p) == (50, 0.5, 0.9)
    assert (wishes.parallel_calls, wishes.logprobs) == (False, True)
    assert parsed({**ASK, "reasoning": {"effort": "high", "summary": "auto"}}).switches == Switches(effort="high")
    assert parsed({**ASK, "reasoning": {"effort": "none"}}).switches == Switches(thinking=False)
    assert parsed({**ASK, "reasoning": None}).switches == Switches()


def test_what_a_request_goes_on_from_is_named_without_the_prefix_of_the_wire() -> None:
    request = parsed({**ASK, "previous_response_id": "resp_r-1", "instructions": "be good", "store": False})
    assert (request.previous, request.instructions, request.store) == ("r-1", 1, False)
    assert (parsed(ASK).previous, parsed(ASK).instructions, parsed(ASK).store) == ("", 0, True)
    assert parsed({"model": "m", "previous_response_id": "resp_r-1"}).messages == ()


def test_what_a_body_says_of_itself_is_kept_and_only_what_is_a_text() -> None:
    told = {"metadata": {"a": "1", "b": 2}, "prompt_cache_key": "k", "client_metadata": {"x-codex-turn": "t", "n": 1}}
    request = parsed({**ASK, **told}, {"x-codex-turn": "old", "authorization": "Bearer secret", "session-id": "s"})
    assert request.metadata == {"a": "1", "x-codex-turn": "t", "prompt_cache_key": "k"}
    assert request.headers == {"x-codex-turn": "t", "session-id": "s"}


def test_unknown_fields_are_accepted() -> None:
    noisy = {"truncation": "auto", "service_tier": "flex", "verbosity": 5, "text": {"verbosity": "low"}, "type": "x"}
    assert parsed({**ASK, **noisy}) == parsed(ASK)


def test_half_of_a_surrogate_pair_is_mended_wherever_it_stands() -> None:
    body = (
        b'{"model":"m","input":[{"role":"user","content":"a\\ud83d"}],"tools":[{"type":"function","name":"\\ud83d"}]}'
    )
    request = parsed(body)
    assert (request.messages[0].text, request.tools[0].name) == ("a\ufffd", "\ufffd")
    assert {note.what for note in request.notes} == {"lone_surrogate"}


# --- items by their ids, and summaries ---

SPOKEN = Message("assistant", (THOUGHT, Text("Reading."), READ, ToolCall("callC3", "local_shell", "{}")))


def reading(*items: Any, target: str = "/v1/responses", **more: Any) -> ModelRequest:
    """Where `SPOKEN` was said before."""
    known = {SIGNATURE: SPOKEN, "callC3": SPOKEN}
    body = msgspec.json.encode({"model": "policy", "input": list(items), **more})
    return OpenAIResponses().parse(body, {}, target, known.get)


def named(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": id} for id in ids]


def test_items_named_by_their_ids_are_what_was_said() -> None:
    whole = named(f"rs_{SIGNATURE}_0", f"msg_{SIGNATURE}_1", f"fc_{SIGNATURE}_2", "callC3")
    output = {"type": "function_call_output", "call_id": "callA1", "output": "ok"}
    assert reading(*whole, output).messages == (SPOKEN, Message("tool", (Text("ok"),), call_id="callA1"))
    text, call = reading(*named(f"msg_{SIGNATURE}_1")).messages, reading(*named(f"fc_{SIGNATURE}_2")).messages
    assert text == (Message("assistant", (Thinking("", SIGNATURE), Text("Reading."))),)
    assert call == (Message("assistant", (READ,)),)


@pytest.mark.parametrize("id", ["msg_other_0", f"msg_{SIGNATURE}_9", f"msg_{SIGNATURE}_{'9' * 5000}", "callA9", ""])
def test_an_item_nobody_said_is_refused(id: str) -> None:
    with pytest.raises(BadRequest, match="in what was answered in this session; send the item itself"):
        reading(*named(id))


SUMMARY: Any = {"type": "compaction", "encrypted_content": SIGNATURE}


@pytest.mark.parametrize("item", [SUMMARY, SUMMARY | {"type": "compaction_summary"}, *named(f"cmp_{SIGNATURE}_0")])
def test_a_summary_is_the_answer_it_names_and_a_message_by_itself(item: Any) -> None:
    """What an agent sends behind it without ids was another turn."""
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    before, summary, after = reading({"role": "user", "content": "Go."}, item, call).messages
    assert (before.text, summary) == ("Go.", SPOKEN)
    assert after == Message("assistant", (ToolCall("c", "read", "{}"),))


@pytest.mark.parametrize(
    "request_",
    [
        reading({"role": "user", "content": "Go."}, {"type": "compaction_trigger", "id": "x"}, stream=True),
        reading({"role": "user", "content": "Go."}, target="/v1/responses/compact?x=1", instructions="Be kind."),
        reading(target="/v1/responses/compact", input="Go."),
        reading(target="/v1/responses/compact", input=[], previous_response_id="resp_1"),
    ],
)
def test_a_call_to_summarize_ends_in_an_instruction_to_do_so(request_: ModelRequest) -> None:
    *_, last = request_.messages
    assert (last.role, request_.kind) == ("user", "compaction")
    assert "Answer with the summary alone" in last.text
    assert kind_of(request_, (KindRule("main", "all"),)) == ("compaction", "call")


def test_a_streamed_summary_shows_that_it_is_made_and_nothing_of_it(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(THOUGHT, Text("All was well.")))
    body: Any = {"model": "policy", "input": [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]}
    told = [event.to_dict() for event in chat.responses.create(**body, stream=True)]
    kinds = [event["type"] for event in told if event["type"] != "response.in_progress"]
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert "well" not in json.dumps(told)
    whole = chat.responses.create(**body)
    assert [item.to_dict() for item in whole.output] == told[-1]["response"]["output"]
    assert told[-1]["response"]["output"] == [SUMMARY | {"id": f"cmp_{SIGNATURE}_0"}]


def test_a_summary_nothing_was_said_of_is_still_one_item() -> None:
    stream = OpenAIResponses().stream(reading({"role": "user", "content": "x"}, {"type": "compaction_trigger"}), "r")
    kinds = [event["type"] for event in told(stream.start(USAGE) + stream.finish([reply()]))]
    assert kinds[2:] == ["response.output_item.added", "response.output_item.done", "response.completed"]


def test_a_compacted_conversation_is_all_the_user_said_and_the_summary(chat: openai.OpenAI, canned: Any) -> None:
    canned.answers(reply(Text("All was well.")))
    said = [
        {"type": "input_text", "text": "Go."},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBO"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://x/y"},
    ]
    window = chat.responses.compact(
        model="policy",
        instructions="Be kind.",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": said},  # type: ignore[typeddict-item]
            {"role": "assistant", "content": "Went."},
            {"role": "user", "content": "On."},
        ],
    )
    assert (window.object, window.usage.total_tokens) == ("response.compaction", 120)
    # The SDK has no type for a message of the user's in an output.
    first, second, summary = (item.to_dict(warnings=False) for item in window.output)
    assert summary == SUMMARY | {"id": f"cmp_{SIGNATURE}_0"}
    assert (first["role"], second["content"]) == ("user", [{"type": "input_text", "text": "On."}])
    back = reading(first, second, summary).messages
    assert back[:2] == canned.requests[-1].messages[2:5:2]
    assert back[2] == SPOKEN
