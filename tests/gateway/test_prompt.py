"""Whatever an agent does to its history, every sampled token is kept once, and what cannot be proved forks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridle.engines.calls import Call
from bridle.engines.script import Expect, Script, ScriptTurn, Thread, When
from bridle.messages import KindRule, Note
from bridle.rendering.template import TemplateRenderer
from bridle.testing.agents import Habit, Wire
from bridle.testing.exchange import exchange
from bridle.testing.ground import shell
from bridle.tokens import Ids, concatenate

END = ScriptTurn(text="All done.")
LINEAR = (
    shell("ls", thinking="First I look.", text="I look."),
    shell("cat a.py", "cat b.py", text="Two files."),
    shell("sed -i s/a/b/ a.py"),
    END,
)


def blocks(*kinds: str) -> Habit:
    """Keeps the blocks of an anthropic message that are not of `kinds`."""
    return lambda message: [{**message, "content": [b for b in message["content"] if b["type"] not in kinds]}]


def each_block(change: Any) -> Habit:
    return lambda message: [{**message, "content": [change(dict(block)) for block in message["content"]]}]


def each_call(change: Any) -> Habit:
    """Changes name and arguments (a dict) of every call, in either protocol."""

    def changed(message: Wire) -> list[Wire]:
        if isinstance(message["content"], list):
            return each_block(lambda b: b | change(b["name"], b["input"], "input") if b["type"] == "tool_use" else b)(
                message
            )
        calls = []
        for call in message.get("tool_calls", []):
            fields = change(call["function"]["name"], json.loads(call["function"]["arguments"]), "arguments")
            if isinstance(fields.get("arguments"), dict):
                fields["arguments"] = json.dumps(fields["arguments"], separators=(",", ":"))
            calls.append({**call, "function": call["function"] | fields})
        return [{**message, **({"tool_calls": calls} if calls else {})}]

    return changed


def text_changed(change: Any) -> Habit:
    def changed(message: Wire) -> list[Wire]:
        if isinstance(message["content"], list):
            return each_block(lambda b: {**b, "text": change(b["text"])} if b["type"] == "text" else b)(message)
        return [{**message, "content": message["content"] and change(message["content"])}]

    return changed


def field(name: str, value: Any) -> Habit:
    return lambda message: [{key: val for key, val in {**message, name: value}.items() if val != "absent"}]


def content_as(form: Any) -> Habit:
    """The content field of an openai message without text."""
    return lambda message: field("content", form)(message) if not message["content"] else [message]


def parts(message: Wire) -> list[Wire]:
    text = message["content"]
    return [{**message, "content": [{"type": "text", "text": text}] if text else text}]


def split_blocks(message: Wire) -> list[Wire]:
    return [{"role": "assistant", "content": [block]} for block in message["content"]]


def split_message(message: Wire) -> list[Wire]:
    pieces: list[Wire] = [{"role": "assistant", "content": message["content"]}] if message["content"] else []
    pieces += [{"role": "assistant", "content": None, "tool_calls": [c]} for c in message.get("tool_calls", [])]
    return pieces


def defaults(name: str, arguments: Any, key: str) -> Wire:
    return {key: {"timeout": 5000, **{k: v.replace("cd /workspace && ", "").rstrip() for k, v in arguments.items()}}}


HABITS: dict[str, tuple[str, Habit, str]] = {
    "anthropic thinking stripped": ("anthropic", blocks("thinking"), "reasoning_dropped"),
    "anthropic thinking with an empty signature": (
        "anthropic",
        each_block(lambda b: {**b, "signature": ""} if b["type"] == "thinking" else b),
        "exact",
    ),
    "anthropic thinking emptied but signed": (
        "anthropic",
        each_block(lambda b: {**b, "thinking": ""} if b["type"] == "thinking" else b),
        "reasoning_dropped",
    ),
    "anthropic cache markers": (
        "anthropic",
        each_block(lambda b: {**b, "cache_control": {"type": "ephemeral"}} if b["type"] != "thinking" else b),
        "exact",
    ),
    "anthropic split over messages": ("anthropic", split_blocks, "split"),
    "anthropic arguments with defaults": ("anthropic", each_call(defaults), "args_rewritten"),
    "anthropic text padded": ("anthropic", text_changed(lambda t: f" {t}\n"), "whitespace"),
    "anthropic invalid name": ("anthropic", each_call(lambda n, a, k: {"name": "invalid", k: a}), "renamed_invalid"),
    "openai reasoning dropped": ("openai", field("reasoning_content", "absent"), "reasoning_dropped"),
    "openai reasoning in the other field": (
        "openai",
        lambda m: [{("reasoning" if k == "reasoning_content" else k): v for k, v in m.items()}],
        "exact",
    ),
    "openai content null": ("openai", content_as(None), "exact"),
    "openai content empty": ("openai", content_as(""), "form"),
    "openai content absent": ("openai", content_as("absent"), "form"),
    "openai content as parts": ("openai", parts, "form"),
    "openai split over messages": ("openai", split_message, "split"),
    "openai arguments with defaults": ("openai", each_call(defaults), "args_rewritten"),
    "openai arguments reordered": (
        "openai",
        each_call(lambda n, a, k: {k: dict(reversed(a.items()))}),
        "args_rewritten",
    ),
    "openai text padded": ("openai", text_changed(lambda t: f" {t}\n"), "whitespace"),
    "openai invalid name": ("openai", each_call(lambda n, a, k: {"name": "invalid", k: a}), "renamed_invalid"),
}


async def test_a_linear_session_gives_one_sample(grounds, agents, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(*LINEAR, samples=1) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        last = await agent.work("Fix the bug.", backwards=True)
        assert last.text == "All done."
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert (report.generations, report.doubled, report.lost, report.untrained) == (4, 0, 0, {})
    assert g.fidelity.totals.forks == 0
    assert set(g.echoes) == {"exact"}
    assert g.notes.count("reordered") == 1, "told when it happened, not again with every longer history"


@pytest.mark.parametrize(("name", "stream"), [(name, number % 2 == 0) for number, name in enumerate(HABITS)])
async def test_an_echo_that_still_is_the_draw_keeps_the_session_linear(
    grounds, agents, name: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    protocol, habit, expected = HABITS[name]
    turns = (
        shell("cd /workspace && ls ", thinking="First I look.", text="I look."),
        ScriptTurn(
            text="Timed.",
            calls=(Call(tool="bash", arguments_text='{"timeout":  "5000", "command": "caf\\u00e9 "}'),),
        ),
        shell("pwd"),
        END,
    )
    async with grounds(*turns, samples=1) as g:
        await agents(protocol, await g.open(), stream=stream, habit=habit).work("Fix the bug.")
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert expected in g.echoes
    assert g.fidelity.totals.forks == 0


def dropped_call(message: Wire) -> list[Wire]:
    if isinstance(message["content"], list):
        return [{**message, "content": message["content"][:-1]}]
    return [{**message, "tool_calls": message["tool_calls"][:-1]}]


def added_call(message: Wire) -> list[Wire]:
    if isinstance(message["content"], list):
        more = {"type": "tool_use", "id": "made1", "name": "bash", "input": {"command": "id"}}
        return [{**message, "content": [*message["content"], more]}]
    function = {"name": "bash", "arguments": '{"command": "id"}'}
    return [
        {**message, "tool_calls": [*message["tool_calls"], {"id": "made1", "type": "function", "function": function}]}
    ]


@pytest.mark.parametrize(
    ("named", "habit"),
    [
        ("text_edited", text_changed(lambda t: t + " Edited.")),
        ("call_dropped", dropped_call),
        ("call_added", added_call),
    ],
)
async def test_an_edited_draw_forks_once_and_is_named(grounds, agents, protocol: str, named: str, habit: Habit) -> None:  # type: ignore[no-untyped-def]
    turns = (shell("ls", "pwd", text="I look."), shell("id"), shell("w"), END)
    async with grounds(*turns, samples=2) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Fix it.")
        first = await agent.ask()
        agent.history += habit(first.message)
        called = [c[0] for c in first.calls][: 1 if named == "call_dropped" else 2]
        agent.results([(name, "ok") for name in [*called, *(["made1"] if named == "call_added" else [])]])
        for _ in range(3):
            answer = await agent.ask()
            agent.remember(answer)
            if answer.calls:
                agent.results([(answer.calls[0][0], "ok")])
        await g.checked()
    assert [echo.echo for turn in g.turns for echo in turn.forks] == [named], "a fork is told where it happens, once"
    assert [turn.forks[0].turn for turn in g.turns if turn.forks] == [0]


def spelled(ids: Ids) -> str:
    return f",{','.join(map(str, ids.tolist()))},"


def controls(renderer: TemplateRenderer) -> tuple[int, int]:
    """What opens and what closes a message."""
    return renderer.vocabulary.controls["<|im_start|>"], renderer.vocabulary.controls["<|im_end|>"]


async def test_a_turn_kept_under_a_new_summary_is_transplanted(
    grounds, agents, renderer, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", text="I look."), shell("pwd", thinking="Hm."), END, samples=2) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Fix it.")
        for _ in range(2):
            answer = await agent.ask()
            agent.remember(answer)
            agent.results([(answer.calls[0][0], "ok")])
        agent.history = [{"role": "user", "content": "Summary: looked around."}, *agent.history[3:]]
        for _ in range(2):
            agent.remember(await agent.ask())
            agent.tell("Go on.")
        await g.checked()
        drawn, under_summary = (entry for entry in g.journal() if entry.rid in ("s-1", "s-2"))
    assert g.echoes.count("exact+transplanted") == 1
    assert spelled(drawn.output) in spelled(under_summary.prompt), "the same ids, its stop id once"
    opened, closed = (under_summary.prompt.tolist().count(control) for control in controls(renderer))
    assert opened == closed + 1


async def test_a_draw_made_right_behind_another_is_transplanted_without_what_closed_that_one(
    grounds, agents, renderer, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    thought = ScriptTurn(thinking="Nothing but a thought.")
    async with grounds(shell("ls", text="I look."), thought, shell("pwd", text="And there."), END, samples=2) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Fix it.")
        answer = await agent.ask()
        agent.remember(answer)
        agent.results([(answer.calls[0][0], "ok")])
        asked = [*agent.history]
        agent.remember(await agent.ask())
        answer = await agent.ask()  # goes on from the thought, with nothing said in between
        agent.history = asked
        agent.tell("You said nothing.")
        agent.remember(answer)
        agent.results([(answer.calls[0][0], "ok")])
        await agent.ask()
        await g.checked()
        first, last = (entry for entry in g.journal() if entry.rid in ("s-2", "s-3"))
    assert g.echoes.count("exact+transplanted") == 1
    assert spelled(first.output) in spelled(last.prompt)
    text = renderer.vocabulary.decode(last.prompt.tolist())
    assert "<|im_end|>\n<|im_start|>assistant\nAnd there." in text, "one line break between two messages"


async def test_sub_agents_interleave_and_their_kinds_come_from_rules(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    script = Script(
        (
            Thread((shell("explore"), END), kind="subagent", when=When(system_contains="You explore")),
            Thread((ScriptTurn(text="A title"),), kind="auxiliary", when=When(tools="none")),
            Thread((shell("delegate"), shell("go on"), END)),
        ),
        Expect(reasons=("kind",)),
        resegment=0.4,
    )
    rules = (
        KindRule("subagent", "explorer", system_contains="You explore"),
        KindRule("auxiliary", "title", tools="none"),
    )
    async with grounds(script=script) as g:
        session = await g.open(kinds=rules)
        main = agents(protocol, session)
        helper = agents(protocol, session, system="You explore.")
        title = agents(protocol, session, tools=())
        title.tell("Name this.")
        await title.ask()
        main.tell("Fix it.")
        first = await main.ask()
        main.remember(first)
        await helper.work("Look around.")
        main.results([(first.calls[0][0], "explored")])
        second = await main.ask()
        main.remember(second)
        main.results([(second.calls[0][0], "ok")])
        await main.ask()
        report = await g.checked()
    assert g.fidelity.totals.kinds == {"auxiliary": 1, "main": 3, "subagent": 2}
    assert list(report.untrained) == ["kind"]
    assert report.samples == {"s": 2}


async def test_an_ephemeral_last_message_makes_branches_that_share_a_prefix(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), shell("pwd"), END) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Fix it.")
        for number in range(3):
            agent.tell(f"<note {number}>")
            answer = await agent.ask()
            agent.history.pop()
            agent.remember(answer)
            if answer.calls:
                agent.results([(answer.calls[0][0], "ok")])
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert report.samples == {"s": 3}


async def test_equal_texts_without_identity_are_told_ambiguous(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Same words."), samples=2) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Say it.")
        await agent.ask()
        agent.remember(await agent.ask())
        agent.tell("Again.")
        await agent.ask()
        await g.checked()
    assert g.echoes == ["ambiguous"]


async def test_siblings_of_one_request_are_draws_of_their_own(grounds, agents, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", text="I look, and then look again at the same thing."), END, samples=3) as g:
        agent = agents("openai", await g.open(), stream=stream)
        agent.tell("Fix it.")
        siblings = await agent.ask_all(n=3)
        assert len({answer.calls[0][0] for answer in siblings}) == 3
        agent.remember(siblings[1])
        agent.results([(siblings[1].calls[0][0], "ok")])
        await agent.ask()
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert [echo.turn for turn in g.turns for echo in turn.echoes] == [1]


async def test_unused_siblings_can_be_dropped(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), END, samples=1) as g:
        agent = agents("openai", await g.open())
        agent.tell("Fix it.")
        siblings = await agent.ask_all(n=2)
        agent.remember(siblings[0])
        agent.results([(siblings[0].calls[0][0], "ok")])
        await agent.ask()
        await g.finish(unused_draws="drop")
    _, unused, _ = g.turns
    assert dict(unused.untrained) == {"unused_draw": unused.sampled}
    assert unused.sampled > 0
    assert [turn.trained == turn.sampled for turn in g.turns] == [True, False, True]


async def test_few_shot_assistants_are_foreign_context(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), shell("ls"), END, samples=1) as g:
        agent = agents(protocol, await g.open())
        agent.tell("2 + 2?")
        agent.history.append({"role": "assistant", "content": "4"})
        await agent.work("Fix it.")
        await g.checked()
    assert g.echoes.count("foreign") == 1


@pytest.mark.parametrize("ending", ["Sure, ", ""])
async def test_a_request_that_ends_with_an_assistant_message_is_answered(
    grounds, agents, protocol: str, ending: str
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(END) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Fix it.")
        await agent.ask()
        agent.history.append({"role": "assistant", "content": ending})
        assert (await agent.ask()).text == "All done."
        agent.remember(await agent.ask())
        agent.tell("More.")
        await agent.ask()
        report = await g.checked()
    assert report.kept_percent == 100.0


async def test_a_conversation_may_begin_with_an_assistant_message(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(END) as g:
        agent = agents(protocol, await g.open(), system="")
        agent.history.append({"role": "assistant", "content": "I am ready."})
        await agent.work("Fix it.")
        await g.checked()


async def test_a_stop_id_that_disagrees_with_the_template_is_left_before_it(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    turns = (shell("ls", stop="<|endoftext|>"), shell("pwd", stop="<|endoftext|>"), END)
    async with grounds(*turns) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Fix it.")
        for _ in range(2):
            answer = await agent.ask()
            agent.remember(answer)
            agent.results([(answer.calls[0][0], "ok")])
        agent.history = [{"role": "user", "content": "Summary."}, *agent.history[3:]]
        agent.remember(await agent.ask())
        agent.tell("Go on.")
        await agent.ask()
        report = await g.checked()
        journal = {entry.rid: entry for entry in g.journal()}
    stop = g.live().session.tree.turns[0].stop_id
    assert report.kept_percent == 100.0
    assert journal["s-0"].output[-1] == stop
    for rid in ("s-1", "s-2", "s-3"):
        assert stop not in journal[rid].prompt, "what follows is not behind an id the template does not write"
    # The prompt is the draw without its stop id, then what the template closes a message with.
    first = journal["s-0"]
    held = [*first.prompt.tolist(), *first.output.tolist()[:-1]]
    assert journal["s-1"].prompt.tolist()[: len(held)] == held


async def test_a_draw_shared_by_two_branches_trains_once(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), shell("pwd"), END, samples=2) as g:
        agent = agents(protocol, await g.open())
        await agent.work("Fix it.")
        agent.history = agent.history[:3]
        agent.tell("No, rather so.")
        await agent.ask()
        report = await g.checked()
    assert (report.kept_percent, report.doubled, g.fidelity.totals.forks) == (100.0, 0, 0)
    assert [turn.samples for turn in g.turns] == [(0,), (0,), (0,), (1,)]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}END<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)


@pytest.mark.parametrize("tools", [("bash", "read"), ()])
async def test_tools_that_the_template_does_not_show_are_told(grounds, agents, renderer_of, tools) -> None:  # type: ignore[no-untyped-def]
    async with grounds(END, samples=1, model=renderer_of(CHATML.replace("END", ""))) as g:
        agent = agents("openai", await g.open(), tools=tools)
        for text in ("Fix it.", "More."):
            agent.tell(text)
            agent.remember(await agent.ask())
        await g.checked()
    told = [note for turn in g.turns for note in turn.notes]
    note = Note("tools_not_shown", "the chat template shows no tools; the request offers bash, read")
    assert told == ([note, note] if tools else [])


@pytest.mark.parametrize("before_closing", ["\n", " "])
async def test_a_template_that_writes_text_before_its_closing_token_does_not_cut_replies_there(  # type: ignore[no-untyped-def]
    grounds, agents, renderer_of, before_closing: str
) -> None:
    text = "One.\nTwo three .\nFour."
    model = renderer_of(CHATML.replace("END", before_closing))
    async with grounds(ScriptTurn(text=text), samples=2, model=model, resegment=1.0) as g:
        agent = agents("openai", await g.open(), tools=())
        for said in ("Fix it.", "More."):
            agent.tell(said)
            answer = await agent.ask()
            assert (answer.text, answer.finish) == (text, "stop")
            agent.remember(answer)
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert g.notes == ["not_extendable", "not_extendable"]
    assert {turn.stop_id for turn in g.live().session.tree.turns} == {model.vocabulary.controls["<|im_end|>"]}


async def test_a_prompt_that_would_go_on_in_the_middle_of_text_is_refused_also_where_it_leaves_before_a_stop(  # type: ignore[no-untyped-def]
    grounds, agents, renderer_of
) -> None:
    model = renderer_of(CHATML.replace("END", ""))
    # As of a template that the probe should have refused: it closes a message with text.
    model.closing = concatenate([model.vocabulary.encode("\n"), model.closing])
    async with grounds(END, model=model) as g:
        session = await g.open()
        agent = agents("openai", session, tools=())
        agent.tell("Fix it.")
        agent.remember(await agent.ask())
        agent.tell("More.")
        status, body = await exchange(g.gateway.url, "/v1/chat/completions", session.key, agent.request())
        await g.checked()
    assert (status, len(g.turns)) == (500, 1)
    assert b"no control token stands where new text follows what is held, around '.\\\\n<|im_end|>" in body
