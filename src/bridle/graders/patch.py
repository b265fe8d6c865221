"""What an agent changed, as a patch that a second, clean workspace takes over.

Taken against the base tree recorded at prepare time, from the files as they lie there: whatever the agent staged,
committed, renamed, deleted or left locked does not matter. Not part of a patch: modes other than the executable bit,
empty folders, and files that the workspace's ignore rules, as they were at the start, leave out, but for those that the
agent gave to git all the same (`git add -f`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bridle.errors import GraderError, PatchRefused
from bridle.graders.private_git import Change, PrivateGit
from bridle.graders.protected import LeftOut, Protected, Reason, shown, stays_inside, valid
from bridle.sandboxes.base import Sandbox

CONTENT_BYTES = 128 * 1024 * 1024
"""Of all changed files together, before and after."""

NAMED = 50
"""So many ignored files are named, the others counted: a build leaves thousands."""

_LINK = b"120000"
_REPOSITORY = b"160000"


class Patch(msgspec.Struct, frozen=True):
    """`data` is a git patch, `base` the tree it starts from. `ignored`: new files that the ignore rules leave out, the
    first NAMED of `ignored_count`."""

    base: str
    data: bytes
    changed: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    ignored: tuple[str, ...] = ()
    ignored_count: int = 0


class Applied(msgspec.Struct, frozen=True):
    """How a patch came onto a clean workspace. `cleanly` is False when that had another base and git found the places
    of the changes all the same."""

    cleanly: bool
    changed: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class Base:
    """The state of one workspace that changes are measured against."""

    def __init__(
        self, sandbox: Sandbox, git: PrivateGit, tree: str, paths: frozenset[bytes], ignored: frozenset[bytes]
    ) -> None:
        self.tree = tree
        self._sandbox = sandbox
        self._git = git
        self._paths = paths
        self._ignored = ignored

    @classmethod
    async def record(cls, sandbox: Sandbox) -> Base:
        """Of the workspace as it is now, before any agent was near it."""
        git = PrivateGit(sandbox)
        await git.create()
        files = await git.files()
        await git.keep_rules(files)
        tracked = await git.tracked()
        ignored = await git.ignored(path for path in files if path not in tracked)
        paths = frozenset(files) - ignored
        tree, misfits = await git.write_tree(sorted(paths))
        return cls(sandbox, git, tree, paths.difference(misfits), ignored)

    async def collect(self) -> Patch:
        """Kills what still runs in the sandbox, then takes everything that changed. Raises PatchRefused."""
        await self._sandbox.kill_all()
        files = await self._git.files()
        kept = self._paths | await self._git.indexed()
        ignored = await self._git.ignored(path for path in files if path not in kept)
        new = sorted(ignored - self._ignored)
        tree, misfits = await self._git.write_tree(path for path in files if path not in ignored)
        changes = await self._git.changes(self.tree, tree)
        await self._check_size(changes)
        return Patch(
            base=self.tree,
            data=await self._git.diff(self.tree, tree),
            changed=tuple(shown(change.path) for change in changes),
            left_out=tuple(LeftOut(shown(path), "invalid_path") for path in misfits),
            ignored=tuple(map(shown, new[:NAMED])),
            ignored_count=len(new),
        )

    async def apply(self, patch: Patch, protected: Sequence[str]) -> Applied:
        """Brings the workspace from the base to the patched state; protected paths stay as the base has them.

        Nothing that came from the agent's sandbox is believed: the patch first becomes a tree, and what that tree
        holds decides. Raises PatchRefused for a patch git does not take, GraderError when that may be due to another
        base.
        """
        tree = await self._patched(patch)
        changes = await self._git.changes(self.tree, tree)
        refused = await self._refused(changes, Protected(protected))
        kept = {change.path for change in changes}
        if refused:
            tree = await self._git.restored_tree(tree, [change for change in changes if change.path in refused])
            kept = {change.path for change in await self._git.changes(self.tree, tree)}
        # a restored file can take the place of a folder the agent made, or the other way round
        displaced: dict[bytes, Reason] = {
            change.path: "displaced" for change in changes if change.path not in kept and change.path not in refused
        }
        await self._git.check_out(self.tree, tree)
        return Applied(
            cleanly=patch.base == self.tree,
            changed=tuple(shown(path) for path in sorted(kept)),
            left_out=tuple(LeftOut(shown(path), reason) for path, reason in sorted({**refused, **displaced}.items())),
        )

    async def _check_size(self, changes: Sequence[Change]) -> None:
        objects = (name for change in changes for name in (change.old_object, change.new_object))
        size = await self._git.sizes(objects)
        if size > CONTENT_BYTES:
            raise PatchRefused(
                f"the {len(changes)} changed files hold {size} bytes, a patch takes {CONTENT_BYTES}; "
                "what a build leaves behind belongs into the workspace's .gitignore"
            )

    async def _patched(self, patch: Patch) -> str:
        if not patch.data:
            return self.tree
        try:
            return await self._git.patched_tree(self.tree, patch.data)
        except GraderError as error:
            if patch.base != self.tree:
                raise GraderError(
                    f"the patch starts from tree {patch.base}, this workspace is {self.tree}, and it does not apply; "
                    f"do the task's setup commands give the same tree each time? {error.message}"
                ) from error
            raise PatchRefused(f"git does not take the patch onto its own base: {error.message}") from error

    async def _refused(self, changes: Sequence[Change], protected: Protected) -> dict[bytes, Reason]:
        found: dict[bytes, Reason] = {}
        for change in changes:
            if protected.covers(change.path):
                found[change.path] = "protected"
            elif not valid(change.path):
                found[change.path] = "invalid_path"
            elif change.new_mode == _REPOSITORY:
                found[change.path] = "nested_repository"
            elif change.new_mode == _LINK and not stays_inside(change.path, await self._git.blob(change.new_object)):
                found[change.path] = "symlink_leaves_tree"
        return found
