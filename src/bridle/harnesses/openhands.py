"""OpenHands: OpenAI chat, not streaming, sub-agents, compaction. Installed from PyPI into a virtual environment.

It takes the instruction as an argument only (of a file it makes another prompt): a line of Python puts it there, so
that no process list shows it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import python_packages
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_START = "import sys; from openhands_cli.entrypoint import main; sys.argv += ['-t', sys.stdin.read()]; main()"
_SKILLS = "https://github.com/OpenHands/extensions"
_QUIET = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # it clones the skills of the day into its prompt; git is told that they are nowhere
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "url.file:///nonexistent.insteadOf",
    "GIT_CONFIG_VALUE_0": _SKILLS,
}


class OpenHandsConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """It summarizes past `condense_tokens` of prompt, or past `condense_events` (a call and its result are two)."""

    condense_tokens: int = 80_000
    condense_events: int = 240
    max_output_tokens: int = 8192
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)


class OpenHands(Harness):
    Config = OpenHandsConfig
    protocol = "openai_chat"
    default_version = "1.16.0"
    kind_rules = (
        KindRule(
            kind="compaction",
            name="condenser_instruction",
            last_user_contains="You are maintaining a context-aware state summary",
        ),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
        KindRule(kind="subagent", name="no_task_tool", lacks_tool="task"),
    )
    resumes = True
    artifacts = ("~/.openhands/conversations",)

    def __init__(self, config: OpenHandsConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        """On an older Python pip takes an empty namesake of the package."""
        packages = [f"openhands=={self._version}"]
        return await python_packages(cache, "openhands", self._version, packages, log, minimum=(3, 12))

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        # -I: the workspace, where the agent works, must not be on the import path of the agent itself
        program = (installation.runtime, "-I", "-c", _START)
        again = ("--resume", "--last") if launch.resume else ()
        return Recipe(
            argv=(*program, *again, "--headless", "--json", "--override-with-envs"),
            env={
                **_QUIET,
                "LLM_MODEL": f"openai/{launch.model}",
                "LLM_API_KEY": launch.key,
                "LLM_BASE_URL": launch.base_url("openai"),
                **self._config.env,
            },
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.openhands/agent_settings.json": msgspec.json.encode(self._settings(launch)),
                f"{sandbox.home}/.openhands/mcp.json": self._servers(),
            },
            stdin=instruction,
        )

    def _settings(self, launch: Launch) -> dict[str, object]:
        """Key and base URL come from the environment."""
        model: dict[str, object] = {
            "model": f"openai/{launch.model}",
            "max_output_tokens": self._config.max_output_tokens,
        }
        if (silence_s := self._config.silence_s) is not None:
            model["timeout"] = silence_s
        condenser = {
            "kind": "LLMSummarizingCondenser",
            "llm": {**model, "usage_id": "condenser"},
            "max_size": self._config.condense_events,
            "max_tokens": self._config.condense_tokens,
        }
        return {
            "kind": "Agent",
            "llm": {**model, "usage_id": "agent"},
            "system_prompt_kwargs": {"cli_mode": True},
            "condenser": condenser,
        }

    def _servers(self) -> bytes:
        return msgspec.json.encode({"mcpServers": {name: one.entry for name, one in self._config.mcp.items()}})
