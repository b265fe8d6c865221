"""What a template makes of the reasoning in a history, and so in what alone a kept history differs from the stock one.

Two policies. `keep`: what was sampled stays as it was sampled; where the stock rendering would drop a reasoning block,
the held ids have it. `template`: a message whose reasoning the template drops is settled: from then on it is rendered
as the template writes it, and the branch leaves the draw there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridle.errors import TemplateError
from bridle.messages import Message, Text, Thinking, ToolCall
from bridle.rendering.base import Strips
from bridle.rendering.chat_template import ChatTemplate, message_form
from bridle.rendering.roles import RoleRules
from bridle.tokens import Ids, Vocabulary


def settled(messages: Sequence[Message], strips: Strips, rules: RoleRules) -> int:
    """-> the messages before this one are those whose reasoning the template drops."""
    roles = [rules.role(message.role, at == 0) for at, message in enumerate(messages)]
    match strips:
        case "always":
            return len(messages)
        case "user":
            return max((at for at, role in enumerate(roles) if role == "user"), default=0)
        case "answer":
            # The pieces of one that came back split stand in a row.
            ends = zip(messages, [*roles[1:], ""], strict=True)
            return max((at + 1 for at, (said, then) in enumerate(ends) if _answers(said, then)), default=0)
        case _:
            return 0


def _answers(message: Message, then: str) -> bool:
    return message.role == "assistant" and not message.calls and then != "assistant"


def same_but_reasoning(vocabulary: Vocabulary, tags: tuple[int, int], one: Ids, other: Ids) -> bool:
    """Whether two renderings of an assistant message differ in reasoning alone: in blocks from an id that opens one to
    the next that closes it, and in white space at the edges of the texts beside them (some templates trim it in one of
    the two). Every other control id, and every other character, is the same in both."""
    ours, theirs = _spans(vocabulary, tags, one), _spans(vocabulary, tags, other)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


Texts = tuple[str, ...]
"""The text between two control tokens, in pieces where a reasoning block stood."""


def _spans(vocabulary: Vocabulary, tags: tuple[int, int], ids: Ids) -> list[int | Texts]:
    """Control ids and what stands between them, white space alone left out."""
    opening, closing = tags
    spans: list[int | Texts] = []
    texts: list[list[int]] = [[]]
    held, at = ids.tolist(), 0
    while at < len(held):
        if held[at] == opening and closing in held[at:]:
            at = held.index(closing, at)
            texts.append([])
        elif held[at] == closing:
            # What GLM and DeepSeek leave of a block they drop.
            texts.append([])
        elif held[at] in vocabulary.control_ids:
            spans += [tuple(map(vocabulary.decode, texts)), held[at]]
            texts = [[]]
        else:
            texts[-1].append(held[at])
        at += 1
    spans.append(tuple(map(vocabulary.decode, texts)))
    return [span for span in spans if isinstance(span, int) or "".join(span).strip()]


def _same(one: int | Texts, other: int | Texts) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    pattern = r"\s*".join(re.escape(text.strip()) for text in one)
    return re.fullmatch(rf"\s*{pattern}\s*", "\n".join(other)) is not None


# --- what a template drops --------------------------------------------------------------------------------------------


def _thought(reasoning: str, *parts: Text | ToolCall) -> Message:
    return Message("assistant", (Thinking(reasoning), *parts))


_USER = Message("user", (Text("alpha"),))
_CALL = ToolCall("callaaaa1", "look", '{"path": "a"}')
_RESULT = Message("tool", (Text("beta"),), "callaaaa1")
_TALK = [_USER, _thought("first", Text("gamma")), _USER, _thought("third", Text("gamma"))]
_LOOPS = [
    *(_USER, _thought("first", _CALL), _RESULT, _thought("second", Text("gamma"))),
    *(_USER, _thought("third", _CALL), _RESULT),
]
_INTERRUPTED = [_USER, _thought("first", _CALL), _RESULT, _USER]


def find_strips(template: ChatTemplate) -> Strips:
    """Which reasoning a template drops. Where it takes no calls, answers alone tell."""
    kept = _kept(template, _LOOPS) if template.calls.shown else None
    kept = _kept(template, _TALK) if kept is None else kept
    if kept is None or "third" not in kept:
        return "always"
    if "first" in kept and ("second" in kept or not template.calls.shown):
        return ""
    interrupted = _kept(template, _INTERRUPTED)
    return "answer" if interrupted is not None and "first" in interrupted else "user"


def _kept(template: ChatTemplate, messages: Sequence[Message]) -> set[str] | None:
    """-> the reasoning that is written; None where the template refuses the conversation."""
    try:
        text = template.render([message_form(message, str, {}, template.calls) for message in messages])
    except TemplateError:
        return None
    return {words for words in ("first", "second", "third") if words in text}
