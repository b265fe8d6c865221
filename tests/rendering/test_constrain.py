"""How calls are spelled, found in what a family writes: for its own writer and for stand-ins of other families."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest

from bridle.errors import TemplateError
from bridle.messages import Message, Text, Thinking, Tool, ToolCall
from bridle.rendering.constrain import Writer, spell_calls
from bridle.rendering.template import load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.tokens import CallSpelling, Pieces

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = (Tool("read", parameters=PATH), Tool("read_all"), Tool("größer 🐎", parameters={"type": "object"}))
STOP, OPEN, CLOSE, THINK, THOUGHT, SEP, KEY = range(100, 107)

Pieced = list[str | int]


def family(calls: Callable[[Sequence[ToolCall]], Pieced], thinks: bool = True) -> Writer:
    def write(message: Message, thinking_open: bool) -> Pieced:
        pieces: Pieced = []
        for part in message.parts:
            if isinstance(part, Thinking):
                if not thinks:
                    raise TemplateError("no reasoning")
                pieces += [THINK, f"\n{part.text}\n", THOUGHT, "\n\n"]
        return [*pieces, *(calls(message.calls) if message.calls else [message.text]), STOP]

    return write


def tagged(calls: Sequence[ToolCall]) -> Pieced:
    """Hermes, Qwen."""
    written: Pieced = []
    for number, call in enumerate(calls):
        written += [*(["\n"] if number else []), OPEN, f"\n{as_json(call)}\n", CLOSE]
    return written


def listed(calls: Sequence[ToolCall]) -> Pieced:
    """Older Mistral."""
    return [OPEN, f"[{', '.join(map(as_json, calls))}]"]


def chained(calls: Sequence[ToolCall]) -> Pieced:
    """Newer Mistral: nothing ends a call."""
    return [piece for call in calls for piece in (OPEN, call.name, SEP, call.arguments)]


def sectioned(calls: Sequence[ToolCall]) -> Pieced:
    """DeepSeek: calls with tags of their own in a section."""
    inside = [piece for call in calls for piece in (SEP, f"{call.name}\n```json\n{call.arguments}\n```", KEY)]
    return [OPEN, *inside, CLOSE]


def numbered(calls: Sequence[ToolCall]) -> Pieced:
    """Kimi: each call says which one it is."""
    return [piece for number, call in enumerate(calls) for piece in (SEP, f"{call.name}:{number}", KEY, call.arguments)]


def bare(calls: Sequence[ToolCall]) -> Pieced:
    """Llama: no tag at all."""
    return ["; ".join(map(as_json, calls))]


def members(calls: Sequence[ToolCall]) -> Pieced:
    """Qwen3-Coder: arguments one by one, as text."""
    written: Pieced = []
    for number, call in enumerate(calls):
        said = "".join(
            f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in json.loads(call.arguments).items()
        )
        written += [*(["\n"] if number else []), OPEN, f"\n<function={call.name}>\n{said}</function>\n", CLOSE]
    return written


def keyed(calls: Sequence[ToolCall]) -> Pieced:
    """GLM: arguments one by one, between tags of their own."""
    written: Pieced = []
    for call in calls:
        pairs = [(KEY, name, SEP, str(value)) for name, value in json.loads(call.arguments).items()]
        written += [OPEN, call.name, *(piece for pair in pairs for piece in pair), CLOSE]
    return written


def as_json(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


FAMILIES = {form.__name__: family(form) for form in (tagged, listed, chained, sectioned, bare, members, keyed)}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return load_renderer(make_tokenizer(tmp_path_factory.mktemp("tiny"))).write


def spelled(write: Writer, tools: Sequence[Tool] = TOOLS) -> CallSpelling:
    found = spell_calls(write, tools)
    assert found is not None
    return found


def flat(pieces: Sequence[str | int]) -> list[str | int]:
    return [symbol for piece in pieces for symbol in ([piece] if isinstance(piece, int) else piece)]


def composed(spelling: CallSpelling, calls: Sequence[tuple[int, Sequence[str | int]]]) -> list[str | int]:
    """What the spelling makes of calls: the number of a tool, and its arguments as they are written."""
    between: Pieces = spelling.between or ()
    whole: Pieced = [*spelling.open]
    for number, (tool, arguments) in enumerate(calls):
        whole += [*(between if number else ()), *spelling.tools[tool].begin, *arguments, *spelling.tools[tool].end]
    return flat([*whole, *spelling.close])


@pytest.mark.parametrize("form", ["own", "tagged", "listed", "chained", "sectioned", "bare"])
def test_calls_put_together_as_spelled_are_those_the_family_writes(form: str, own: Writer) -> None:
    write = own if form == "own" else FAMILIES[form]
    spelling = spelled(write)
    assert spelling.between is not None
    for count in (1, 2, 3):
        for chosen in product(range(len(TOOLS)), repeat=count):
            arguments = [f'{{"path": {json.dumps("x" * n)}}}' for n in range(count)]
            calls = [ToolCall("", TOOLS[tool].name, said) for tool, said in zip(chosen, arguments, strict=True)]
            written = write(Message("assistant", tuple(calls)), False)[:-1]
            assert composed(spelling, list(zip(chosen, arguments, strict=True))) == flat(written)


@pytest.mark.parametrize("form", ["members", "keyed"])
def test_arguments_that_are_no_json_are_what_stands_between_name_and_end(form: str) -> None:
    spelling = spelled(FAMILIES[form])
    assert [tool.schema for tool in spelling.tools] == [None] * len(TOOLS)
    assert spelling.tools[0].inner == ((KEY, SEP) if form == "keyed" else ())
    written = FAMILIES[form](Message("assistant", (ToolCall("", "read", '{"path": "a", "n": 1}'),)), False)[:-1]
    begin, end = flat(spelling.tools[0].begin), flat(spelling.tools[0].end)
    assert flat(written)[: len(begin)] == begin
    assert flat(written)[-len(end) :] == end
    calls = tuple(ToolCall("", name, "{}") for name in ("read", "read_all", "read"))
    assert flat(FAMILIES[form](Message("assistant", calls), False)[:-1]) == composed(
        spelling, [(0, []), (1, []), (0, [])]
    )


def test_arguments_are_objects_of_the_tools_own_schema(own: Writer) -> None:
    assert [tool.schema for tool in spelled(own).tools] == [PATH, {"type": "object"}, {"type": "object"}]


def test_only_one_call_is_spelled_where_it_is_not_known_how_several_go_together() -> None:
    for tools in (TOOLS, TOOLS[:1]):
        spelling = spelled(family(numbered), tools)
        assert (spelling.between, spelling.open, spelling.close) == (None, (), ())
        assert spelling.tools[0].begin == (SEP, "read:0", KEY)


@pytest.mark.parametrize(("form", "mark"), [("tagged", OPEN), ("sectioned", OPEN), ("bare", None)])
def test_the_id_that_begins_calls_is_known(form: str, mark: int | None) -> None:
    assert spelled(FAMILIES[form]).mark == mark


def test_an_id_that_begins_other_things_too_is_no_mark_of_calls_or_reasoning() -> None:
    """gpt-oss: all it says comes in messages of one kind."""
    channels = {Text: "final", Thinking: "analysis", ToolCall: "commentary"}

    def write(message: Message, thinking_open: bool) -> Pieced:
        pieces: Pieced = []
        for part in message.parts:
            said = (f" to={part.name}", part.arguments) if isinstance(part, ToolCall) else ("", part.text)  # type: ignore[union-attr]
            pieces += [OPEN, channels[type(part)] + said[0], SEP, said[1], CLOSE]
        return [*pieces, STOP]

    spelling = spelled(write)
    assert (spelling.mark, spelling.thinking) == (None, None)
    assert spelling.thought == ((OPEN, "analysis", SEP), (CLOSE,))
    assert spelling.tools[0].begin == (OPEN, "commentary to=read", SEP)


@pytest.mark.parametrize("form", ["tagged", "bare"])
def test_what_stands_around_reasoning_before_calls_is_known_but_for_its_own_lines(form: str) -> None:
    spelling = spelled(FAMILIES[form])
    assert (spelling.thinking, spelling.thought) == (THINK, ((THINK,), (THOUGHT, "\n\n")))


def test_a_family_that_does_not_reason_has_nothing_for_it() -> None:
    def unthinking(message: Message, thinking_open: bool) -> Pieced:
        return [*tagged(message.calls), STOP]

    for write in (family(tagged, thinks=False), unthinking):
        spelling = spelled(write)
        assert (spelling.mark, spelling.thinking, spelling.thought) == (OPEN, None, None)


def test_blanks_in_front_of_calls_are_no_part_of_them() -> None:
    """GLM."""

    def lined(calls: Sequence[ToolCall]) -> Pieced:
        return ["\n", *tagged(calls)]

    spelling, plain = spelled(family(lined)), spelled(FAMILIES["tagged"])
    assert spelling.lead == "\n"
    assert spelling.thought == ((THINK,), (THOUGHT, "\n\n\n"))
    assert (spelling.tools, spelling.between, spelling.mark) == (plain.tools, plain.between, plain.mark)


def test_calls_whose_arguments_are_text_that_text_alone_ends_are_spelled_one_at_a_time() -> None:
    """LFM: a list of calls as a program would have them."""

    def program(calls: Sequence[ToolCall]) -> Pieced:
        return [OPEN, f"[{', '.join(f'{c.name}({list(json.loads(c.arguments).items())})' for c in calls)}]", CLOSE]

    spelling = spelled(family(program))
    assert (spelling.open, spelling.between, spelling.close) == ((), None, ())
    assert (spelling.tools[0].begin, spelling.tools[0].end) == ((OPEN, "[read(["), ("])]", CLOSE))


def test_a_family_without_calls_has_no_spelling(tmp_path: Path) -> None:
    renderer = load_renderer(make_tokenizer(tmp_path), calls="none")
    assert spell_calls(renderer.write, TOOLS) is None


def test_tools_that_are_written_alike_have_no_spelling() -> None:
    def nameless(calls: Sequence[ToolCall]) -> Pieced:
        return [OPEN, *(call.arguments for call in calls), CLOSE]

    assert spell_calls(family(nameless), TOOLS) is None


def test_a_tool_that_is_offered_twice_is_one(own: Writer) -> None:
    assert [tool.name for tool in spelled(own, [*TOOLS, TOOLS[0]]).tools] == [tool.name for tool in TOOLS]


def test_text_is_no_part_of_a_call(own: Writer) -> None:
    call = ToolCall("", "read", "{}")
    written = own(Message("assistant", (Text("I look."), call)), False)[:-1]
    assert flat(written)[-len(composed(spelled(own), [(0, "{}")])) :] == composed(spelled(own), [(0, "{}")])
