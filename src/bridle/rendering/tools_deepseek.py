"""Tool calls of DeepSeek: V3 and R1 in fences, V3.1 bare, V3.2 and V4 in DSML.

DSML is tags of text around one token, `｜DSML｜`. A string stands in it as it is, every other value as JSON, so the
arguments are an object put together from them: keys in their order, JSON as it was sampled, a value that is none as a
string (`invalid_json`). Where not all of a call can be read, its arguments are what was sampled between its tags: a
part of an object must not be mistaken for all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from bridle.errors import TemplateError
from bridle.messages import CallStatus, Text, ToolCall
from bridle.rendering.calls import (
    BLANKS,
    Block,
    Found,
    SectionForm,
    Tag,
    TaggedForm,
    Tools,
    is_json,
    json_call,
    parsed,
    plain_name,
    status_of,
)
from bridle.rendering.tools_json import scan_object

FENCE = re.compile(r"```json\n(.*)\n```", re.DOTALL)


class DeepSeekSection(SectionForm):
    """What V3 and V3.1 have in common."""

    opens = ("<｜tool▁calls▁begin｜>",)
    closes = ("<｜tool▁calls▁end｜>",)
    begin = "<｜tool▁call▁begin｜>"
    separator = "<｜tool▁sep｜>"
    end = "<｜tool▁call▁end｜>"
    inner = (begin, separator, end)

    def _written(self, calls: Sequence[tuple[str, str]], between: str) -> list[list[str]]:
        """`calls`: what stands before and behind the separator."""
        pieces: list[str] = [Tag(self.opens[0])]
        for number, (head, tail) in enumerate(calls):
            pieces += [between if number else "", Tag(self.begin), head, Tag(self.separator), tail, Tag(self.end)]
        return [[*pieces, Tag(self.closes[0])]]


class FencedCalls(DeepSeekSection):
    """V3 and R1: the kind of the call, the separator, its name on a line, its arguments in a fence."""

    def call(self, head: str, tail: str, closed: bool, tools: Tools) -> ToolCall | None:
        name, _, rest = (part.strip(BLANKS) for part in tail.partition("\n"))
        if not name or "\n" not in tail:
            return None
        if fence := FENCE.fullmatch(rest):
            return json_call(name, fence[1], closed, tools)
        arguments = rest.removeprefix("```json").strip(BLANKS)
        return ToolCall("", name, arguments, status_of(name, arguments, tools, closed, complete=False))

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        tails = [f"{plain_name(call)}\n```json\n{call.arguments}\n```" for call in calls]
        return self._written([("function", tail) for tail in tails], between="\n")


class BareCalls(DeepSeekSection):
    """V3.1: name, separator, arguments."""

    def call(self, head: str, tail: str, closed: bool, tools: Tools) -> ToolCall | None:
        name = head.strip(BLANKS)
        return json_call(name, tail, closed, tools) if name else None

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return self._written([(plain_name(call), call.arguments) for call in calls], between="")


# --- DSML -------------------------------------------------------------------------------------------------------------

DSML = "｜DSML｜"
MARK = re.compile(f"</?{DSML}(?:function_calls|tool_calls)>|<{DSML}invoke|</{DSML}invoke>")
INVOKE = re.compile(rf'<{DSML}invoke\s+name="([^"]+)"\s*>')
PARAMETER = re.compile(rf'[{BLANKS}]*<{DSML}parameter\s+name="([^"]*)"\s+string="(true|false)"\s*>')
PARAMETER_END = f"</{DSML}parameter>"


class DsmlCalls(TaggedForm):
    """V4: invocations in a block of `tool_calls`; an invocation without a block is read too. Blanks between tags are
    scaffold."""

    opens = ()
    closes = ()
    inner = (DSML,)
    bare = f"<{DSML}"
    amid = True
    before = alone = 2
    between = after = 0
    word = "tool_calls"

    def read(self, block: Block, tools: Tools) -> list[Found]:
        found = list(_invocations(block, tools))
        return found if any(isinstance(one.part, ToolCall) for one in found) else []

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        pieces = ["<", Tag(DSML), f"{self.word}>"]
        for call in calls:
            pieces += ["\n<", Tag(DSML), f'invoke name="{plain_name(call)}">\n']
            for number, (key, value, text) in enumerate(_members(call)):
                pieces += ["\n" if number else "", "<", Tag(DSML), f'parameter name="{key}" string="{text}">', value]
                pieces += ["</", Tag(DSML), "parameter>"]
            pieces += ["\n</", Tag(DSML), "invoke>"]
        return [[*pieces, "\n</", Tag(DSML), f"{self.word}>"]]


class FunctionDsmlCalls(DsmlCalls):
    """V3.2: the block is called `function_calls`."""

    word = "function_calls"


def _members(call: ToolCall) -> Iterator[tuple[str, str, str]]:
    """-> key, value and whether the value is text ("true", "false")."""
    scan = scan_object(call.arguments)
    if not isinstance(parsed(call.arguments), dict):
        raise TemplateError(f"the arguments of {call.name!r} are no JSON object; this model writes them as parameters")
    for key in scan.spans:
        if '"' in key:
            raise TemplateError(f"a parameter of {call.name!r} is called {key!r}, which this model cannot write")
        value = parsed(scan.value(key))
        yield key, *((value, "true") if isinstance(value, str) else (scan.value(key), "false"))


def _invocations(block: Block, tools: Tools) -> Iterator[Found]:
    text, structure = block.text, _structure(block)
    at, start = 0, -1
    for mark in (*MARK.finditer(structure), None):
        begin, end = mark.span() if mark else (len(text), len(text))
        if start >= 0:
            closed = mark is not None and mark[0] == f"</{DSML}invoke>"
            at = end if closed else begin
            yield _invocation(block, structure, start, (begin, at), tools)
            start = -1
        elif mark is not None and mark[0] == f"</{DSML}invoke>":
            continue
        elif text[at:begin].strip(BLANKS):
            opens = mark is not None and not mark[0].startswith("</")
            yield Found(Text(_above(text[at:begin]) if opens else text[at:begin]), at, begin)
        if mark is not None and mark[0] == f"<{DSML}invoke":
            start = begin
        else:
            at = end


def _above(text: str) -> str:
    """`text` without the newlines that are written before a block."""
    return text.removesuffix("\n").removesuffix("\n")


def _structure(block: Block) -> str:
    """`block.text` without the text that merely spells the token, every character in its place."""
    return "".join(piece if isinstance(piece, Tag) else piece.replace("｜", "|") for piece in block.pieces)


def _invocation(block: Block, structure: str, start: int, ends: tuple[int, int], tools: Tools) -> Found:
    """`ends`: of what stands in it, and of it."""
    body_end, end = ends
    header = INVOKE.match(structure, start, body_end)
    if header is None:
        return Found(Text(block.text[start:end]), start, end, unnamed=True)
    name, body = block.text[slice(*header.span(1))], slice(header.end(), body_end)
    read = _arguments(block.text[body], structure[body]) if body_end < end else None
    if read is None:
        status: CallStatus = "malformed" if body_end < end else "unclosed"
        return Found(ToolCall("", name, block.text[body].strip(BLANKS), status), start, end)
    arguments, status = read
    status = status_of(name, arguments, tools) if status == "ok" else status
    return Found(ToolCall("", name, arguments, status), start, end)


def _arguments(body: str, structure: str) -> tuple[str, CallStatus] | None:
    """None where something else than parameters stands among them, or one is not closed."""
    members: list[tuple[str, str]] = []
    status: CallStatus = "ok"
    at = 0
    while parameter := PARAMETER.match(structure, at):
        end = structure.find(PARAMETER_END, parameter.end())
        if end < 0:
            return None
        key, value = body[slice(*parameter.span(1))], body[parameter.end() : end]
        if parameter[2] == "false" and is_json(value):
            value = value.strip(BLANKS)
        else:
            status = status if parameter[2] == "true" else "invalid_json"
            value = json.dumps(value, ensure_ascii=False)
        members.append((json.dumps(key, ensure_ascii=False), value))
        at = end + len(PARAMETER_END)
    if structure[at:].strip(BLANKS):
        return None
    if len({key for key, _ in members}) < len(members):
        status = "malformed"
    return f"{{{', '.join(f'{key}: {value}' for key, value in members)}}}", status
