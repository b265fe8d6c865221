from __future__ import annotations

import pytest

from bridle.graders.protected import Protected, shown, stays_inside, valid
from bridle.tasks.base import PROTECTED


@pytest.mark.parametrize(
    ("glob", "covered", "free"),
    [
        ("conftest.py", ["conftest.py", "a/b/conftest.py", "conftest.py/inner"], ["xconftest.py", "conftest.pyc"]),
        ("test_*.py", ["test_a.py", "a/test_.py"], ["a/mytest_a.py", "test_a.pyi"]),
        ("tests/**", ["tests", "tests/a", "pkg/tests/a/b"], ["mytests/a", "pkg/tests2"]),
        ("tests/", ["tests/a", "tests"], ["testsuite/a"]),
        ("/tests", ["tests", "tests/a"], ["pkg/tests"]),
        ("**/fixtures/**", ["fixtures/a", "a/fixtures/b"], ["a/fixture"]),
        ("pkg/*.cfg", ["pkg/a.cfg"], ["pkg/x/a.cfg", "a/pkg/b.cfg", "b.cfg"]),
        ("pkg/**/data", ["pkg/data", "pkg/a/b/data/x"], ["data", "pkg/adata"]),
        ("a?[bc][!d].txt", ["axbe.txt", "d/a1cc.txt"], ["axbd.txt", "a/b.txt"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_globs_cover_paths_as_ignore_files_do(glob: str, covered: list[str], free: list[str]) -> None:
    protected = Protected([glob])
    assert [path for path in covered if not protected.covers(path.encode())] == []
    assert [path for path in free if protected.covers(path.encode())] == []


def test_the_default_protects_tests_and_what_an_interpreter_runs_unasked() -> None:
    protected = Protected(PROTECTED)
    for path in ("tests/x", "a/test_b.py", "b_test.py", "setup.cfg", "tox.ini", "x/sitecustomize.py", "a/b.pth"):
        assert protected.covers(path.encode()), path
    for path in (
        "pkg/__pycache__/test_a.cpython-311.pyc",
        "pkg/test_a.pyc",
        "pytest.ini",
        ".pytest.ini",
        "conftest.py",
    ):
        assert protected.covers(path.encode()), path
    for path in ("src/contest.py", "testing.py", "django/test/client.py", "setup.py", "pyproject.toml"):
        assert not protected.covers(path.encode()), path


def test_paths_of_any_bytes_are_covered() -> None:
    assert Protected(["tests"]).covers(b"d\xe9\n/tests/\xff")
    assert Protected(["caf\u00e9*"]).covers("caf\u00e91".encode())
    assert shown(b"d\xe9") == "d\\xe9"


@pytest.mark.parametrize("path", [b"../a", b"/a", b"a/../b", b".git/config", b"a/.GIT/b", b"a//b", b"./a", b""])
def test_paths_that_leave_the_tree_are_invalid(path: bytes) -> None:
    assert not valid(path)
    assert valid(b"a/.gitignore/..b")


@pytest.mark.parametrize(
    ("link", "target", "inside"),
    [
        (b"a", b"b/c", True),
        (b"d/a", b"../b", True),
        (b"d/a", b"./../b", True),
        (b"a", b"../b", False),
        (b"d/a", b"../../b", False),
        (b"a", b"/b", False),
        (b"a", b"b/../c", False),
        (b"a", b".git/config", False),
        (b"d/a", b"..", True),
        (b"a", b"..", False),
    ],
)
def test_a_link_stays_inside_when_it_cannot_lead_out(link: bytes, target: bytes, inside: bool) -> None:
    assert stays_inside(link, target) is inside
