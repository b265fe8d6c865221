"""Nothing an agent leaves in its workspace or home is run, or believed, when its changes are taken."""

from __future__ import annotations

import pytest

from bridle.graders.workspace import prepare
from bridle.sandboxes import default_sandbox

# Everything git can be told to run, in every place it is told from.
TRAP = r"""
touch kept.log; git add -f kept.log
cat >evil <<'END'
#!/bin/sh
echo "$0 $*" >>"$TRAP_MARK"
cat
END
sed -i "s#\$TRAP_MARK#$PWD/ran#" evil
chmod +x evil
mkdir -p hooks "$HOME/.config/git"
for hook in pre-commit post-commit post-checkout post-index-change reference-transaction fsmonitor-watchman; do
    cp evil hooks/$hook; cp evil .git/hooks/$hook
done
settings() {
    git config --file "$1" core.fsmonitor "$PWD/evil"
    git config --file "$1" core.hooksPath "$PWD/hooks"
    git config --file "$1" core.pager "$PWD/evil"
    git config --file "$1" diff.external "$PWD/evil"
    git config --file "$1" diff.evil.command "$PWD/evil"
    git config --file "$1" diff.evil.textconv "$PWD/evil"
    git config --file "$1" filter.evil.clean "$PWD/evil"
    git config --file "$1" filter.evil.smudge "$PWD/evil"
    git config --file "$1" filter.evil.process "$PWD/evil"
    git config --file "$1" core.attributesFile "$HOME/attributes"
    git config --file "$1" core.excludesFile "$HOME/ignore"
    git config --file "$1" core.worktree /tmp
}
settings .git/config; settings "$HOME/.gitconfig"; settings "$HOME/.config/git/config"
for file in .gitattributes "$HOME/attributes" "$HOME/.config/git/attributes" .git/info/attributes; do
    echo '* diff=evil filter=evil' >"$file"
done
for file in "$HOME/ignore" "$HOME/.config/git/ignore" .git/info/exclude; do echo '*' >"$file"; done
for file in .profile .bashrc .bash_profile .zshenv; do
    echo "export GIT_DIR=$PWD/.git GIT_EXTERNAL_DIFF=$PWD/evil" >"$HOME/$file"
done
echo changed >>code.py
"""


async def test_no_program_of_the_agents_runs_when_its_changes_are_taken(new_sandbox, make_task) -> None:
    agents, clean = await new_sandbox(), await new_sandbox()
    base = await prepare(agents, make_task())
    assert (await agents.exec(["/bin/sh", "-ec", TRAP])).ok
    patch = await base.collect()
    assert not (await agents.exec(["test", "-e", "ran"])).ok
    assert {"code.py", "evil", ".gitattributes", "kept.log"} <= set(patch.changed)
    await (await prepare(clean, make_task())).apply(patch, ())
    assert not (await clean.exec(["test", "-e", "ran"])).ok
    await agents.exec(["/bin/sh", "-c", "git --work-tree=. add -A; git --work-tree=. diff HEAD"])
    assert b"evil" in await agents.read(f"{agents.workspace}/ran"), "the trap is none: git itself did not fall into it"


async def test_the_agent_does_not_see_the_private_repository(new_sandbox, make_task) -> None:
    if default_sandbox()[0] == "local":
        pytest.skip("`local` isolates nothing")
    agents = await new_sandbox()
    await prepare(agents, make_task())
    assert (await agents.exec(["test", "-d", f"{agents.private}/git"], private=True)).ok
    assert not (await agents.exec(["test", "-e", f"{agents.private}/git"])).ok


async def test_conversions_named_in_the_tree_change_no_byte_of_the_base(new_sandbox, make_task, source) -> None:
    (source / ".gitattributes").write_text("* text=auto eol=lf ident\n")
    (source / "id.txt").write_bytes(b"$Id: kept$\r\n")
    agents = await new_sandbox()
    base = await prepare(agents, make_task())
    assert (await base.collect()).changed == ()
    await agents.exec(["/bin/sh", "-c", "printf '$Id$\\n' >id.txt"])
    patch = await base.collect()
    assert b"-$Id: kept$\r\n+$Id$\n" in patch.data
