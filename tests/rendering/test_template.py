from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bridle.errors import ConfigError
from bridle.messages import Message, Switches, Text, Thinking, Tool
from bridle.rendering.template import TemplateRenderer, load_renderer

Model = Callable[..., Path]

GLM_LIKE = """
{{- '<|endoftext|>' }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_start|>' ~ m.content }}
    {%- elif m.role == 'assistant' %}{{- '<think>' ~ m.content }}
        {%- for call in m.tool_calls %}
            {%- set call = {'name': call.function.name, 'arguments': call.function.arguments} %}
            {{- '<tool_call>\\n' ~ (call | tojson) ~ '\\n</tool_call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}{{- '<tool_response>' ~ m.content }}
    {%- else %}{{- '<|im_end|>' ~ m.content }}
    {%- endif %}
{%- endfor %}
{{- '<think>' if add_generation_prompt }}
"""


@pytest.fixture
def model(tiny_directory: Path, tmp_path: Path) -> Model:
    """A model directory like the tiny one but for its template and the files named."""

    def make(template: object, **files: object) -> Path:
        shutil.copytree(tiny_directory, tmp_path, dirs_exist_ok=True)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return make


def template_of(directory: Path) -> str:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    return str(config["chat_template"])


def test_the_closing_token_and_the_models_own_stop_ids_end_a_turn(tiny: TemplateRenderer) -> None:
    controls = tiny.vocabulary.controls
    assert tiny.stop_ids == (controls["<|im_end|>"], controls["<|endoftext|>"])
    assert tiny.closing.tolist() == [controls["<|im_end|>"], *tiny.vocabulary.encode("\n").tolist()]


def test_the_generation_prompt_follows_the_thinking_switch(tiny: TemplateRenderer) -> None:
    prompts = {switch: tiny.generation(Switches(switch)) for switch in (None, True, False)}
    spelled = {switch: tiny.vocabulary.decode(prompt.ids.tolist()) for switch, prompt in prompts.items()}
    assert spelled[None] == spelled[True] == "<|im_start|>assistant\n"
    assert spelled[False] == "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert not any(prompt.thinking_open for prompt in prompts.values())


def test_a_prompt_that_opens_reasoning_is_known_and_written_for(tiny_directory: Path, model: Model) -> None:
    opening = template_of(tiny_directory).replace(
        "{{- '<|im_start|>assistant\\n' }}\n    {{- '<think>",
        "{{- '<|im_start|>assistant\\n<think>\\n' }}\n    {{- '<think>",
    )
    renderer = load_renderer(model(opening))
    prompt = renderer.generation(Switches())
    assert prompt.thinking_open
    assert renderer.thinking_end == renderer.vocabulary.controls["</think>"]
    assert renderer.write(Message("assistant", (Thinking("why"),)), True)[0] == "why\n"
    parser = renderer.parser(True, ())
    parser.feed(renderer.vocabulary.encode_split("why\n</think>\n\nso<|im_end|>").tolist())
    assert parser.finish()[0].parts == (Thinking("why"), Text("so"))


def test_where_nothing_closes_a_message_the_next_ones_openers_stop_a_turn(model: Model, tiny: TemplateRenderer) -> None:
    controls = tiny.vocabulary.controls
    openers = [controls["<|im_start|>"], controls["<tool_response>"]]
    renderer = load_renderer(model(GLM_LIKE, generation_config={"eos_token_id": openers}))
    assert renderer.closing.tolist() == []
    assert renderer.facts.extendable, renderer.facts.why_not
    assert set(openers) < set(renderer.stop_ids)


@pytest.mark.parametrize("text", ["\n", " ", "."])
def test_text_before_the_closing_token_stops_nothing_and_forbids_extending(
    tiny_directory: Path, model: Model, text: str
) -> None:
    source = template_of(tiny_directory)
    end = "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == 'tool'"
    assert end in source
    spelled = text.replace("\n", "\\n")
    renderer = load_renderer(model(source.replace(end, end.replace("<|im_end|>", f"{spelled}<|im_end|>"))))
    controls = renderer.vocabulary.controls
    assert renderer.stop_ids == (controls["<|im_end|>"], controls["<|endoftext|>"])
    assert not renderer.facts.extendable
    assert "before the token that closes it" in renderer.facts.why_not
    said = Message("assistant", (Text("One.\n Two."),))
    written = renderer.write(said, False)
    assert written == ["One.\n Two.", controls["<|im_end|>"]]
    parser = renderer.parser(False, ())
    parser.feed(renderer.vocabulary.encode("One.\n Two.").tolist())
    assert parser.finish()[0] == said


def test_where_only_text_follows_a_message_the_models_own_files_say_what_stops(model: Model) -> None:
    source = GLM_LIKE.replace("'<think>' ~ m.content", "'<think>' ~ m.content ~ '\\n'")
    renderer = load_renderer(model(source))
    controls = renderer.vocabulary.controls
    assert renderer.closing.tolist() == renderer.vocabulary.encode("\n").tolist()
    assert renderer.stop_ids == (controls["<|im_end|>"], controls["<|endoftext|>"])
    assert not renderer.facts.extendable


def test_the_form_of_calls_is_the_one_that_reads_what_the_template_writes(model: Model, tiny_directory: Path) -> None:
    source = template_of(tiny_directory).replace('<tool_call>\\n{"name": "\' ~', "<tool_call>call ' ~")
    renderer = load_renderer(model(source))
    assert [note.what for note in renderer.facts.role_rules] == ["role_mapped", "no_tool_calls"]
    parser = renderer.parser(False, (Tool("bash"),))
    sampled = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
    parser.feed(renderer.vocabulary.encode_split(sampled).tolist())
    assert parser.finish()[0].parts == (Text(sampled),)


def test_a_form_of_calls_can_be_named_and_an_unknown_one_is_refused(tiny_directory: Path) -> None:
    parser = load_renderer(tiny_directory, calls="hermes").parser(False, (Tool("bash"),))
    assert parser.finish()[0].parts == ()
    with pytest.raises(ConfigError, match='did you mean "hermes"'):
        load_renderer(tiny_directory, calls="hermse")


def test_a_template_in_a_file_of_its_own_is_preferred_and_may_know_no_tools(model: Model) -> None:
    directory = model("{{ raise_exception('not this one') }}")
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
        "{{ '<|im_start|>' if add_generation_prompt }}"
    )
    facts = load_renderer(directory).facts
    assert facts.extendable, facts.why_not
    assert not facts.has_tools


def test_of_several_templates_the_one_for_tools_is_taken(tiny_directory: Path, model: Model) -> None:
    named = [
        {"name": "default", "template": "{{ raise_exception('not this one') }}"},
        {"name": "tool_use", "template": template_of(tiny_directory)},
    ]
    assert load_renderer(model(named)).facts.has_tools


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{% if %}", "does not compile, line 1"),
        ("{{ raise_exception('never') }}", "cannot be used: the chat template refused the conversation: never"),
        ("{% for m in messages %}<|im_start|>{% endfor %}", "does not write assistant messages out"),
        (
            "{{ messages[0].content + messages[-1].content }}{{ 'x' if not add_generation_prompt }}",
            "does not write the same generation prompt behind every conversation",
        ),
    ],
)
def test_an_unusable_template_is_refused_with_the_reason(model: Model, template: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_renderer(model(template))


def test_a_broken_tokenizer_config_is_refused_by_path(model: Model) -> None:
    directory = model("{{ messages }}")
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is no valid JSON"):
        load_renderer(directory)


def test_a_model_that_nothing_stops_is_refused(model: Model) -> None:
    directory = model(GLM_LIKE, generation_config={})
    config = json.loads((directory / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="nothing ends a turn"):
        load_renderer(directory)
