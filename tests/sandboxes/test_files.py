"""Files reached from the host: as given, and never through what an agent planted. Run over every implementation."""

import os
import stat
from pathlib import Path

import pytest

from bridle.errors import BadRequest, NotFound
from bridle.sandboxes import NAMES, files
from bridle.sandboxes.base import Sandbox

pytestmark = pytest.mark.parametrize("make", [(name, "polled") for name in NAMES], ids=list(NAMES), indirect=True)
SECRET = "the host's own"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "host" / "secret"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


def tree(root: Path) -> dict[str, tuple[str, int, bytes | str]]:
    """-> kind, permissions and content by relative path."""
    found: dict[str, tuple[str, int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path.relative_to(root))] = ("link", 0, str(path.readlink()))
        elif path.is_dir():
            found[str(path.relative_to(root))] = ("folder", mode, b"")
        else:
            found[str(path.relative_to(root))] = ("file", mode, path.read_bytes())
    return found


async def test_what_is_written_is_read_by_commands_and_back(box: Sandbox) -> None:
    await box.write(f"{box.workspace}/new/folder/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await box.exec(["new/folder/run.sh"])).stdout == b"ran\n"
    await box.exec(["sh", "-c", "printf 'from \\377 inside' >out"])
    assert await box.read("out") == b"from \377 inside"
    await box.write("out", b"again")
    assert await box.read(f"{box.workspace}//./out") == b"again"


async def test_every_place_of_the_sandbox_is_reachable(box: Sandbox) -> None:
    for place in (box.workspace, box.home, box.private):
        await box.write(f"{place}/x", place.encode())
        result = await box.exec(["cat", f"{place}/x"], private=True)
        assert result.stdout == place.encode()


async def test_a_tree_goes_in_and_out_with_modes_links_and_times(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "bin").mkdir(mode=0o700)
    (source / "bin" / "tool").write_bytes(os.urandom(3_000_000))
    (source / "bin" / "tool").chmod(0o751)
    (source / "bin" / "link").symlink_to("tool")
    (source / "away").symlink_to("/etc/passwd")
    (source / "locked").mkdir()
    (source / "locked" / "file").write_text("x")
    (source / "locked").chmod(0o555)
    os.utime(source / "locked" / "file", ns=(1_000_000_000, 2_000_000_000))
    await box.upload(source, f"{box.workspace}/copy")
    assert (
        await box.exec(["sh", "-c", "readlink copy/away && stat -c %a copy/bin/tool"])
    ).stdout == b"/etc/passwd\n751\n"
    await box.download(f"{box.workspace}/copy", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert (tmp_path / "back" / "locked" / "file").stat().st_mtime_ns == 2_000_000_000
    (source / "locked").chmod(0o755)


async def test_a_tree_is_merged_into_the_workspace_itself(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "a").write_text("a")
    await box.write("sub/b", b"b")
    await box.upload(tmp_path / "source", box.workspace)
    assert (await box.exec(["cat", "sub/a", "sub/b"])).stdout == b"ab"
    await box.download(box.workspace, tmp_path / "all")
    assert sorted(tree(tmp_path / "all")) == ["sub", "sub/a", "sub/b"]


async def test_a_single_file_goes_in_and_out_under_the_name_given(box: Sandbox, tmp_path: Path, secret: Path) -> None:
    await box.upload(secret, f"{box.workspace}/named")
    await box.download(f"{box.workspace}/named", tmp_path / "out" / "renamed")
    assert (tmp_path / "out" / "renamed").read_text() == SECRET
    with pytest.raises(BadRequest, match="name the file"):
        await box.upload(secret, box.workspace)


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/workspacex/a", "../escape", "a/../../b", "/workspace/../etc/passwd", "/"]
)
async def test_paths_outside_the_sandbox_are_refused(box: Sandbox, path: str, tmp_path: Path) -> None:
    for attempt in (box.read(path), box.write(path, b""), box.download(path, tmp_path / "x")):
        with pytest.raises(BadRequest, match="cannot be read or written"):
            await attempt


async def test_what_is_missing_is_not_found(box: Sandbox, tmp_path: Path) -> None:
    for attempt in (box.read("gone/file"), box.read("gone"), box.download("gone", tmp_path / "x")):
        with pytest.raises(NotFound, match="gone"):
            await attempt


async def test_a_planted_link_is_not_read_through(box: Sandbox, secret: Path, tmp_path: Path) -> None:
    await box.exec(["sh", "-c", f"ln -s {secret} file; ln -s {secret.parent} folder; mkfifo pipe"])
    for path in ("file", "folder/secret", "pipe", "folder"):
        with pytest.raises(BadRequest):
            await box.read(path)
    with pytest.raises(BadRequest):
        await box.download("folder/secret", tmp_path / "stolen")
    assert not (tmp_path / "stolen").exists()


async def test_a_planted_link_is_not_written_through(box: Sandbox, secret: Path, tmp_path: Path) -> None:
    await box.exec(["sh", "-c", f"ln -s {secret} file; ln -s {secret.parent} folder"])
    await box.write("file", b"mine")
    assert await box.read("file") == b"mine"
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "secret").write_text("overwritten")
    for attempt in (
        box.write("folder/secret", b"overwritten"),
        box.upload(tmp_path / "up", f"{box.workspace}/folder"),
        box.upload(tmp_path / "up" / "secret", f"{box.workspace}/folder/secret"),
    ):
        with pytest.raises(BadRequest):
            await attempt
    assert secret.read_text() == SECRET


async def test_a_downloaded_tree_holds_planted_links_as_links(box: Sandbox, secret: Path, tmp_path: Path) -> None:
    await box.exec(["sh", "-c", f"mkdir t; ln -s {secret} t/file; ln -s {secret.parent} t/folder; mkfifo t/pipe"])
    await box.download("t", tmp_path / "t")
    assert tree(tmp_path / "t") == {"file": ("link", 0, str(secret)), "folder": ("link", 0, str(secret.parent))}
    await box.exec(
        ["sh", "-c", "rm t/file; echo evil >t/file; rm t/folder; mkdir t/folder; echo evil >t/folder/secret"]
    )
    with pytest.raises(BadRequest):
        await box.download("t", tmp_path / "t")
    assert secret.read_text() == SECRET


async def test_set_uid_bits_do_not_leave_the_sandbox(box: Sandbox, tmp_path: Path) -> None:
    await box.exec(["sh", "-c", "cp /bin/true tool; chmod 6755 tool"])
    await box.download("tool", tmp_path / "tool")
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755


async def test_other_users_cannot_reach_the_folders(box: Sandbox) -> None:
    assert stat.S_IMODE(Path(str(box.root)).stat().st_mode) == 0o700


async def test_a_copy_is_bounded_in_size_and_depth(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.exec(["sh", "-c", "mkdir big; truncate -s 900G big/sparse; mkdir -p deep/$(printf 'd/%.0s' $(seq 300))"])
    with pytest.raises(BadRequest, match="more than"):
        await box.download("big", tmp_path / "big")
    with pytest.raises(BadRequest, match="deeper than"):
        await box.download("deep", tmp_path / "deep")
    monkeypatch.setattr(files, "READ_LIMIT", 10)
    await box.write("long", b"x" * 11)
    with pytest.raises(BadRequest, match="use `download`"):
        await box.read("long")
