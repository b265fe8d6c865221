"""A whole agent in one file of the standard library: OpenAI chat, one shell tool, a loop until the model calls none.

Runs in a sandbox through the `command` harness (`argv = ["python3", ".../agent.py"]`): the instruction is stdin, base
URL, key and model are in the environment. Its habits are switched by flags. What was said is kept in its home, where
`--resume` finds it. Imports nothing of Bridle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

KEPT = Path.home() / ".conversation.json"
SYSTEM = "You fix bugs in the repository in the current folder. Use the shell tool; answer without a call when done."
SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command with sh.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def main() -> None:
    habits = read_habits()
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    if habits.resume:
        messages = json.loads(KEPT.read_text())
    messages.append({"role": "user", "content": sys.stdin.read()})
    for _ in range(habits.max_turns):
        answer = ask(messages, habits)
        messages.append(echoed(answer, habits))
        calls = answer.get("tool_calls") or []
        if not calls:
            KEPT.write_text(json.dumps(messages))
            sys.stdout.write(f"{answer['content']}\n")
            return
        messages.extend(result(call) for call in calls)
    sys.exit(f"not done after {habits.max_turns} turns")


def read_habits() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-turns", type=int, default=50)
    parser.add_argument("--sort-arguments", action="store_true", help="echo calls with sorted, re-serialized arguments")
    parser.add_argument("--resume", action="store_true", help="go on in the conversation it had last")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for an answer")
    return parser.parse_args()


def ask(messages: list[dict[str, Any]], habits: argparse.Namespace) -> dict[str, Any]:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [SHELL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=habits.timeout) as response:
        answer: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return answer


def echoed(answer: dict[str, Any], habits: argparse.Namespace) -> dict[str, Any]:
    """What the agent sends back of an answer in its next request."""
    if habits.sort_arguments:
        for call in answer.get("tool_calls") or []:
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True)
    return answer


def result(call: dict[str, Any]) -> dict[str, Any]:
    command = json.loads(call["function"]["arguments"])["command"]
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    return {"role": "tool", "tool_call_id": call["id"], "content": f"{output}\nexit code {done.returncode}"}


if __name__ == "__main__":
    main()
