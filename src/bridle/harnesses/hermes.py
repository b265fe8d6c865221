"""Hermes: OpenAI chat, streaming, sub-agents, compaction. Installed from PyPI into a virtual environment.

It takes the instruction as an argument only: a line of Python puts it there, so that no process list shows it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import python_packages
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_KEY = "BRIDLE_KEY"
_LEAST = 64_000
_START = "import sys; from hermes_cli.main import main; sys.argv += ['-q', sys.stdin.read()]; main()"
_SETTINGS = {
    "auxiliary": {"title_generation": {"enabled": False}},
    "memory": {"memory_enabled": False, "user_profile_enabled": False},
    "security": {"allow_lazy_installs": False},
    # seconds that the first prompt waits for servers at most: 1.5 otherwise
    "mcp_discovery_timeout": 30,
}


class HermesConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: what the agent takes for the model's window; it summarizes at half
    of it."""

    context_tokens: int = 100_000
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.context_tokens < _LEAST:
            raise ValueError(f"context_tokens: the agent refuses models with less than {_LEAST}")


class Hermes(Harness):
    Config = HermesConfig
    protocol = "openai_chat"
    default_version = "0.19.0"
    kind_rules = (
        KindRule(
            kind="compaction",
            name="compaction_instruction",
            last_user_contains="You are a summarization agent creating a context checkpoint",
        ),
        KindRule(kind="subagent", name="subagent_system", system_contains="You are a focused subagent working on"),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    resumes = True
    artifacts = ("~/.hermes/logs",)

    def __init__(self, config: HermesConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        packages = [f"hermes-agent[mcp]=={self._version}"]
        return await python_packages(cache, "hermes", self._version, packages, log, minimum=(3, 11))

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        home = f"{sandbox.home}/.hermes"
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        # -I: the workspace, where the agent works, must not be on the import path of the agent itself
        program = (installation.runtime, "-I", "-c", _START)
        again = ("--continue",) if launch.resume else ()
        return Recipe(
            argv=(*program, "chat", *again, "-Q", "--yolo"),
            env={
                "HERMES_HOME": home,
                "HERMES_ACCEPT_HOOKS": "1",
                _KEY: launch.key,
                **self._timers(),
                **self._config.env,
            },
            files={
                instruction: launch.instruction.encode(),
                f"{home}/config.yaml": msgspec.json.encode(self._settings(launch)),
            },
            stdin=instruction,
        )

    def _timers(self) -> dict[str, str]:
        silence_s = self._config.silence_s
        return {} if silence_s is None else {"HERMES_STREAM_READ_TIMEOUT": str(silence_s)}

    def _settings(self, launch: Launch) -> dict[str, object]:
        """JSON is YAML."""
        model = {
            "default": launch.model,
            "provider": "custom",
            "base_url": launch.base_url("openai"),
            "api_key": f"${{{_KEY}}}",
            "api_mode": "chat_completions",
            "context_length": self._config.context_tokens,
        }
        return {
            **_SETTINGS,
            "model": model,
            "mcp_servers": {name: one.entry for name, one in self._config.mcp.items()},
        }
