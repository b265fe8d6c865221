from __future__ import annotations

import json

import pytest

from bridle.harnesses.aider import Aider, AiderConfig
from bridle.harnesses.base import Installation
from bridle.messages import Message, ModelRequest, Text, kind_of

INSTALLATION = Installation("1", "/opt/lib", (), "/opt/python")


async def test_key_is_in_the_environment_and_instruction_in_a_file(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = Aider(AiderConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, await new_sandbox())
    assert recipe.argv[:2] == ("/opt/python", "-I")
    assert recipe.files[recipe.argv[recipe.argv.index("--message-file") + 1]] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["OPENAI_API_KEY"] == launch.key
    assert recipe.env["OPENAI_API_BASE"] == launch.base_urls["openai"]
    assert recipe.env["MORE"] == "1"


async def test_no_file_of_its_own_is_in_the_workspace(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    recipe = Aider(AiderConfig()).recipe(INSTALLATION, make_launch(), sandbox)
    places = [*recipe.files, *(value for name, value in recipe.env.items() if name.endswith("_FILE"))]
    assert all(place.startswith(f"{sandbox.home}/") for place in places)
    assert f"{sandbox.home}/.aider/tags" in recipe.argv


async def test_it_knows_the_window_and_the_files_it_starts_with(new_sandbox, make_launch) -> None:
    config = AiderConfig(context_tokens=5000, max_output_tokens=1000, files=("a.py", "b.py"), edit_format="whole")
    recipe = Aider(config).recipe(INSTALLATION, make_launch(), await new_sandbox())
    metadata = json.loads(recipe.files[recipe.env["AIDER_MODEL_METADATA_FILE"]])["openai/policy"]
    assert (metadata["max_input_tokens"], metadata["max_output_tokens"]) == (5000, 1000)
    assert recipe.argv[-2:] == ("a.py", "b.py")
    assert recipe.argv[recipe.argv.index("--edit-format") + 1] == "whole"


def request(system: str) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text("fix it"),)))
    return ModelRequest("openai_chat", "policy", messages)


def test_kinds_are_told_apart_by_the_system_prompt_as_there_are_no_tools() -> None:
    rules = Aider.kind_rules
    summary = "*Briefly* summarize this partial conversation about programming.\nInclude less detail"
    commit = "You are an expert software engineer that generates concise, one-line Git commit messages based on"
    assert kind_of(request("Act as an expert software developer."), rules) == ("main", "default")
    assert kind_of(request(summary), rules)[0] == "compaction"
    assert kind_of(request(commit), rules)[0] == "auxiliary"


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_and_leaves_no_trace_of_key_or_instruction(refused, make_launch) -> None:
    ran = await refused(Aider(AiderConfig()))
    assert ran.outcome.finish == "finished"  # whatever happened
    assert {call.path for call, _ in ran.calls} == {"/s/1/v1/chat/completions"}
    assert json.loads(ran.calls[0][1])["messages"][-1]["content"].startswith(make_launch().instruction.strip())
