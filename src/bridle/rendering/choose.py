"""Which form of replies a model has, found in its vocabulary and in what its template writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Note, Role, Switches, ToolCall
from bridle.registry import resolve
from bridle.rendering import NAMES
from bridle.rendering.base import GenerationPrompt, Replies, Rewritten
from bridle.rendering.calls import CallForm, parsed
from bridle.rendering.chat_template import read_json, special_tokens
from bridle.rendering.harmony import MessageForm, MessageReplies
from bridle.rendering.probe import CALL, OTHER_CALL, TOOL, assistant, settings, user
from bridle.rendering.reply import THOUGHTS, ReplyFormat, Thoughts, left_open
from bridle.rendering.seams import fitted
from bridle.rendering.units import Units
from bridle.tokens import Vocabulary

Form = CallForm | MessageForm

CALLS = (CALL, OTHER_CALL, ToolCall("callcccc3", TOOL.name, '{"many": [{"a": "b", "c": true}]}'))


def choose_replies(directory: Path, units: Units, calls: str) -> tuple[Replies, tuple[Note, ...]]:
    """`calls`: "auto", "none" or the name of a form. Raises ConfigError, TemplateError."""
    ends = _stop_ids(directory, units)
    possible = list(_possible(units.vocabulary))
    messages = next((form for form in possible if isinstance(form, MessageForm) and form.fits(units.template)), None)
    if messages is not None and calls in ("auto", "none"):
        return MessageReplies.of(units.vocabulary, ends, messages, calls == "auto"), ()
    thoughts = _thoughts(units)
    opened_line = _opens_line(units, thoughts)

    def having(form: Form | None) -> Replies:
        if isinstance(form, MessageForm):
            return MessageReplies.of(units.vocabulary, ends, form)
        # A template may end behind a call in the middle of a block; what ends the block ends no turn.
        tags = {units.vocabulary.controls[tag] for tag in (*form.opens, *form.closes)} if form else set()
        stop_ids = tuple(id for id in ends if id not in tags)
        return fitted(units, ReplyFormat(units.vocabulary, stop_ids, form, opened_line, thoughts))

    if calls == "none":
        return having(None), ()
    if calls != "auto":
        return having(_named(calls, units.vocabulary)), ()
    reading = [replies for form in possible if _reads_back(units, replies := having(form))]
    if reading:
        # Some forms read more than they write.
        return next((replies for replies in reading if _writes_the_same(units, replies)), reading[0]), ()
    if (form := _by_vocabulary(units, possible)) is not None:
        note = Note("calls_by_vocabulary", "the vocabulary has tags for calls, the template writes none")
        return having(form), (note,)
    return having(None), (Note("no_tool_calls", f"no known form ({', '.join(NAMES)}) reads what this template writes"),)


def _by_vocabulary(units: Units, possible: Sequence[Form]) -> CallForm | None:
    """Some templates show tools, and of a message that calls its text alone. Then the vocabulary tells, where it has
    the tags of one form only."""
    try:
        shown = units.whole([user("one")], (TOOL,), Switches())
        if TOOL.name not in units.vocabulary.decode(shown.tolist()) or TOOL.name in _written(units):
            return None
    except TemplateError:
        return None
    tagged = [form for form in possible if not isinstance(form, MessageForm) and form.opens]
    return tagged[0] if len(tagged) == 1 else None


def rewritten(units: Units, replies: Replies) -> tuple[Rewritten, ...]:
    """What of an answer the template writes otherwise in a history than the model says it."""
    calls = units.rules.calls
    rewrites_calls = calls.shown and any(_differs(units, replies, assistant("", call)) for call in CALLS)
    text = calls.shown and not rewrites_calls and _differs(units, replies, assistant("look", CALL))
    found: tuple[tuple[Rewritten, bool], ...] = (
        ("answer", _differs(units, replies, assistant("two"))),
        ("calls", rewrites_calls),
        ("text_beside_calls", text or (calls.shown and not calls.beside)),
        ("end", any(_ends_apart(units, replies, message) for message in (assistant("two"), assistant("", CALL)))),
    )
    return tuple(name for name, differs in found if differs)


def _differs(units: Units, replies: Replies, message: Message) -> bool:
    """Its end and its reasoning apart."""
    lead = units.generation(Switches())
    try:
        *pieces, _ = replies.write(message, replies.thinking_open(lead))
        unit = units.unit([message], None)
    except TemplateError:
        return False
    decode = units.vocabulary.decode
    said = "".join(piece if isinstance(piece, str) else decode([piece]) for piece in (decode(lead.tolist()), *pieces))
    closed = units.vocabulary.encode_split(said + decode(units.closing(bool(message.calls)).tolist()))
    return not replies.same_but_reasoning(closed, unit)


def _ends_apart(units: Units, replies: Replies, message: Message) -> bool:
    try:
        closing, end = units.closing(bool(message.calls)), replies.write(message, False)[-1]
    except TemplateError:
        return False
    return len(closing) > 0 and int(closing[0]) != end


def generation_prompt(units: Units, replies: Replies, switches: Switches, behind: Role = "user") -> GenerationPrompt:
    ids = units.generation(switches, behind)
    return GenerationPrompt(ids, replies.thinking_open(ids))


def _thoughts(units: Units) -> Thoughts | None:
    """The tags a model reasons between: of those its vocabulary has, the ones its template speaks of first."""
    controls = units.vocabulary.controls
    held = [tags for tags in THOUGHTS if tags.open in controls and tags.close in controls]
    return next((tags for tags in held if tags.close in units.template.source), held[0] if held else None)


def _opens_line(units: Units, thoughts: Thoughts | None) -> bool:
    """Whether a reasoning block that the prompt opens ends in a newline."""
    prompts = [units.generation(switches) for switches in settings(units.template)]
    opening = [ids.tolist() for ids in prompts if thoughts and left_open(units.vocabulary, thoughts, ids)]
    return any(units.vocabulary.decode(ids).endswith("\n") for ids in opening)


def _stop_ids(directory: Path, units: Units) -> tuple[int, ...]:
    """The token that closes a message in the template, then what the model's own files say ends a turn."""
    end = special_tokens(read_json(directory / "tokenizer_config.json")).get("eos_token", "")
    named = read_json(directory / "generation_config.json").get("eos_token_id", [])
    closings = [
        [id for id in units.closing(called).tolist() if id in units.vocabulary.control_ids] for called in (False, True)
    ]
    ids = [
        *(id for closing in closings for id in closing[:1]),
        *([units.vocabulary.controls[end]] if end in units.vocabulary.controls else []),
        *(named if isinstance(named, list) else [named]),
    ]
    if not ids:
        raise TemplateError("nothing ends a turn: no closing token in the template, no eos_token, no generation_config")
    return tuple(dict.fromkeys(ids))


def _named(name: str, vocabulary: Vocabulary) -> Form:
    form: Form = resolve("form of tool calls", NAMES, name)()
    if missing := _lacking(form, vocabulary):
        raise ConfigError(
            f'calls "{name}": this vocabulary has no token for {", ".join(missing)}; say "auto" or "none"'
        )
    return form


def _possible(vocabulary: Vocabulary) -> Iterator[Form]:
    for name in NAMES:
        form: Form = resolve("form of tool calls", NAMES, name)()
        if not _lacking(form, vocabulary):
            yield form


def _lacking(form: Form, vocabulary: Vocabulary) -> list[str]:
    tags = form.tags if isinstance(form, MessageForm) else (*form.opens, *form.closes, *form.inner)
    return [tag for tag in tags if tag not in vocabulary.controls]


def _reads_back(units: Units, replies: Replies) -> bool:
    """Whether a call that the template writes is read as that call."""
    try:
        written = _written(units)
    except TemplateError:
        return False
    parser = replies.parser(False, (TOOL,))
    parser.feed(units.vocabulary.encode_split(written).tolist())
    calls = parser.finish()[0].calls
    return [(call.name, parsed(call.arguments), call.status) for call in calls] == [
        (CALL.name, parsed(CALL.arguments), "ok")
    ]


def _writes_the_same(units: Units, replies: Replies) -> bool:
    """Whether a call is written as the template writes it."""
    *pieces, _ = replies.write(assistant("", CALL), False)
    spelled = "".join(piece if isinstance(piece, str) else units.vocabulary.decode([piece]) for piece in pieces)
    return spelled in _written(units)


def _written(units: Units) -> str:
    """A message that calls, as the template writes it behind a generation prompt."""
    text = units.vocabulary.decode(units.unit([assistant("", CALL)], None).tolist())
    return text.removeprefix(units.vocabulary.decode(units.generation(Switches()).tolist()))
