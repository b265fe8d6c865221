from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from bridle.errors import ConfigError, HarnessError
from bridle.harnesses.base import Installation
from bridle.harnesses.command import CommandConfig, CommandHarness

PRINT_ENV = "import json, os; print(json.dumps(dict(os.environ)))"


async def environment(sandbox, launch, **options) -> dict[str, str]:
    harness = CommandHarness(CommandConfig(argv=("python3", "-c", PRINT_ENV), **options))
    await harness.launch(sandbox, Installation("1"), launch)
    found: dict[str, str] = json.loads((launch.logs / "stdout").read_text())
    return found


async def test_urls_key_and_model_are_in_the_usual_variables(new_sandbox, make_launch) -> None:
    launch = make_launch()
    env = await environment(await new_sandbox(), launch, env={"MORE": "1"})
    assert env["OPENAI_BASE_URL"] == launch.base_urls["openai"]
    assert env["ANTHROPIC_BASE_URL"] == launch.base_urls["anthropic"]
    assert env["GOOGLE_GEMINI_BASE_URL"] == launch.base_urls["gemini"]
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == env["GEMINI_API_KEY"] == launch.key
    assert env["OPENAI_MODEL"] == env["ANTHROPIC_MODEL"] == env["GEMINI_MODEL"] == launch.model
    assert env["MORE"] == "1"
    assert env["HOME"].endswith(("/home/agent", "/home"))


async def test_other_variables_can_be_named(new_sandbox, make_launch) -> None:
    launch = make_launch(env={"FROM_LAUNCH": "1"})
    options = {"openai_url_env": ["GW_URL"], "anthropic_url_env": [], "key_env": ["GW_KEY"], "model_env": []}
    env = await environment(await new_sandbox(), launch, **msgspec.convert(options, dict[str, tuple[str, ...]]))
    assert (env["GW_URL"], env["GW_KEY"], env["FROM_LAUNCH"]) == (launch.base_urls["openai"], launch.key, "1")
    assert not [name for name in env if name.startswith(("OPENAI", "ANTHROPIC"))]


async def test_words_of_argv_are_filled_in_and_nothing_else_is(new_sandbox, make_launch) -> None:
    launch = make_launch()
    argv = ("printf", "%s|", "{model}", "{workspace}", "{home}", "{instruction}", "{other}", "${X}")
    sandbox = await new_sandbox()
    await CommandHarness(CommandConfig(argv=argv)).launch(sandbox, Installation("1"), launch)
    printed = (launch.logs / "stdout").read_text().split("|")
    assert printed == ["policy", sandbox.workspace, sandbox.home, launch.instruction, "{other}", "${X}", ""]


async def test_a_follow_up_has_an_argv_of_its_own(new_sandbox, make_launch) -> None:
    config = CommandConfig(argv=("start", "{instruction_file}"), resume_argv=("go-on", "{model}"))
    harness, sandbox = CommandHarness(config), await new_sandbox()
    first, again = (harness.recipe(Installation("1"), make_launch(resume=resume), sandbox) for resume in (False, True))
    assert (first.argv[0], first.stdin) == ("start", "/dev/null")
    assert (again.argv, again.files[again.stdin]) == (("go-on", "policy"), make_launch().instruction.encode())
    assert harness.resumes
    assert not CommandHarness(CommandConfig(argv=("start",))).resumes


async def test_a_mounted_program_runs(new_sandbox, make_launch, tmp_path) -> None:
    program = tmp_path / "agents" / "mine.sh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    harness = CommandHarness(CommandConfig(argv=(str(program),), mounts=(str(program.parent),)))
    installation = await harness.install(tmp_path / "cache", print)
    launch = make_launch()
    outcome = await harness.launch(await new_sandbox(installation.mounts), installation, launch)
    assert outcome.finish == "finished"
    assert (launch.logs / "stdout").read_text() == "mine\n"


async def test_a_mount_that_is_not_on_the_host_is_named(tmp_path: Path) -> None:
    harness = CommandHarness(CommandConfig(argv=("x",), mounts=("/no/such/place",)))
    with pytest.raises(HarnessError, match="/no/such/place"):
        await harness.install(tmp_path, print)


def test_no_argv_is_refused() -> None:
    with pytest.raises(ConfigError, match="no argv"):
        CommandHarness(CommandConfig(argv=()))
