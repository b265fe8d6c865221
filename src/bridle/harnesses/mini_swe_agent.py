"""mini-SWE-agent: one bash tool, OpenAI chat, non-streaming. Installed from PyPI into a virtual environment."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, Recipe, Silence
from bridle.harnesses.install import python_packages
from bridle.sandboxes.base import Sandbox

_QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class MiniSweAgentConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    silence_s: Silence = None


class MiniSweAgent(Harness):
    Config = MiniSweAgentConfig
    protocol = "openai_chat"
    default_version = "2.4.6"
    artifacts = ("~/trajectory.json",)

    def __init__(self, config: MiniSweAgentConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        # litellm fails at its first call without mcp
        packages = [f"mini-swe-agent=={self._version}", "mcp"]
        return await python_packages(cache, "mini_swe_agent", self._version, packages, log, minimum=(3, 10))

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        """The task is a config file of its own, so neither its length nor its content meets a command line."""
        task = f"{sandbox.home}/.bridle/task.yaml"
        # -I: the workspace, where the agent works, must not be on the import path of the agent itself
        program = (installation.runtime, "-I", "-m", "minisweagent")
        # by its full path, or a mini.yaml in the workspace would come first
        stock = f"{installation.path}/minisweagent/config/mini.yaml"
        flags = ("--yolo", "--exit-immediately", "--cost-limit", "0", "-o", f"{sandbox.home}/trajectory.json")
        return Recipe(
            argv=(*program, "-c", stock, "-c", task, "-m", f"openai/{launch.model}", *flags),
            env={
                **_QUIET,
                "OPENAI_API_KEY": launch.key,
                "OPENAI_API_BASE": launch.base_url("openai"),
                **self._timers(),
                **self._config.env,
            },
            files={task: msgspec.json.encode({"run": {"task": launch.instruction}})},
        )

    def _timers(self) -> dict[str, str]:
        silence_s = self._config.silence_s
        return {} if silence_s is None else {"REQUEST_TIMEOUT": str(silence_s)}
