"""Every verb but `run`, on real files."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bridle.cli.main import VERBS

CASES = sorted((Path(__file__).parent.parent / "cases/trajectory").glob("*.json"))
BRIDLE = str(Path(sys.executable).with_name("bridle"))
HELP_S = 0.5


def test_show_tells_how_each_turns_prompt_came_to_be(bridle: Any, finished: Any) -> None:
    shown = bridle("show", "done", "--rollout", "fix-0").stdout.splitlines()
    assert shown[0].startswith("fix-0-0  main (")
    assert "= 0 held + " in shown[0]
    assert "echoes exact" in shown[1]


def test_check_says_ok_in_words_and_as_json(bridle: Any, finished: Any) -> None:
    done = bridle("check", "done")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "check: ok")
    assert json.loads(bridle("check", "done", "--json").stdout)["doubled"] == 0


def test_check_fails_for_a_sample_that_was_changed(place: Any, bridle: Any, finished: Any) -> None:
    changed = place.folder / "changed"
    subprocess.run(["cp", "-r", str(place.folder / "done"), str(changed)], check=True)
    path = changed / "rollouts/fix-0/samples.jsonl"
    sample = json.loads(path.read_text())
    sample["tokens"][-1] += 1
    path.write_text(json.dumps(sample) + "\n")
    done = bridle("check", "changed")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "check: FAILED")


def test_export_writes_every_sample_in_one_file(place: Any, bridle: Any, finished: Any) -> None:
    done = bridle("export", "done", "all.jsonl", "--graded")
    assert done.stdout == "4 samples of 4 rollouts written to all.jsonl\n"
    rows = [json.loads(line) for line in (place.folder / "all.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0, 1.0, 0.0, 0.0]


def test_doctor_does_not_pass_over_agents_it_was_not_asked_to_play(bridle: Any) -> None:
    done = bridle("doctor", "codex")
    assert done.returncode == 2
    assert "bridle doctor --agents" in done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_linearize_reads_every_case(place: Any, bridle: Any, case: Path) -> None:
    done = bridle("linearize", str(case))
    if "t32" in case.stem:
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        return
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for sample in document["samples"]:
        assert len(sample["tokens"]) == len(sample["loss_mask"]) == len(sample["logprobs"])
        assert "reward" in sample
    totals = document["fidelity"]["totals"]
    assert totals["trained"] + sum(totals["untrained"].values()) == totals["sampled"]
    counts = json.loads((place.folder / "build/linearize.json").read_text())
    assert counts == {"file": str(case), **totals}


def test_linearize_takes_a_builder_kinds_and_bounds(bridle: Any) -> None:
    case = next(case for case in CASES if "t34" in case.stem)
    words = ["--builder", "per_request", "--max-samples", "3", "--max-sample-tokens", "40", "--over-length", "drop"]
    document = json.loads(bridle("linearize", str(case), *words, "--kind", "compaction=drop").stdout)
    assert len(document["samples"]) == 3
    assert set(document["fidelity"]["totals"]["untrained"]) == {"dropped_branch", "over_length"}
    none = json.loads(bridle("linearize", str(case), "--kind", "main=context").stdout)
    assert set(none["fidelity"]["totals"]["untrained"]) == {"kind"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--builder", "trees"], 'unknown builder "trees": did you mean "tree"'),
        (["--kind", "main=never"], "main: expected one of train, context, drop, got 'never'"),
        (["--kind", "mane=train"], 'mane: unknown key "mane": did you mean "main"'),
    ],
)
def test_linearize_says_what_there_is(bridle: Any, words: list[str], said: str) -> None:
    done = bridle("linearize", str(CASES[0]), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_linearize_gives_a_runs_tokens_from_its_session_log(place: Any, bridle: Any, finished: Any) -> None:
    folder = place.folder / "done/rollouts/fix-0"
    document = json.loads(bridle("linearize", str(folder / "session.log")).stdout)
    kept = json.loads((folder / "samples.jsonl").read_text())
    assert [sample["tokens"] for sample in document["samples"]] == [kept["tokens"]]


def test_serve_gateway_serves_until_it_is_told_to_end(place: Any, cache: Path) -> None:
    words = ["serve", "gateway", "--script", "fix.yaml", "--port", "0", "--data", "served", "--set", f"cache={cache}"]
    process = subprocess.Popen(
        [BRIDLE, *words], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    opened = post(f"{told['url']}/sessions", told["control_token"], {"id": "s"})
    ask = {"model": told["model"], "messages": [{"role": "user", "content": "hello"}]}
    ask["tools"] = [{"type": "function", "function": {"name": "sh", "parameters": SHELL}}]
    answer = post(f"{opened['base_urls']['openai']}/chat/completions", opened["key"], ask)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "sh"
    finished = post(f"{told['url']}/sessions/s/finish", told["control_token"], {})
    assert finished["fidelity"]["totals"]["turns"] == 1
    with pytest.raises(urllib.error.HTTPError, match="403"):
        post(f"{told['url']}/sessions", opened["key"], {})
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, "", "")


SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def post(url: str, key: str, body: Any) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=20) as answer:
        return json.load(answer)


@pytest.mark.parametrize("verb", [*VERBS, "serve gateway"])
def test_help_is_quick_and_loads_no_server_and_no_torch(verb: str) -> None:
    code = (
        "import sys\nfrom bridle.cli.main import main\n"
        f"try: main({[*verb.split(), '--help']!r})\n"
        "finally: sys.stderr.write(' '.join({'torch', 'uvicorn', 'transformers'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        before = processor_s()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        seconds.append(processor_s() - before)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage:" in done.stdout
    assert min(seconds) < HELP_S


def processor_s() -> float:
    """Of all ended children: on a busy machine the clock on the wall would measure the others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_help_lists_every_verb(bridle: Any) -> None:
    shown = bridle("--help").stdout
    assert all(verb in shown for verb in VERBS)
    assert bridle("--version").stdout.startswith("bridle, version ")
