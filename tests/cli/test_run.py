from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bridle.cli.report import PLAIN_WIDTH

pytestmark = pytest.mark.slow

KEYS = {
    *("id", "task", "status", "cause", "reward", "turns", "sampled_tokens", "trained_tokens", "untrained"),
    *("samples", "stages"),
}
STAGES = ["provision", "prepare", "open", "run", "collect", "grade", "build", "deliver"]
BRIDLE = str(Path(sys.executable).with_name("bridle"))


def test_json_is_one_document_on_stdout_and_progress_is_lines_on_stderr(finished: Any) -> None:
    document = json.loads(finished.stdout)
    assert finished.returncode == 0, finished.stderr
    rollouts = document["rollouts"]
    assert [rollout["id"] for rollout in rollouts] == ["fix-0", "fix-1", "spoil-0", "spoil-1"]
    assert all(set(rollout) >= KEYS for rollout in rollouts)
    assert [rollout["reward"] for rollout in rollouts] == [1.0, 1.0, 0.0, 0.0]
    assert all(list(rollout["stages"]) == STAGES for rollout in rollouts)
    assert document["totals"]["rollouts"] == document["totals"]["graded"] == 4
    assert document["totals"]["sampled_tokens"] == sum(rollout["sampled_tokens"] for rollout in rollouts)
    assert document["check"]["ok"]
    assert document["check"]["kept_percent"] == 100.0
    assert re.search(r"^fix-0: reward 1, finished, 2 turns, \d+ tokens, [\d.]+ s$", finished.stderr, re.MULTILINE)
    assert "\x1b" not in finished.stderr


def test_a_run_keeps_its_document_and_its_settings(place: Any, finished: Any) -> None:
    assert json.loads((place.folder / "done/run.json").read_text()) == json.loads(finished.stdout)
    settings = json.loads((place.folder / "done/settings.json").read_text())
    assert settings["n"] == 2
    assert (Path(settings["model"]) / "tokenizer.json").exists()


def test_nothing_of_a_sandbox_is_left(place: Any, finished: Any) -> None:
    assert finished.returncode == 0
    assert list((place.folder / "data/sandboxes").glob("*")) == []


def test_a_finished_run_is_not_written_over(place: Any, bridle: Any, finished: Any) -> None:
    again = bridle(*place.run("fix.jsonl", "--out", "done"))
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "error: done holds a run already; choose another --out\n"


def test_a_rollout_without_a_grade_makes_the_exit_code_one(place: Any, bridle: Any) -> None:
    place.write("broken", "true", setup=["echo no luck >&2; false"])
    done = bridle(*place.run("broken.jsonl", "--out", "broken"))
    assert done.returncode == 1
    assert "broken-0: no grade, sandbox (prepare: task broken: setup command" in done.stdout
    assert "Traceback" not in done.stderr


def test_tables_are_whole_where_there_is_no_terminal(bridle: Any, finished: Any) -> None:
    shown = bridle("show", "done").stdout
    lines = shown.splitlines()
    assert max(len(line) for line in lines) <= PLAIN_WIDTH
    assert sum(line.startswith(("fix-", "spoil-")) for line in lines) == 8
    assert "agent: command unversioned" in shown
    assert "4 rollouts, 4 graded, mean reward 0.5, 4 samples" in shown
    assert "…" not in shown


@pytest.mark.parametrize("columns", [100, 160])
def test_tables_fit_a_terminal(place: Any, finished: Any, columns: int) -> None:
    code, output = in_terminal(["show", "done"], place.folder, columns)
    assert code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert max(len(line) for line in text.splitlines() if line.startswith(("fix-", "spoil-"))) <= columns
    document = json.loads(finished.stdout)
    for rollout in document["rollouts"]:
        cells = next(line for line in text.splitlines() if line.startswith(rollout["id"])).split()
        assert cells[1:5] == [
            f"{rollout['reward']:g}",
            "finished",
            f"{rollout['turns']}",
            f"{rollout['sampled_tokens']}",
        ]


def test_a_terminal_sees_bars(place: Any) -> None:
    code, output = in_terminal(place.run("fix.jsonl", "--out", "bars"), place.folder, 100)
    assert code == 0
    assert "━" in output
    assert "fix-0: reward 1, finished" in output


def in_terminal(words: list[str], folder: Path, columns: int) -> tuple[int, str]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(BRIDLE, [BRIDLE, *words], {**os.environ, "COLUMNS": f"{columns}", "TERM": "xterm-256color"})
    output = b""
    while select.select([terminal], [], [], 90)[0]:
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has_and_leaves_nothing_running(place: Any, number: int) -> None:
    place.write("long", "sleep 63")
    out = place.folder / f"long-{number}"
    process = subprocess.Popen(
        [BRIDLE, *place.run("long.jsonl", "--out", str(out))], cwd=place.folder, stderr=subprocess.PIPE, text=True
    )
    log = out / "rollouts/long-0/session.log"
    until = time.monotonic() + 60
    while not (log.exists() and "sleep\x0063" in command_lines()) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == 130, stderr
    assert f"interrupted; what was captured lies in {out}" in stderr
    assert "Traceback" not in stderr
    assert "sleep\x0063" not in command_lines()
    assert list((place.folder / "data/sandboxes").glob("*")) == []
    record = json.loads((out / "rollouts/long-0/rollout.json").read_text())
    assert (record["status"], record["cause"], record["reward"], record["turns"]) == ("aborted", "cancelled", None, 1)


def test_a_run_that_captured_nothing_names_no_place_to_look(place: Any) -> None:
    words = place.run("fix.jsonl", "--out", "none", "--engine", "own:Slow", "--set", "engine.options.wait=60")
    process = subprocess.Popen(
        [BRIDLE, *words], cwd=place.folder, env=place.environment, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (place.folder / "entered").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=40)
    assert (place.folder / "entered").read_text() == "Config(wait=60.0)"
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted; nothing was captured"


def command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def test_a_tasks_own_agent_is_taken_where_the_run_names_none(place: Any, bridle: Any, cache: Path) -> None:
    options = {"argv": ["sh", "-c", "exit 0"]}
    place.write("own", "true", harness={"name": "command", "options": options})
    done = bridle("run", "own.jsonl", "--out", "own", "--json", *place.settings(cache))
    (rollout,) = json.loads(done.stdout)["rollouts"]
    assert (done.returncode, rollout["harness"], rollout["cause"]) == (1, "command", "never_called_model")


# What cannot be used: one line, exit code 2

UNINSTALLABLE = ["--set", "harness.options.mounts=[/nowhere]"]
"""An agent that fails when it is installed: settings are looked at before."""

BAD = [
    (["rnu"], 'unknown verb "rnu": did you mean "run"? There are: audit, check'),
    (["run", "fix.jsonl", "--harnes", "x"], "No such option '--harnes'. Did you mean '--harness'?"),
    (["run", "nowhere.jsonl"], "Path 'nowhere.jsonl' does not exist"),
    (["run"], "Missing argument 'FILES...'"),
    (["run", "fix.jsonl", "fix.jsonl"], "a task of the same id"),
    (["run", "fix.jsonl", "--task", "fx"], "no task fx; there are: fix"),
    (["run", "fix.jsonl", "--harness", "mini_swe"], 'unknown harness "mini_swe": did you mean "mini_swe_agent"?'),
    (["run", "fix.jsonl", "--harness", "command"], "harness.options of command: argv: missing, and required."),
    (["run", "fix.jsonl", "--engine", "scriptd", "FLAGS"], 'unknown engine "scriptd": did you mean "scripted"?'),
    (["run", "fix.jsonl", "--engine", "no.such:Engine", "FLAGS"], "importing no.such failed"),
    (["run", "fix.jsonl", "FLAGS", "--set", "sandbox.name=bubblewarp"], 'did you mean "bubblewrap"?'),
    *(
        (["run", "fix.jsonl", "FLAGS", *UNINSTALLABLE, *words], message)
        for words, message in (
            (["--set", "engine.options.speed=1"], 'engine.options of scripted: speed: unknown key "speed"'),
            (["--set", "engine.options.score=half"], "engine.options of scripted: score: expected one of none, fake"),
            (["--engine", "transformers", "--set", "engine.options.threads=0"], "threads: expected at least 1, got 0"),
            (["--engine", "own:Plain", "--set", "engine.options.x=1"], "engine.options of own:Plain: x: unknown key"),
            (["--engine", "own:Slow", "--set", "engine.options.wait=x"], "engine.options of own:Slow: wait: expected"),
            (["--set", "samples.builder=trees"], 'unknown builder "trees": did you mean "tree"?'),
            (["--set", "reducer=nowhere:keep"], 'reducer "nowhere:keep": importing nowhere failed'),
            (["--set", "credit.rule=brodcast"], 'unknown credit rule "brodcast": did you mean "broadcast"?'),
            (["--set", "sandbox.name=bubblewarp"], 'did you mean "bubblewrap"?'),
            (["--set", "engine.options.script=nowhere.yaml"], "cannot read the script nowhere.yaml"),
        )
    ),
    (["run", "fix.jsonl", "--set", "gateway.prt=1"], 'gateway.prt: unknown key "prt": did you mean "port"?'),
    (["run", "bad-line.jsonl"], "bad-line.jsonl:2: not JSON"),
    (["run", "bad-key.jsonl"], 'bad-key.jsonl:1: instructoin: unknown key "instructoin": did you mean "instruction"?'),
    (["run", "bad-value.jsonl"], "bad-value.jsonl:1: budgets.agent_s: expected"),
    (["run", "bad-grader.jsonl", "FLAGS"], 'unknown grader "comand": did you mean "command"?'),
    (["show", "data"], "data holds no finished rollout"),
    (["show", "done", "--rollout", "nope"], "no rollout nope here; there are: fix-0, fix-1, spoil-0, spoil-1"),
    (["check", "data"], "journal.jsonl does not exist"),
    (["export", "data", "x.jsonl"], "data holds no samples"),
    (["export", "done", "x.jsonl", "--format", "jsonll"], 'unknown exporter "jsonll": did you mean "jsonl"?'),
    (["linearize", "fix.yaml"], "fix.yaml"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_what_cannot_be_used_is_said_in_one_line(
    place: Any, bridle: Any, finished: Any, words: list[str], message: str
) -> None:
    task = (place.folder / "fix.jsonl").read_text()
    (place.folder / "bad-line.jsonl").write_text(task + "{\n")
    (place.folder / "bad-key.jsonl").write_text(task.replace('"instruction"', '"instructoin"'))
    (place.folder / "bad-value.jsonl").write_text(task.replace('"agent_s": 30', '"agent_s": "x"'))
    (place.folder / "bad-grader.jsonl").write_text(task.replace('"name": "command"', '"name": "comand"'))
    place_words = [flag for word in words for flag in (place.flags if word == "FLAGS" else [word])]
    done = bridle(*place_words)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("sandbox: ")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert (done.returncode, done.stdout) == (2, "")
