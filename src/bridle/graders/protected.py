"""Which changed paths may enter a grade: pure rules over paths and link targets, as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Reason = Literal["protected", "invalid_path", "nested_repository", "symlink_leaves_tree", "displaced"]


class LeftOut(msgspec.Struct, frozen=True):
    """A changed path that is not graded as the agent left it, and why. Bytes that are no UTF-8 show as \\xNN."""

    path: str
    reason: Reason


def shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


class Protected:
    """Globs as .gitignore reads them: without a slash inside they match a file's or folder's name at any depth, with
    one the path from the root; `*` and `?` stop at slashes, `**` does not. A matching folder protects all below it,
    and `name/**` protects `name` itself too, or a link put in its place would escape."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._anchored = [_regex(glob.removeprefix("/")) for glob in map(_bare, globs) if "/" in glob]
        self._anywhere = [_regex(glob) for glob in map(_bare, globs) if "/" not in glob]

    def covers(self, path: bytes) -> bool:
        parts = path.split(b"/")
        if any(_matches(self._anywhere, part) for part in parts):
            return True
        return any(_matches(self._anchored, b"/".join(parts[:end])) for end in range(1, len(parts) + 1))


def valid(path: bytes) -> bool:
    """Whether a path stays in the tree and out of any repository's own folder."""
    parts = path.split(b"/")
    return not any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts)


def stays_inside(link: bytes, target: bytes) -> bool:
    """Whether the symlink at path `link` cannot lead out of the tree, other links on its way included.

    That is certain only when every `..` comes first: behind a name, `..` leaves a folder that may be a link itself.
    """
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = _leading(parts, b"..")
    return b".." not in parts[ups:] and ups <= link.count(b"/") and b".git" not in [part.lower() for part in parts]


def _leading(parts: Iterable[bytes], wanted: bytes) -> int:
    count = 0
    for part in parts:
        if part != wanted:
            break
        count += 1
    return count


def _bare(glob: str) -> str:
    return glob.removesuffix("/**").removesuffix("/").removeprefix("**/").removeprefix("./")


def _matches(patterns: Iterable[re.Pattern[bytes]], path: bytes) -> bool:
    return any(pattern.fullmatch(path) for pattern in patterns)


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^]]+\]|.", re.DOTALL)
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _regex(glob: str) -> re.Pattern[bytes]:
    pieces = []
    for token in _TOKENS.findall(glob):
        if len(token) > 1 and token.startswith("["):
            pieces.append(token.replace("[!", "[^", 1).replace("\\", "\\\\"))
        else:
            pieces.append(_WILD.get(token, re.escape(token)))
    return re.compile("".join(pieces).encode(), re.DOTALL)
