"""What the machine is found to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridle.doctor.machine import facts, render


def test_what_is_there_is_shown_and_what_is_needed_here_is_well(tmp_path: Path) -> None:
    (tmp_path / "harnesses/codex/1.2.3").mkdir(parents=True)
    (tmp_path / "harnesses/codex/.1.2.4.unfinished").mkdir()
    found = {fact.name: fact for fact in facts(tmp_path)}
    assert all(fact.well is not False for fact in found.values())
    assert (found["bridle"].well, found["git"].well, found["sandbox local"].well) == (True, True, True)
    assert (found["agent codex"].well, found["agent codex"].detail) == (True, "1.2.3")
    assert (found["agent pi"].well, found["agent pi"].detail) == (None, "not installed yet")
    assert "ok  agent codex" in "\n".join(render(list(found.values())))


def test_a_program_that_is_needed_and_missing_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {fact.name: fact for fact in facts(tmp_path)}
    assert found["git"].well is False
    assert found["npm"].well is None
    assert any(line.startswith("NO  git") for line in render(list(found.values())))


def test_a_program_that_does_not_start_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = {fact.name: fact for fact in facts(tmp_path)}
    assert found["python3.12"].well is None
    assert "command not found" in found["python3.12"].detail
