"""`--counts FILE` writes how many tests passed, failed and were left out, for whoever started the run.

Property tests have no deadline per example: on a busy machine it would measure the machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("bridle", deadline=None)
settings.load_profile("bridle")

INSTALL_S = 900
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--counts", type=Path, metavar="FILE", help="write the run's counts to FILE as JSON")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that runs a real agent installs it too."""
    for item in items:
        if item.get_closest_marker("agents"):
            item.add_marker(pytest.mark.timeout(INSTALL_S))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    target: Path | None = config.getoption("counts")
    if target is not None:
        counts = {outcome: len(terminalreporter.getreports(outcome)) for outcome in OUTCOMES}
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({**counts, "exit": int(exitstatus)}) + "\n")
