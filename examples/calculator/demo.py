"""The demonstration: real agents fix real bugs, the fixes are graded elsewhere, samples are checked and audited.

`make demo` runs it. Every step is a `bridle` command that is printed before it runs, so that it can be repeated.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BRIDLE = Path(sys.executable).parent / "bridle"
OUT = Path("build/demo")
LOCAL_TASK = "subtract"


@dataclass
class Shown:
    """What has been run so far."""

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    started = time.monotonic()
    shown = Shown()
    for agent in agents():
        run(shown, agent, ["--harness", agent, "-n", "1"])
    script = HERE.relative_to(Path.cwd()) / "scripts" / f"{LOCAL_TASK}.yaml"
    local = ["--engine", "transformers", "--script", str(script), "--task", LOCAL_TASK]
    run(shown, "local", ["--harness", "mini_swe_agent", *local])
    audited = audit(shown)
    return conclude(shown, audited, time.monotonic() - started)


def agents() -> list[str]:
    """Those that can be had here; what is missing is said, not fatal."""
    if shutil.which("bwrap") is None:
        print("bubblewrap is missing: agents run in the `local` sandbox, which isolates nothing")
    if shutil.which("npm") is None:
        print("npm is missing: going on without Claude Code (it is an npm package)")
        return ["mini_swe_agent"]
    return ["mini_swe_agent", "claude_code"]


def run(shown: Shown, name: str, options: list[str]) -> None:
    directory = OUT / name
    where = str(HERE.relative_to(Path.cwd()))
    if not step(["run", where, "--out", str(directory), *options]):
        shown.failed.append(name)
    if (directory / "run.json").exists():
        shown.documents[name] = json.loads((directory / "run.json").read_text())


def audit(shown: Shown) -> dict[str, Any]:
    if not step(["audit", str(OUT / "local")]):
        shown.failed.append("audit")
    found = OUT / "local" / "audit.json"
    return json.loads(found.read_text()) if found.exists() else {}


def step(arguments: list[str]) -> bool:
    print(f"\n$ bridle {' '.join(arguments)}", flush=True)
    return subprocess.run([str(BRIDLE), *arguments]).returncode == 0


def conclude(shown: Shown, audited: dict[str, Any], seconds: float) -> int:
    totals = [document["totals"] for document in shown.documents.values()]
    checks = {name: document["check"] for name, document in shown.documents.items() if document["check"]}
    kept, due = sum(check["kept"] for check in checks.values()), sum(check["sampled"] for check in checks.values())
    summary = {
        "rollouts": sum(total["rollouts"] for total in totals),
        "graded": sum(total["graded"] for total in totals),
        "sampled_tokens": due,
        "kept_tokens": kept,
        "kept_percent": 100.0 * kept / due if due else None,
        "audit_max_delta": audited.get("delta", {}).get("max"),
        "audit_sensitivity": audited.get("sensitivity"),
        "seconds": round(seconds, 1),
        "failed": shown.failed + [name for name, check in checks.items() if not check["ok"]],
    }
    (OUT.parent / "demo.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nwritten: {OUT}/<run>/rollouts/<rollout>/ (samples.jsonl, session.log, ...) and {OUT.parent}/demo.json")
    print("type next:")
    print(f"  .venv/bin/bridle show {OUT}/local --rollout {LOCAL_TASK}-0")
    print(f"  .venv/bin/bridle export {OUT}/local {OUT}/samples.jsonl")
    print("  .venv/bin/bridle run examples/calculator -n 4 --harness mini_swe_agent")
    print(f"done in {seconds:.0f} s")
    if summary["failed"]:
        print(f"failed: {', '.join(summary['failed'])}", file=sys.stderr)
    percent = "no" if summary["kept_percent"] is None else f"{summary['kept_percent']:.1f}"
    delta, sensitivity = summary["audit_max_delta"], summary["audit_sensitivity"]
    audit_says = "not run" if delta is None else f"max |Δlogprob| {delta:.1e} (sensitivity {sensitivity:.0f} x)"
    print(
        f"demo: {summary['rollouts']} rollouts, {summary['graded']} graded, {due} sampled tokens, kept {percent} %, "
        f"audit {audit_says}"
    )
    return 1 if summary["failed"] or not totals else 0


if __name__ == "__main__":
    sys.exit(main())
