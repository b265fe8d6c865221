"""Whatever an agent did to its workspace comes out the same in a clean one, and nothing of the agent's is run."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import msgspec
import pytest

from bridle.errors import GraderError, PatchRefused
from bridle.graders import patch as patch_module, private_git
from bridle.graders.patch import Applied, Base, Patch
from bridle.graders.workspace import prepare
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import PROTECTED

pytestmark = pytest.mark.slow

EDITS = {
    "nothing": ["true"],
    "ordinary edits": [
        "echo four >>code.py; printf 'no newline' >pkg/a.py; rm gone.txt; rm -r pkg/deep; git mv moved.txt else.txt",
        "printf '\\0\\1\\377' >new.bin; printf x | dd of=binary.bin bs=1 seek=77 conv=notrunc 2>/dev/null",
        "printf 'na\\357ve\\n' >>latin.txt; printf 'c\\r\\n' >>dos.txt; printf 'd\\r\\ne\\n' >mixed.txt",
        "chmod +x code.py; chmod -x tool.sh; printf x >new.sh; chmod 755 new.sh",
        "ln -s pkg/a.py l1; ln -s ../code.py pkg/l2; rm link; ln -s gone.txt link; ln -s missing l3",
    ],
    "git states": [
        "echo x >>code.py; git add -A; echo y >code.py; git rm -q --cached gone.txt; rm tool.sh",
        "git update-index --assume-unchanged dos.txt; git update-index --skip-worktree latin.txt",
        "echo x >>dos.txt; echo x >>latin.txt; echo '*' >.git/info/exclude; echo x >new.txt; touch .git/index.lock",
    ],
    "commits": [
        "git checkout -qb other; echo x >>code.py; echo new >new.txt; git add -A; git commit -qm done",
        "echo y >>code.py; git mv moved.txt else.txt; git commit -qm more",
        "git rm -q gone.txt; git stash -q; git stash pop -q",
    ],
    "history thrown away": ["rm -rf .git; echo x >>code.py"],
    "hidden by the agent's ignore file": ["echo '*' >.gitignore; echo x >new.txt; echo y >>code.py"],
    "attributes": [
        "printf '* text=auto eol=crlf ident\\n*.u text working-tree-encoding=UTF-16\\n*.py -diff\\n' >.gitattributes",
        "printf '$Id: x$\\r\\n' >id.txt; echo x >a.u; echo x >>code.py; echo x >>dos.txt",
    ],
    "shapes": [
        "rm code.py; mkdir code.py; echo x >code.py/inner; rm -r pkg/deep; echo x >pkg/deep",
        "mv pkg real; ln -s real pkg; rm dos.txt; ln -s gone.txt dos.txt; rm link; mkdir link; echo x >link/f",
    ],
    "odd names": [
        "printf x >' lead'; printf x >'new\nline'; printf x >'\"q\"\\'; printf x >':(glob)x'; printf x >':!y'",
        "printf x >-rf; printf x >'a*b'",
        "printf x >\"$(printf 'n\\351.txt')\"; mkdir \"$(printf 'd\\351')\"; printf x >\"$(printf 'd\\351/f')\"",
    ],
    "nested repositories": [
        "git init -q sub; echo x >sub/f; (cd sub; git add f; git -c user.name=a -c user.email=a@b commit -qm x)",
        "git init -q empty; echo x >empty/f; git worktree add -q tree; echo x >tree/f",
        "git -c protocol.file.allow=always submodule --quiet add ./sub module",
    ],
    "unreadable and special": [
        "chmod 000 code.py; mkdir shut; echo x >shut/f; chmod 000 shut; mkfifo pipe; chmod 400 dos.txt"
    ],
    "big and many": ["mkdir many; for i in $(seq 300); do echo $i >many/$i; done; yes | head -c 3000000 >big.txt"],
}


def tree(folder: Path) -> dict[bytes, tuple[str, bytes]]:
    """Every file and link below `folder`, but for the parts of repositories and what is no file."""
    found: dict[bytes, tuple[str, bytes]] = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in folders + files:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            key = os.path.relpath(path, os.fsencode(folder))
            if stat.S_ISLNK(mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISREG(mode) and name != b".git":
                found[key] = ("program" if mode & 0o100 else "file", Path(os.fsdecode(path)).read_bytes())
    return found


async def snapshot(sandbox: Sandbox, folder: Path) -> dict[bytes, tuple[str, bytes]]:
    await sandbox.download(sandbox.workspace, folder)
    return tree(folder)


async def act(sandbox: Sandbox, script: str) -> None:
    """As an agent would: an ordinary command in the workspace."""
    result = await sandbox.exec(["/bin/sh", "-ec", script])
    assert result.ok, result.stderr


async def collected(sandbox: Sandbox, make_task, script: str, **changes) -> Patch:
    base = await prepare(sandbox, make_task(**changes))
    await act(sandbox, script)
    return await base.collect()


async def applied(sandbox: Sandbox, make_task, patch: Patch, protected=PROTECTED, **changes) -> Applied:
    base = await prepare(sandbox, make_task(**changes))
    return await base.apply(patch, protected)


@pytest.mark.parametrize("name", EDITS)
async def test_a_clean_workspace_takes_over_everything_an_agent_did(name, new_sandbox, make_task, tmp_path) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    patch = await collected(agents, make_task, "\n".join(EDITS[name]))
    wanted = await snapshot(agents, tmp_path / "wanted")
    result = await applied(clean, make_task, patch, protected=())
    assert await snapshot(clean, tmp_path / "got") == wanted
    assert result == Applied(cleanly=True, changed=patch.changed)
    assert bool(patch.data) == bool(patch.changed) == (name != "nothing")
    assert not patch.left_out


async def test_the_base_is_the_same_tree_in_every_sandbox(new_sandbox, make_task) -> None:
    one, two = await prepare(await new_sandbox(), make_task()), await prepare(await new_sandbox(), make_task())
    assert one.tree == two.tree


async def test_new_files_that_the_first_ignore_rules_leave_out_are_named_and_not_taken(new_sandbox, make_task) -> None:
    agents = await new_sandbox()
    script = "mkdir build; touch build/x a.log pkg/local; echo '!*.log' >.gitignore; echo >pkg/other"
    patch = await collected(agents, make_task, script, setup=("touch setup.log",))
    assert patch.changed == (".gitignore", "pkg/other")
    assert (patch.ignored, patch.ignored_count) == (("a.log", "build/x", "pkg/local"), 3)


async def test_only_the_first_of_many_ignored_files_are_named(new_sandbox, make_task) -> None:
    patch = await collected(await new_sandbox(), make_task, "mkdir build; cd build; seq -w 100 | xargs touch")
    assert patch.ignored == tuple(f"build/{number:03}" for number in range(1, 51))
    assert patch.ignored_count == 100


@pytest.mark.parametrize(
    "keep",
    [
        "git add -f a.log build/x",
        "git add -f a.log build/x; git commit -qm work",
        "git checkout -qb other; git add -f a.log build/x; git commit -qm work; rm -r .git/objects .git/refs",
        "git add -f a.log build/x; git update-index --split-index",
        "git add -f a.log build/x; mkfifo .git/pipe; git config include.path pipe",
    ],
    ids=["staged", "committed", "a history that broke", "a split index", "a configuration that never ends"],
)
async def test_ignored_files_that_the_agent_gave_to_git_are_taken(new_sandbox, make_task, tmp_path, keep: str) -> None:
    agents, clean, setup = await new_sandbox(), await new_sandbox(), ("mkdir build; echo old >build/x",)
    script = f"echo one >a.log; echo new >build/x; echo two >b.log; {keep}"
    patch = await collected(agents, make_task, script, setup=setup)
    assert (patch.changed, patch.ignored) == (("a.log", "build/x"), ("b.log",))
    assert (await applied(clean, make_task, patch, setup=setup)).cleanly
    got = await snapshot(clean, tmp_path / "got")
    assert (got[b"a.log"], got[b"build/x"]) == (("file", b"one\n"), ("file", b"new\n"))


@pytest.mark.parametrize(
    "index",
    [
        "rm .git/index; mkfifo .git/index",
        "rm .git/index; ln -s /dev/zero .git/index",
        "echo broken >.git/index",
        "printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377' >.git/index; truncate -s 1T .git/index",
        "git update-index --split-index; shared=$(echo .git/sharedindex.*); rm $shared; mkfifo $shared",
        "rm -r .git; ln -s /proc/self .git",
        "mv .git elsewhere; echo 'gitdir: elsewhere' >.git",
    ],
)
async def test_an_index_that_cannot_be_read_holds_nothing(
    new_sandbox, make_task, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    monkeypatch.setattr(private_git, "INDEX_S", 1.0)
    patch = await collected(await new_sandbox(), make_task, f"echo one >a.log; git add -f a.log; {index}")
    assert patch.ignored == ("a.log",)


async def test_an_ignored_file_that_the_source_tracks_is_taken(new_sandbox, make_task, source, tmp_path) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    (source / "kept.log").write_text("tracked\n")
    for command in (["init", "-q"], ["add", "-f", "."]):
        await (await asyncio.create_subprocess_exec("git", "-C", str(source), *command)).wait()
    patch = await collected(agents, make_task, "echo more >>kept.log; git status --short | grep -q kept.log")
    assert patch.changed == ("kept.log",)
    await applied(clean, make_task, patch)
    assert (await snapshot(clean, tmp_path / "got"))[b"kept.log"] == ("file", b"tracked\nmore\n")


async def test_protected_paths_are_left_out_and_stay_as_they_were(new_sandbox, make_task, tmp_path) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    script = """
    echo assert False >>tests/test_code.py; rm tests/data.json; echo x >tests/new.py; echo x >conftest.py
    mkdir -p pkg/__pycache__ pkg/tests; echo x >pkg/__pycache__/a.cpython-311.pyc; echo x >pkg/tests/t
    echo x >sitecustomize.py; echo x >pkg/test_a.py; echo [pytest] >pytest.ini; echo fixed >>code.py
    """
    patch = await collected(agents, make_task, script)
    result = await applied(clean, make_task, patch)
    assert result.changed == ("code.py",)
    assert {left.reason for left in result.left_out} == {"protected"}
    assert len(result.left_out) == len(patch.changed) - 1 == 9
    got = await snapshot(clean, tmp_path / "got")
    assert got[b"tests/test_code.py"][1] == b"assert True\n"
    assert b"tests/data.json" in got
    assert b"conftest.py" not in got


async def test_a_protected_folder_cannot_be_exchanged_for_a_link(new_sandbox, make_task, tmp_path) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    patch = await collected(agents, make_task, "mv tests mine; echo pass >mine/test_code.py; ln -s mine tests")
    result = await applied(clean, make_task, patch)
    assert "tests" in {left.path for left in result.left_out}
    got = await snapshot(clean, tmp_path / "got")
    assert got[b"tests/test_code.py"] == ("file", b"assert True\n")


async def test_a_protected_file_comes_back_even_where_its_folder_became_a_file(
    new_sandbox, make_task, tmp_path
) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    patch = await collected(agents, make_task, "rm -r pkg; echo x >pkg")
    result = await applied(clean, make_task, patch, protected=("pkg/deep/*.py",))
    assert {(left.path, left.reason) for left in result.left_out} == {
        ("pkg", "displaced"),
        ("pkg/deep/b.py", "protected"),
    }
    assert (await snapshot(clean, tmp_path / "got"))[b"pkg/deep/b.py"] == ("file", b"b\n")


async def test_links_that_leave_the_tree_are_left_out(new_sandbox, make_task, tmp_path) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    script = """
    ln -s /etc/passwd absolute; ln -s ../../x up; ln -s ../.. pkg/up2; ln -s .git/config git
    ln -s deep pkg/inside; ln -s pkg/inside/../../../x through
    """
    patch = await collected(agents, make_task, script)
    result = await applied(clean, make_task, patch)
    assert result.changed == ("pkg/inside",)
    assert {left.reason for left in result.left_out} == {"symlink_leaves_tree"}
    assert not (await snapshot(clean, tmp_path / "got")).keys() & {b"absolute", b"up", b"pkg/up2", b"git", b"through"}


async def test_names_git_has_no_place_for_are_reported(new_sandbox, make_task) -> None:
    patch = await collected(await new_sandbox(), make_task, "mkdir 'git~1'; echo x >'git~1/config'; echo x >>code.py")
    assert patch.changed == ("code.py",)
    assert [(left.path, left.reason) for left in patch.left_out] == [("git~1/config", "invalid_path")]


async def test_a_forged_patch_with_a_path_outside_is_refused(new_sandbox, make_task, tmp_path) -> None:
    clean = await new_sandbox()
    base = await prepare(clean, make_task())
    before = await snapshot(clean, tmp_path / "before")
    for path in (".git/config", "../outside", "/etc/passwd", "pkg/.git/hooks/post-checkout", "pkg/../../outside"):
        data = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
        with pytest.raises(PatchRefused, match="does not take the patch"):
            await base.apply(Patch(base.tree, data.encode()), PROTECTED)
    assert await snapshot(clean, tmp_path / "after") == before


async def test_a_forged_patch_with_a_submodule_is_not_applied(new_sandbox, make_task) -> None:
    base = await prepare(await new_sandbox(), make_task())
    data = "diff --git a/sub b/sub\nnew file mode 160000\n--- /dev/null\n+++ b/sub\n@@ -0,0 +1 @@\n"
    data += f"+Subproject commit {'1' * 40}\n"
    result = await base.apply(Patch(base.tree, data.encode()), PROTECTED)
    assert [(left.path, left.reason) for left in result.left_out] == [("sub", "nested_repository")]


async def test_a_patch_onto_another_base_says_that_it_is_not_clean(new_sandbox, make_task, tmp_path) -> None:
    agents, clean, other = await new_sandbox(), await new_sandbox(), await new_sandbox()
    patch = await collected(agents, make_task, "sed -i s/two/TWO/ code.py")
    result = await applied(clean, make_task, patch, setup=("echo x >>gone.txt",))
    assert not result.cleanly
    assert (await snapshot(clean, tmp_path / "got"))[b"code.py"][1] == b"one\nTWO\nthree\n"
    with pytest.raises(GraderError, match="setup commands"):
        await applied(other, make_task, patch, setup=("echo entirely different >code.py",))


async def test_too_much_content_is_refused_by_size(new_sandbox, make_task, monkeypatch) -> None:
    monkeypatch.setattr(patch_module, "CONTENT_BYTES", 1000)
    with pytest.raises(PatchRefused, match="1000"):
        await collected(await new_sandbox(), make_task, "seq 1000 >big")


async def test_what_still_runs_is_dead_before_the_patch_is_taken(new_sandbox, make_task, tmp_path) -> None:
    agents = await new_sandbox()
    base = await prepare(agents, make_task())
    writer = "while :; do date +%N >>late.txt; sleep 0.01; done"
    await agents.spawn(["/bin/sh", "-c", f"setsid sh -c '{writer}' & wait"], logs=tmp_path / "logs")
    for _ in range(200):
        if (await agents.exec(["test", "-s", "late.txt"])).ok:
            break
    patch = await base.collect()
    assert "late.txt" in patch.changed
    again = await base.collect()
    assert again.data == patch.data


async def test_a_patch_survives_being_stored(new_sandbox, make_task) -> None:
    patch = await collected(await new_sandbox(), make_task, "\n".join(EDITS["odd names"]))
    assert msgspec.json.decode(msgspec.json.encode(patch), type=Patch) == patch


async def test_the_base_can_be_asked_again_and_again(new_sandbox, make_task) -> None:
    agents = await new_sandbox()
    base: Base = await prepare(agents, make_task())
    assert (await base.collect()).data == b""
    await act(agents, "echo x >>code.py")
    first = await base.collect()
    assert first.changed == ("code.py",)
    assert (await base.collect()) == first
