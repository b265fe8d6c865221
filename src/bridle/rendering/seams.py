"""What one template writes where the parts of an answer meet: newlines around reasoning and calls, counted where it
writes some, and the token at the end.

They are scaffold: a model trained on the template writes them too, and they are no part of what it says. What a
template never shows (reasoning of a message without calls, text behind calls) stays as the family has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from bridle.errors import TemplateError
from bridle.messages import Message, Switches
from bridle.rendering.calls import CallForm
from bridle.rendering.probe import CALL, OTHER_CALL, assistant, result, settings, user
from bridle.rendering.reply import Lines, ReplyFormat, Thoughts
from bridle.rendering.units import USER, Units

ASKED = user("alpha")
SAID, THOUGHT = "gamma", "beta"
TOLD, THOUGHT_OF = assistant(SAID), assistant(SAID, thinking=THOUGHT)
CALLED, CALLED_TWICE = assistant("", CALL), assistant("", CALL, OTHER_CALL)
TOLD_AND_CALLED, THOUGHT_AND_CALLED = assistant(SAID, CALL), assistant("", CALL, thinking=THOUGHT)


def fitted(units: Units, form: ReplyFormat) -> ReplyFormat:
    """`form` with the seams of the template."""
    thoughts = form.thoughts and _around_thoughts(units, form, form.thoughts)
    begun = [text for message in (TOLD, THOUGHT_OF) for text in _answers(units, form, message)]
    start = max((len(text) - len(text.lstrip("\n")) for text in begun), default=0)
    endings = (_ending(units, form, USER), _ending(units, form, result(CALL.id, SAID)))
    return replace(form, thoughts=thoughts, start=start, lines=_around_calls(units, form), endings=endings)


def _around_thoughts(units: Units, form: ReplyFormat, tags: Thoughts) -> Thoughts:
    block = f"{re.escape(tags.open + tags.lead)}(\n*){THOUGHT}(\n*){re.escape(tags.close)}(\n*)"
    opening = _opening(form.calls) if form.calls else _either(())
    plain, calling = _shown(units, THOUGHT_OF), _shown(units, THOUGHT_AND_CALLED)
    text, call = re.search(block + SAID, plain), re.search(block + opening, calling)
    found = text or call
    if found is None:
        return tags
    behind = len(text[3]) if text else tags.behind
    return tags._replace(begin=len(found[1]), end=len(found[2]), behind=behind, called=len(call[3]) if call else behind)


def _around_calls(units: Units, form: ReplyFormat) -> Lines | None:
    if form.calls is None:
        return None
    held, opening, closing = form.around, _opening(form.calls), _either(form.calls.closes)
    control = _either(form.vocabulary.controls)

    def count(pattern: str, text: str, otherwise: int) -> int:
        found = re.search(pattern, text, re.DOTALL)
        return len(found[1]) if found else otherwise

    return Lines(
        before=count(f"{SAID}(\n*){opening}", _shown(units, TOLD_AND_CALLED), held.before),
        alone=max((count(f"^(\n*){opening}", text, 0) for text in _answers(units, form, CALLED)), default=held.alone),
        between=count(f"{closing}(\n*){opening}", _shown(units, CALLED_TWICE), held.between),
        after=held.after,
        last=count(f"^.*{closing}(\n*)(?:{control}|$)", _shown(units, CALLED), held.last),
    )


def _ending(units: Units, form: ReplyFormat, then: Message) -> int:
    """The stop id of an answer that `then` follows: its closing token, or where it has none what begins `then`."""
    called = then.role == "tool"
    try:
        closing = units.closing(called)
        behind = closing if len(closing) else units.unit([then], CALLED if called else None)
    except TemplateError:
        return form.stop_ids[0]
    return int(behind[0]) if len(behind) and int(behind[0]) in form.stop_ids else form.stop_ids[0]


def _shown(units: Units, message: Message, switches: Switches = Switches()) -> str:
    """The stock rendering of a question and `message`; "" where the template refuses it."""
    try:
        return units.vocabulary.decode(units.whole([ASKED, message], (), switches).tolist())
    except TemplateError:
        return ""


def _answers(units: Units, form: ReplyFormat, message: Message) -> Iterator[str]:
    """What of `message` stands behind each of the generation prompts that open no reasoning."""
    for switches in settings(units.template):
        prompt = units.whole([ASKED], (), switches, generation=True)
        head, text = units.vocabulary.decode(prompt.tolist()), _shown(units, message, switches)
        if text.startswith(head) and not form.thinking_open(prompt):
            yield text[len(head) :]


def _opening(calls: CallForm) -> str:
    return _either([*calls.opens, *filter(None, [calls.bare])])


def _either(tags: Collection[str]) -> str:
    """A pattern for any of them; one that never matches for none."""
    return f"(?:{'|'.join(map(re.escape, tags)) or '(?!)'})"
