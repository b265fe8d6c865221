"""Whether an answer may, may not or must call a tool, and which: what every protocol says in a shape of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bridle.errors import BadRequest
from bridle.messages import Note, Tool

Choice = Literal["auto", "none", "required"]


class Chosen(NamedTuple):
    """The fields of `Wishes`."""

    tool_choice: Choice = "auto"
    allowed: tuple[str, ...] = ()


def chosen(where: str, choice: Choice, named: Sequence[str], tools: Sequence[Tool], notes: list[Note]) -> Chosen:
    """`named`: the tools that may be called, none for all. Where all that are left run at the provider, and so were
    dropped (`notes`), the choice is dropped too. Raises BadRequest, with `where`, for a tool that is not offered."""
    names = [tool.name for tool in tools]
    dropped = [note.detail.partition(" ")[0] for note in notes if note.what == "server_tool_dropped"]
    if missing := [name for name in named if name not in names and name not in dropped]:
        raise BadRequest(f"{where}: no tool is named {missing[0]!r}; offered: {', '.join(names) or 'none'}")
    if choice == "none":
        return Chosen("none")
    allowed = tuple(name for name in names if name in named)
    if (named and not allowed) or (choice == "required" and dropped and not names):
        notes.append(Note("tool_choice_dropped", f"{choice}: {', '.join(named or dropped)}"))
        return Chosen()
    if choice == "required" and not names:
        raise BadRequest(f"{where}: a call is asked for, and no tool is offered")
    return Chosen(choice, allowed)
