from __future__ import annotations

from collections.abc import Callable

import pytest

from bridle.messages import Message, Part, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.reply import THOUGHTS, Lines, ReplyFormat, write_reply
from bridle.rendering.seams import fitted
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_json import JsonCalls
from bridle.rendering.units import Units
from bridle.tokens import Vocabulary, concatenate, ids_of

MakeUnits = Callable[[Vocabulary, str], Units]

CALL = ToolCall("", "bash", '{"command": "ls"}')
SHAPES: list[tuple[Part, ...]] = [
    (Text("so"),),
    (CALL,),
    (CALL, CALL),
    (Text("so"), CALL),
    (Thinking("why"), Text("so")),
    (Thinking("why"), CALL),
    (Thinking("why"), Text("so"), CALL, CALL),
]


def source(start: int, begin: int, end: int, behind: int, called: int, lines: Lines) -> str:
    """A template with so many newlines everywhere."""

    def newlines(count: int) -> str:
        return f"'{chr(92)}n' * {count}"

    return f"""
{{%- for m in messages -%}}
    {{{{- '<|im_start|>' + m.role + ({newlines(start)} if m.role == 'assistant' else ':') -}}}}
    {{%- if m.reasoning_content -%}}
        {{{{- '<think>' + {newlines(begin)} + m.reasoning_content + {newlines(end)} + '</think>' -}}}}
        {{{{- ({newlines(called)}) if m.tool_calls and not m.content else ({newlines(behind)}) -}}}}
    {{%- endif -%}}
    {{{{- m.content -}}}}
    {{%- for c in m.tool_calls or [] -%}}
        {{%- if not loop.first -%}}{{{{- {newlines(lines.between)} -}}}}
        {{%- elif m.content -%}}{{{{- {newlines(lines.before)} -}}}}
        {{%- elif not m.reasoning_content -%}}{{{{- {newlines(max(0, lines.alone - start))} -}}}}
        {{%- endif -%}}
        {{{{- '<tool_call>{chr(92)}n{{"name": "' + c.function.name + '", "arguments": ' -}}}}
        {{{{- c.function.arguments | tojson + '}}{chr(92)}n</tool_call>' -}}}}
        {{{{- ({newlines(lines.last)}) if loop.last else '' -}}}}
    {{%- endfor -%}}
    {{{{- '<|im_end|>' -}}}}
{{%- endfor -%}}
{{{{- '<|im_start|>assistant' if add_generation_prompt else '' -}}}}
"""


@pytest.mark.parametrize(
    ("start", "thoughts", "lines"),
    [
        (0, (0, 0, 0, 0), Lines(0, 0, 0, 1, 0)),
        (1, (0, 0, 1, 1), Lines(1, 1, 1, 1, 0)),
        (0, (1, 0, 0, 1), Lines(1, 1, 1, 1, 1)),
        (0, (1, 1, 2, 3), Lines(1, 1, 0, 1, 0)),
        (2, (2, 1, 0, 2), Lines(2, 2, 2, 1, 2)),
    ],
)
def test_the_newlines_of_a_template_are_counted_written_and_taken_off(
    tiny: TemplateRenderer,
    units_of_template: MakeUnits,
    start: int,
    thoughts: tuple[int, int, int, int],
    lines: Lines,
) -> None:
    begin, end, behind, called = thoughts
    units = units_of_template(tiny.vocabulary, source(start, begin, end, behind, called, lines))
    form = fitted(units, ReplyFormat(tiny.vocabulary, tiny.stop_ids, JsonCalls(), opened_line=False))
    assert form.thoughts == THOUGHTS[0]._replace(begin=begin, end=end, behind=behind, called=called)
    assert (form.start, form.lines) == (start, lines)
    for parts in SHAPES:
        message, question = Message("assistant", parts), Message("user", (Text("one"),))
        pieces = write_reply(form, message, thinking_open=False)
        reply = concatenate([ids_of([p]) if isinstance(p, int) else form.vocabulary.encode(p) for p in pieces])
        stock = tiny.vocabulary.decode(units.whole([question, message], (), Switches()).tolist())
        prompt = tiny.vocabulary.decode(units.whole([question], (), Switches(), generation=True).tolist())
        assert stock.startswith(prompt + tiny.vocabulary.decode(reply.tolist()) + "<|im_end|>")
        parser = form.parser(False, (Tool("bash"),))
        parser.feed([*reply.tolist(), form.stop_ids[0]])
        assert parser.finish()[0] == message


@pytest.mark.parametrize(
    ("closing", "endings"),
    [("<|im_end|>", ("<|im_end|>", "<|im_end|>")), ("", ("<|im_start|>", "<|endoftext|>"))],
)
def test_an_answer_ends_as_the_template_ends_it_or_with_what_begins_the_next_message(
    tiny: TemplateRenderer, units_of_template: MakeUnits, closing: str, endings: tuple[str, str]
) -> None:
    template = (
        "{%- for m in messages -%}"
        "{{- ('<|endoftext|>' if m.role == 'tool' else '<|im_start|>') + m.role + m.content -}}"
        "{%- for c in m.tool_calls or [] -%}{{- c.function | tojson -}}{%- endfor -%}"
        f"{{{{- '{closing}' -}}}}{{%- endfor -%}}{{{{- '<|im_start|>assistant' if add_generation_prompt else '' -}}}}"
    )
    units = units_of_template(tiny.vocabulary, template)
    controls = tiny.vocabulary.controls
    stops = (controls["<|im_end|>"], controls["<|im_start|>"], controls["<|endoftext|>"])
    form = fitted(units, ReplyFormat(tiny.vocabulary, stops, None, opened_line=False))
    assert form.endings == tuple(controls[tag] for tag in endings)
    assert form.write(Message("assistant", (Text("so"),)), False)[-1] == controls[endings[0]]
