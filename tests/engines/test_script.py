from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.engines.calls import Call
from bridle.engines.script import Script, ScriptTurn, answered, load, reply
from bridle.errors import ConfigError, EngineError
from bridle.messages import Message, ModelRequest, Role, Text, Thinking, Tool

BASH = Tool("Bash")


def request(*said: tuple[Role, str], tools: tuple[Tool, ...] = (), **headers: str) -> ModelRequest:
    messages = tuple(Message(role, (Text(text),)) for role, text in said)
    return ModelRequest("anthropic", "m", messages, tools, headers=headers)


def script(*threads: dict[str, Any], **rest: Any) -> Script:
    return msgspec.convert({"threads": threads, **rest}, Script)


def test_a_file_is_read_in_yaml_and_in_json(tmp_path: Path) -> None:
    document = {"expect": {"samples": 1, "reasons": ["forced"]}, "threads": [{"turns": [{"text": "hello"}]}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (tmp_path / "a.yaml").write_text("expect: {samples: 1, reasons: [forced]}\nthreads: [{turns: [{text: hello}]}]\n")
    assert load(tmp_path / "a.json") == load(tmp_path / "a.yaml")
    assert load(tmp_path / "a.yaml").threads[0].turns[0].text == "hello"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "threads: [{turns: [{txt: hello}]}]",
            r'threads\[0\]\.turns\[0\]\.txt: unknown key "txt": did you mean "text"',
        ),
        ("threds: []", 'threds: unknown key "threds": did you mean "threads"'),
        ("threads: []", "at least one thread"),
        ("threads: [{turns: []}]", r"threads\[0\]: a thread needs at least one turn"),
        ("threads: [{kind: side, turns: [{}]}]", "side"),
        ("threads: [{turns: [{calls: [{shell: ls, tool: Bash}]}]}]", "one of `shell`, `read`"),
        ("threads: [{turns: [{calls: [{shell: ls, arguments: {}}]}]}]", "takes no arguments"),
        ("threads: [{turns: [{raw: x, text: y}]}]", "or `raw`"),
        ("threads: [{when: {header_contains: x}, turns: [{}]}]", "needs the name of the `header`"),
        ("threads: [{turns: [{when: {}, text: y}]}]", "belongs to a thread"),
        ("resegment: 2\nthreads: [{turns: [{}]}]", "probability"),
        ("threads: [", "neither YAML nor JSON"),
    ],
)
def test_a_broken_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load(tmp_path / "s.yaml")
    assert "s.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.yaml"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"system_contains": "be terse"}, True),
        ({"system_contains": "first"}, False),
        ({"first_user_contains": "first"}, True),
        ({"first_user_contains": "last"}, False),
        ({"last_user_contains": "last"}, True),
        ({"last_user_contains": "first"}, False),
        ({"prompt_contains": "result"}, True),
        ({"prompt_contains": "absent"}, False),
        ({"header": "X-Agent"}, True),
        ({"header": "x-other"}, False),
        ({"header": "x-agent", "header_contains": "ab"}, True),
        ({"header": "x-agent", "header_contains": "zz"}, False),
        ({"result_contains": "second"}, True),
        ({"result_contains": "first"}, False),
        ({"turns_at_least": 2}, True),
        ({"turns_at_least": 3}, False),
        ({"offers": "Bash"}, True),
        ({"offers": "complete_task"}, False),
        ({"tools": "some"}, True),
        ({"tools": "none"}, False),
        ({"tools": "some", "header": "x-other"}, False),
    ],
)
def test_a_thread_takes_a_request_when_all_its_conditions_hold(when: dict[str, Any], holds: bool) -> None:
    messages: tuple[tuple[Role, str], ...] = (
        ("system", "be terse"),
        ("user", "first"),
        ("assistant", "ok"),
        ("tool", "first result"),
        ("assistant", "ok"),
        ("tool", "second result"),
        ("user", "last"),
    )
    asked = request(*messages, tools=(BASH,), **{"x-agent": "abc"})
    found = script({"when": when, "turns": [{}]}, {"turns": [{}]}).thread(asked)
    assert (found == 0) is holds


def test_a_request_no_thread_wants_is_an_error_that_describes_it() -> None:
    with pytest.raises(EngineError, match="starts 'hello'"):
        script({"when": {"tools": "some"}, "turns": [{}]}).thread(request(("user", "hello")))


def test_the_turn_follows_the_answers_in_the_conversation_and_the_last_repeats() -> None:
    thread = script({"turns": [{"text": "one"}, {"text": "two"}]}).threads[0]
    assert thread.turn(request(("user", "go"))).text == "one"
    assert thread.turn(request(("user", "go"), ("assistant", "one"), ("user", "on"))).text == "two"
    said: tuple[tuple[Role, str], ...] = (("user", "go"), ("assistant", "one")) * 4
    assert thread.turn(request(*said)).text == "two"


def test_an_answer_echoed_in_several_messages_counts_once() -> None:
    echoed: tuple[Role, ...] = ("user", "assistant", "assistant", "tool", "assistant")
    assert answered(tuple(Message(role) for role in echoed)) == 2


def test_the_first_alternative_that_holds_is_taken() -> None:
    turn = {"alternatives": [{"when": {"prompt_contains": "SUBMIT"}, "text": "submitted"}, {"text": "done"}]}
    thread = script({"turns": [turn]}).threads[0]
    assert thread.turn(request(("user", "echo SUBMIT"))).text == "submitted"
    assert thread.turn(request(("user", "go"))).text == "done"


def test_no_alternative_that_holds_is_an_error() -> None:
    turn = {"alternatives": [{"when": {"prompt_contains": "SUBMIT"}, "text": "submitted"}]}
    with pytest.raises(EngineError, match="none of 1 alternatives"):
        script({"turns": [turn]}).threads[0].turn(request(("user", "go")))


def test_named_tools_and_exact_argument_texts_are_kept_as_written() -> None:
    calls = (Call(tool="Edit", arguments={"b": "ä", "a": 1}), Call(tool="Edit", arguments_text='{"b":  1, "a":2}'))
    message = reply(ScriptTurn(thinking="hm", text="so", calls=calls), ())
    assert [call.arguments for call in message.calls] == ['{"b": "ä", "a": 1}', '{"b":  1, "a":2}']
    assert isinstance(message.parts[0], Thinking)
    assert message.text == "so"


def test_the_script_in_the_documentation_is_a_script(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text()
    (tmp_path / "s.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    found = load(tmp_path / "s.yaml")
    assert found.expect.samples == 1
    assert len(found.threads[0].turns) == 3
