from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bridle.harnesses.base import Installation
from bridle.harnesses.install import default_cache
from bridle.harnesses.mini_swe_agent import MiniSweAgent, MiniSweAgentConfig


async def test_neither_key_nor_instruction_meets_the_command_line(new_sandbox, make_launch) -> None:
    launch = make_launch()
    sandbox = await new_sandbox()
    recipe = MiniSweAgent(MiniSweAgentConfig(env={"MORE": "1"})).recipe(
        Installation("1", "/opt/mini", (), "/opt/python"), launch, sandbox
    )
    command_line = " ".join(recipe.argv)
    assert launch.key not in command_line
    assert "Fix it" not in command_line
    assert recipe.env["OPENAI_API_KEY"] == launch.key
    assert recipe.env["OPENAI_API_BASE"] == launch.base_urls["openai"]
    assert recipe.env["MORE"] == "1"
    (task,) = recipe.files.values()
    assert json.loads(task) == {"run": {"task": launch.instruction}}


@pytest.fixture
async def model() -> AsyncIterator[tuple[str, list[tuple[web.Request, dict[str, object]]]]]:
    """A server that has the agent run two commands -> its URL, and what it was asked."""
    asked: list[tuple[web.Request, dict[str, object]]] = []
    commands = ["echo fixed >fixed.txt; ls mini.yaml", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]

    async def answer(request: web.Request) -> web.Response:
        asked.append((request, await request.json()))
        function = {"name": "bash", "arguments": json.dumps({"command": commands[len(asked) - 1]})}
        call = {"id": f"call{len(asked)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": "Next.", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        return web.json_response({**body, "usage": usage})

    app = web.Application()
    app.router.add_post("/s/1/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"{site.name}/s/1/v1", asked
    await runner.cleanup()


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_works_in_a_sandbox_through_its_one_base_url(new_sandbox, make_launch, model) -> None:
    url, asked = model
    harness = MiniSweAgent(MiniSweAgentConfig())
    installation = await harness.install(default_cache(), print)
    sandbox = await new_sandbox(installation.mounts)
    await sandbox.write(f"{sandbox.workspace}/mini.yaml", b"not: the agent's\n")
    await sandbox.write(f"{sandbox.workspace}/yaml.py", b"raise SystemExit('imported from the workspace')\n")
    launch = make_launch(base_urls={"openai": await sandbox.expose(url)}, time_budget_s=120.0)
    outcome = await harness.launch(sandbox, installation, launch)
    assert outcome.finish == "finished", (launch.logs / "stderr").read_text() + (launch.logs / "stdout").read_text()
    assert await sandbox.read(f"{sandbox.workspace}/fixed.txt") == b"fixed\n"
    assert len(asked) == 2
    request, body = asked[0]
    assert request.headers["Authorization"] == f"Bearer {launch.key}"
    assert body["model"] == "policy"
    assert launch.instruction.strip() in json.dumps(body["messages"], ensure_ascii=False).replace("\\n", "\n")
    for artifact in harness.artifacts:
        assert await sandbox.read(artifact.replace("~", sandbox.home))
