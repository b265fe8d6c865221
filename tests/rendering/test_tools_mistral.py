from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.experimental.tools import InvalidToolCallError, _decode_tool_calls, _split_content_and_tool_calls
from mistral_common.protocol.instruct.messages import AssistantMessage
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall as TheirCall
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, TokenizerVersion
from mistral_common.tokens.tokenizers.instruct import (
    InstructTokenizerV7,
    InstructTokenizerV11,
    InstructTokenizerV13,
)
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from bridle.messages import Message, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import CallSpan
from bridle.rendering.template import TemplateRenderer

VERSIONS = {7: InstructTokenizerV7, 11: InstructTokenizerV11, 13: InstructTokenizerV13}


def read(renderer: TemplateRenderer, draw: str) -> tuple[Message, tuple[CallSpan, ...]]:
    parser = renderer.parser(False, (Tool("bash"),))
    parser.feed(renderer.vocabulary.encode_split(draw).tolist())
    return parser.finish()[0], parser.calls


def shown(message: Message) -> list[Any]:
    return [
        (part.name, part.arguments, part.status, part.said) if isinstance(part, ToolCall) else part.text  # type: ignore[union-attr]
        for part in message.parts
    ]


def listed(*calls: str, end: str = "]") -> str:
    return f"[TOOL_CALLS][{', '.join(calls)}{end}"


def item(arguments: str = "{}", name: str = "bash", said: str = "abc123def") -> str:
    return f'{{"name": "{name}", "arguments": {arguments}, "id": "{said}"}}'


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (listed(item('{"b":  1}')), [("bash", '{"b":  1}', "ok", "abc123def")]),
        (listed('{"name": "bash", "arguments": {}}'), [("bash", "{}", "ok", "")]),
        (listed('{"name": "bash", "arguments": {}, "id": 7}'), [("bash", "{}", "ok", "")]),
        (
            f"Look.\n{listed(item(), item(name='f'))}",
            ["Look.\n", ("bash", "{}", "ok", "abc123def"), ("f", "{}", "unknown_tool", "abc123def")],
        ),
        (f"[TOOL_CALLS] [\n{item()}\n]\n", [("bash", "{}", "ok", "abc123def")]),
        (f"{listed(item())} Done.", [("bash", "{}", "ok", "abc123def"), " Done."]),
        (f"{listed(item())}{listed(item())}", [("bash", "{}", "ok", "abc123def")] * 2),
        (listed(item("[1]")), [("bash", "[1]", "malformed", "abc123def")]),
        (listed('{"name": "bash"}'), [("bash", "", "malformed", "")]),
        (listed(item('{"a": nope}')), [("bash", '{"a": nope}, "id": "abc123def"}]', "invalid_json", "")]),
        # Each call of a list that is broken further on is whole; the last one is not.
        (
            listed(item(), item(), end=""),
            [("bash", "{}", "ok", "abc123def"), ("bash", "{}", "invalid_json", "abc123def")],
        ),
        (listed(item(), end=","), [("bash", "{}", "invalid_json", "abc123def"), ","]),
        (listed(item(), "so"), [("bash", "{}", "invalid_json", "abc123def"), ", so]"]),
        (f"[TOOL_CALLS]{item()}", [("bash", "{}", "invalid_json", "abc123def")]),
        (listed('{"arguments": {}}', item()), ['{"arguments": {}}', ("bash", "{}", "ok", "abc123def")]),
        (listed('{"arguments": {}}'), [listed('{"arguments": {}}')]),
        (listed(), [listed()]),
        ("[TOOL_CALLS]", ["[TOOL_CALLS]"]),
    ],
)
def test_a_list_of_calls_is_read(model: Callable[[str], TemplateRenderer], draw: str, parts: list[Any]) -> None:
    assert shown(read(model("mistral_v7"), f"{draw}</s>")[0]) == parts


def test_a_list_that_is_cut_ends_in_an_unclosed_call(model: Callable[[str], TemplateRenderer]) -> None:
    for cut in ("", '"id": "a', '], "id"'):
        draw = f"{listed(item())[:-1]}, {item()[: -len(cut)] if cut else item()}"
        assert [call.status for call in read(model("mistral_v7"), draw)[0].calls] == ["ok", "unclosed"]


CALL = '[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]{"b":  1}'


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (CALL, [("bash", '{"b":  1}', "ok", "abc123def")]),
        (f"Look. {CALL}{CALL}", ["Look. ", *[("bash", '{"b":  1}', "ok", "abc123def")] * 2]),
        ("[TOOL_CALLS]bash[ARGS]{}", [("bash", "{}", "ok", "")]),
        ("[TOOL_CALLS] f\n[CALL_ID] abc123def [ARGS] {}\n", [("f", "{}", "unknown_tool", "abc123def")]),
        ("[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]{} and", [("bash", "{} and", "invalid_json", "abc123def")]),
        ("[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]", [("bash", "", "malformed", "abc123def")]),
        ("[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]{}[ARGS]", [("bash", "{}[ARGS]", "invalid_json", "abc123def")]),
        ("[TOOL_CALLS][ARGS]{}", ["[TOOL_CALLS][ARGS]{}"]),
        ("[TOOL_CALLS]bash{}", ["[TOOL_CALLS]bash{}"]),
    ],
)
def test_a_call_behind_tags_is_read(model: Callable[[str], TemplateRenderer], draw: str, parts: list[Any]) -> None:
    assert shown(read(model("mistral_v11"), f"{draw}</s>")[0]) == parts


def test_a_call_that_is_cut_is_unclosed_and_one_before_another_is_not(model: Callable[[str], TemplateRenderer]) -> None:
    renderer = model("mistral_v13")
    message, spans = read(renderer, '[THINK]why[/THINK]So[TOOL_CALLS]bash[ARGS]{"a": 1}[TOOL_CALLS]bash[ARGS]{"a')
    assert message.parts[:2] == (Thinking("why"), Text("So"))
    assert [(call.arguments, call.status) for call in message.calls] == [('{"a": 1}', "ok"), ('{"a', "unclosed")]
    assert [span.status for span in spans] == ["ok", "unclosed"]


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["mistral_v7", "mistral_v11"])
def test_a_result_names_the_id_that_the_model_gave_its_call(
    template: str, model: Callable[[str], TemplateRenderer]
) -> None:
    renderer = model(template)
    said = Message("assistant", (ToolCall("call0123456789abcdef", "bash", "{}", said="abc123def"),))
    result = Message("tool", (Text("out"),), call_id="call0123456789abcdef")
    unit = renderer.vocabulary.decode(renderer.unit([result], said, ()).tolist())
    assert unit == "[TOOL_RESULTS]abc123def[TOOL_CONTENT]out[/TOOL_RESULTS]"


@pytest.mark.parametrize("said", ["", "too long an id", "äöü456789"])
def test_an_id_that_the_template_would_refuse_is_shown_as_nine_characters(
    said: str, model: Callable[[str], TemplateRenderer]
) -> None:
    renderer = model("mistral_v11")
    called = Message("assistant", (ToolCall("call0123456789abcdef", "bash", "{}", said=said),))
    result = Message("tool", (Text("out"),), call_id="call0123456789abcdef")
    asked = Message("user", (Text("hi"),))
    whole = renderer.vocabulary.decode(renderer.whole([asked, called, result], (), Switches()).tolist())
    shown_in_call, shown_in_result = whole.split("[CALL_ID]")[1][:9], whole.split("[TOOL_RESULTS]")[1][:9]
    assert shown_in_call == shown_in_result
    assert shown_in_call.isalnum()
    assert shown_in_call.isascii()
    assert whole.split("[CALL_ID]")[1][9:].startswith("[ARGS]")


# --- the oracle -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tekkenizers() -> dict[int, Tekkenizer]:
    """Mistral's own tokenizer by version, with a small part of its vocabulary."""
    source = json.loads((Path(mistral_common.__file__).parent / "data/tekken_240911.json").read_text())
    names = ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
    specials = [dict(token) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    specials += [{"rank": len(specials) + n, "token_str": name, "is_control": True} for n, name in enumerate(names)]
    return {
        version: Tekkenizer(
            source["vocab"][:4000],
            specials,  # type: ignore[arg-type]
            source["config"]["pattern"],
            4000 + len(specials),
            len(specials),
            TokenizerVersion(f"v{version}"),
        )
        for version in VERSIONS
    }


def drawn(rng: random.Random) -> tuple[str, list[ToolCall]]:
    text = "".join(rng.choices(["look ", "日本", "\n", '"', "[TOOL", "x"], k=4)) + "."
    said = ["".join(rng.choices("abcXYZ0189", k=9)) for _ in range(rng.randrange(1, 4))]
    values: list[Any] = [text, 1, 2.5, None, [True], {"a": text}]
    spelled = [json.dumps({text: rng.choice(values)}, ensure_ascii=False) for _ in said]
    return text, [ToolCall("", "bash", arguments, said=one) for arguments, one in zip(spelled, said, strict=True)]


def theirs(calls: Sequence[ToolCall]) -> list[TheirCall]:
    return [TheirCall(id=one.said, function=FunctionCall(name=one.name, arguments=one.arguments)) for one in calls]


@pytest.mark.parametrize("version", VERSIONS)
def test_mistral_common_writes_and_reads_the_same(
    version: int, model: Callable[[str], TemplateRenderer], tekkenizers: dict[int, Tekkenizer]
) -> None:
    renderer, tokenizer = model(f"mistral_v{version}"), tekkenizers[version]
    for seed in range(60):
        text, calls = drawn(random.Random(seed))
        ids = VERSIONS[version](tokenizer).encode_assistant_message(
            AssistantMessage(content=text, tool_calls=theirs(calls)), False
        )
        draw = tokenizer.decode(ids, SpecialTokenPolicy.KEEP)
        pieces = renderer.write(Message("assistant", (Text(text), *calls)), False)
        assert draw == "".join(p if isinstance(p, str) else renderer.vocabulary.decode([p]) for p in pieces)
        _, blocks = _split_content_and_tool_calls(ids[:-1], tokenizer.get_special_token("[TOOL_CALLS]"))
        decoded = _decode_tool_calls(blocks, tokenizer)
        message, _ = read(renderer, draw)
        assert message.text == text
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [
            (call.function.name, json.loads(call.function.arguments)) for call in decoded
        ]
        if version < 13:
            assert [call.said for call in message.calls] == [call.id for call in decoded]


@pytest.mark.parametrize(
    ("version", "draw", "ours"),
    [
        (7, listed(item("{")), ["invalid_json"]),
        (7, listed(item("[1]")), ["malformed"]),
        (7, listed('{"name": "bash"}'), ["malformed"]),
        (7, listed(item(), end=""), ["invalid_json"]),
        (7, listed(item(), end=","), ["invalid_json", "missing_name"]),
        (11, "[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]{", ["invalid_json"]),
        (11, "[TOOL_CALLS]bash[CALL_ID]abc123def[ARGS]{} and", ["invalid_json"]),
        (13, "[TOOL_CALLS]bash[ARGS]{", ["invalid_json"]),
        (13, "[TOOL_CALLS]bash{}", ["missing_name"]),
    ],
)
def test_what_mistral_common_refuses_has_a_status(
    version: int,
    draw: str,
    ours: list[str],
    model: Callable[[str], TemplateRenderer],
    tekkenizers: dict[int, Tekkenizer],
) -> None:
    renderer, tokenizer = model(f"mistral_v{version}"), tekkenizers[version]
    _, spans = read(renderer, f"{draw}</s>")
    assert [span.status for span in spans] == ours
    ids: list[int] = []
    for piece in renderer.vocabulary.split(draw):
        if isinstance(piece, str):
            ids += tokenizer.encode(piece, bos=False, eos=False)
        else:
            ids.append(tokenizer.get_special_token(renderer.vocabulary.decode([piece])))
    with pytest.raises((InvalidToolCallError, ValueError)):
        _decode_tool_calls([ids], tokenizer)
