"""Git over a workspace through a git directory that nothing in the workspace can reach or steer.

The workspace's own .git, git configuration of any level, hooks, attributes and ignore files of the home folder, and
in-tree .gitattributes have no say: a file's bytes in a tree made here are the file's bytes on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from bridle.errors import GraderError
from bridle.sandboxes.base import ExecResult, Sandbox

COMMAND_S = 600.0
"""Bound of one command; a stage's own budget is usually shorter and comes from outside."""

INDEX_S = 30.0
"""Of reading an index an agent left, which must not use up the time of collecting."""

OUTPUT_BYTES = 256 * 1024 * 1024
NO_OBJECT = b"0" * 40
logger = logging.getLogger("bridle.graders")

_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    "core.untrackedCache": "false",
    "core.quotePath": "true",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "diff.algorithm": "myers",
}

# Of the highest rank, so it unsets what in-tree .gitattributes set: conversions would change bytes, `diff` and `merge`
# would choose how a patch is made.
_ATTRIBUTES = b"* -text !eol -crlf -ident -filter !working-tree-encoding !diff !merge !whitespace -export-subst\n"

# An agent may leave files and folders it made unreadable. Every .git is skipped, so that the files of a repository
# inside the workspace are taken as plain files.
_LIST_FILES = r"""
mkdir -p "$1" && cd "$1" || exit 1
find . -type d ! -perm -700 -exec chmod u+rwx {} \;
find . -type f ! -perm -400 -exec chmod u+r {} +
exec find . -iname .git -prune -o \( -type f -o -type l \) -print0
"""


_CREATE = r"""
set -e
mkdir -p "$2"
git init -q --template= --object-format=sha1
mkdir -p "$1/info"
cat >"$1/info/attributes"
"""

_KEEP_RULES = r"""
set -e
git read-tree --empty
git update-index -z --add --stdin
GIT_WORK_TREE="$1" exec git checkout-index --all --quiet
"""

_LIST_TRACKED = r"""
[ -d "$1" ] || exit 0
GIT_DIR="$1" exec git ls-files -z
"""

# The index alone: the agent's configuration and objects are not looked at.
_LIST_INDEX = r"""
[ -f "$1" ] || exit 0
GIT_INDEX_FILE="$1" exec git ls-files -z
"""

# From nothing, every time: what a file's times or an earlier index say about it is not asked.
_WRITE_TREE = r"""
set -e
git read-tree --empty
git update-index -z --add --stdin
git write-tree
exec git ls-files -z
"""

_PATCH_TREE = r"""
set -e
git read-tree "$1"
git apply --cached --whitespace=nowarn -
exec git write-tree
"""

_RESTORE_TREE = r"""
set -e
git read-tree "$1"
git update-index -z --index-info
exec git write-tree
"""

_CHECK_OUT = r"""
git read-tree "$1" || exit
git update-index -q --refresh
exec git read-tree --reset -u "$2"
"""


class Change(msgspec.Struct, frozen=True):
    """One path that differs between two trees; mode 000000 and NO_OBJECT where it does not exist."""

    path: bytes
    old_mode: bytes
    new_mode: bytes
    old_object: bytes
    new_object: bytes


class PrivateGit:
    """One git directory, in `sandbox.private`, for one workspace. Trees are named by their object id."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._directory = f"{sandbox.private}/git"
        self._rules = f"{sandbox.private}/ignore-rules"

    async def create(self) -> None:
        await self._script(_CREATE, self._directory, self._rules, stdin=_ATTRIBUTES)

    async def keep_rules(self, files: Iterable[bytes]) -> None:
        """Keeps the .gitignore files among `files` as they are now: `ignored` asks these, not the agent's."""
        rules = [path for path in files if path.rpartition(b"/")[2] == b".gitignore"]
        if rules:
            await self._script(_KEEP_RULES, self._rules, stdin=_joined(rules))

    async def files(self) -> list[bytes]:
        """Every file and symlink of the workspace as it lies there, but for those below a .git."""
        listed = await self._script(_LIST_FILES, self._sandbox.workspace)
        return sorted(path.removeprefix(b"./") for path in _items(listed))

    async def ignored(self, paths: Iterable[bytes]) -> frozenset[bytes]:
        """-> those of `paths` that the workspace's ignore rules, as they were at `keep_rules`, leave out."""
        # behind ./ a name that begins with a colon is no pathspec magic
        asked = _joined(b"./" + path for path in paths)
        if not asked:
            return frozenset()
        question = ("check-ignore", "-z", "--stdin", "--no-index")
        listed = await self.git(*question, stdin=asked, work_tree=self._rules, allowed=(0, 1))
        return frozenset(path.removeprefix(b"./") for path in _items(listed))

    async def tracked(self) -> frozenset[bytes]:
        """-> what the workspace's own repository tracks. Only for a workspace no agent has touched."""
        return frozenset(_items(await self._script(_LIST_TRACKED, f"{self._sandbox.workspace}/.git")))

    async def indexed(self) -> frozenset[bytes]:
        """-> what the index of the workspace's own repository holds, whatever an agent made of it; nothing where git
        cannot read it apart from its repository (broken, of another object format, a part of it a pipe)."""
        index = f"{self._sandbox.workspace}/.git/index"
        try:
            return frozenset(_items(await self._script(_LIST_INDEX, index, timeout_s=INDEX_S)))
        except GraderError as error:
            logger.warning("the index that an agent left is not read: %s", error.message)
            return frozenset()

    async def write_tree(self, paths: Iterable[bytes]) -> tuple[str, list[bytes]]:
        """-> the tree of exactly `paths`, and those of them git has no place for (such as `git~1`)."""
        wanted = list(paths)
        tree, _, listed = (await self._script(_WRITE_TREE, stdin=_joined(wanted))).partition(b"\n")
        held = frozenset(_items(listed))
        return tree.decode(), [path for path in wanted if path not in held]

    async def patched_tree(self, tree: str, patch: bytes) -> str:
        """-> `tree` with `patch` applied, as a tree: no file of the workspace is touched."""
        return (await self._script(_PATCH_TREE, tree, stdin=patch)).decode().strip()

    async def restored_tree(self, tree: str, changes: Iterable[Change]) -> str:
        """-> `tree` with the old side of `changes`."""
        lines = (b"%s %s\t%s\0" % (each.old_mode, each.old_object, each.path) for each in changes)
        return (await self._script(_RESTORE_TREE, tree, stdin=b"".join(lines))).decode().strip()

    async def check_out(self, old: str, new: str) -> None:
        """Brings the workspace from `old`, which it must hold, to `new`."""
        await self._script(_CHECK_OUT, old, new)

    async def changes(self, old: str, new: str) -> list[Change]:
        raw = await self.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", old, new)
        items = _items(raw)
        found = []
        for facts, path in zip(items[::2], items[1::2], strict=True):
            old_mode, new_mode, old_object, new_object, _ = facts.removeprefix(b":").split(b" ")
            found.append(Change(path, old_mode, new_mode, old_object, new_object))
        return found

    async def sizes(self, objects: Iterable[bytes]) -> int:
        """-> bytes of all these blobs together."""
        asked = b"".join(name + b"\n" for name in objects if name != NO_OBJECT)
        if not asked:
            return 0
        return sum(map(int, (await self.git("cat-file", "--batch-check=%(objectsize)", stdin=asked)).split()))

    async def blob(self, name: bytes) -> bytes:
        return await self.git("cat-file", "blob", name.decode())

    async def diff(self, old: str, new: str) -> bytes:
        """-> a binary, full-index patch; a rename is a deletion and an addition."""
        flags = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        return await self.git("diff-tree", "-r", "-p", *flags, old, new)

    async def git(
        self, *arguments: str, stdin: bytes = b"", work_tree: str = "", allowed: tuple[int, ...] = (0,)
    ) -> bytes:
        """-> stdout. Raises GraderError for any other exit code."""
        return await self._run(["git", *arguments], stdin, work_tree, allowed)

    async def _script(self, script: str, *arguments: str, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> bytes:
        return await self._run(["/bin/sh", "-c", script, "sh", *arguments], stdin, timeout_s=timeout_s)

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes,
        work_tree: str = "",
        allowed: tuple[int, ...] = (0,),
        timeout_s: float = COMMAND_S,
    ) -> bytes:
        where = {"GIT_DIR": self._directory, "GIT_WORK_TREE": work_tree or self._sandbox.workspace}
        result = await self._sandbox.exec(
            argv,
            cwd=self._sandbox.private,
            env={**_environment(self._sandbox.private), **where},
            stdin=stdin,
            timeout_s=timeout_s,
            output_limit=OUTPUT_BYTES,
            private=True,
        )
        if result.exit_code not in allowed:
            raise GraderError(_failure(argv, result))
        if len(result.stdout) >= OUTPUT_BYTES:
            raise GraderError(f"{_named(argv)} in the sandbox wrote more than {OUTPUT_BYTES} bytes")
        return result.stdout


def _failure(argv: Sequence[str], result: ExecResult) -> str:
    ended = "ran out of time" if result.timed_out else f"ended with {result.exit_code} (signal {result.signal})"
    reason = result.stderr[-2000:].decode("utf-8", "replace").strip()
    return f"{_named(argv)} in the sandbox {ended}: {reason or 'no message'}"


def _named(argv: Sequence[str]) -> str:
    return " ".join(argv[:2]) if argv[0] == "git" else "a script of git commands"


def _environment(home: str) -> dict[str, str]:
    """HOME is the private folder, because git reads ~/.config/git unasked."""
    settings = {"GIT_CONFIG_COUNT": str(len(_SETTINGS))}
    for number, (key, value) in enumerate(_SETTINGS.items()):
        settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return settings | {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _items(listed: bytes) -> list[bytes]:
    return listed.split(b"\0")[:-1]


def _joined(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)
