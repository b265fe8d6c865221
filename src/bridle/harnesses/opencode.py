"""OpenCode: any of four protocols, streaming, sub-agents, compaction. Installed from npm; runs without Node."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.errors import HarnessError
from bridle.harnesses.base import (
    Harness,
    HarnessConfig,
    Installation,
    Launch,
    Log,
    McpServer,
    McpServers,
    ProtocolName,
    Recipe,
    Silence,
)
from bridle.harnesses.install import npm_packages
from bridle.messages import KindRule, ThreadRule
from bridle.sandboxes.base import Mount, Sandbox

_PROVIDER = "bridle"
_KEY = "BRIDLE_KEY"
_PACKAGES = {
    "openai_chat": "@ai-sdk/openai-compatible",
    "openai_responses": "@ai-sdk/openai",
    "anthropic": "@ai-sdk/anthropic",
    "gemini": "@ai-sdk/google",
}
_QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


class OpenCodeConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: what the agent takes for the model's window; it summarizes shortly before."""

    protocol: ProtocolName = "openai_chat"
    context_tokens: int = 100_000
    max_output_tokens: int = 8192
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)


class OpenCode(Harness):
    Config = OpenCodeConfig
    default_version = "1.18.33"
    kind_rules = (
        KindRule(
            kind="compaction",
            name="compaction_system",
            system_contains="You are a context summarization agent.",
            tools="none",
        ),
        KindRule(kind="subagent", name="parent_session_header", header="x-parent-session-id"),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    thread_rules = (ThreadRule("x-session-id", "x-parent-session-id"),)
    resumes = True
    artifacts = ("~/.local/share/opencode/log",)

    def __init__(self, config: OpenCodeConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version
        self.protocol = config.protocol

    async def install(self, cache: Path, log: Log) -> Installation:
        path = await npm_packages(cache, "opencode", self._version, [f"opencode-ai@{self._version}"], log, _program)
        return Installation(self._version, str(_program(path)), (Mount(str(path), str(path)),))

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        """A title of our own saves the request that asks the model for one."""
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        config = f"{sandbox.home}/.config/opencode/opencode.json"
        model = f"{_PROVIDER}/{launch.model}"
        session = ("--continue",) if launch.resume else ("--title", "rollout")
        return Recipe(
            argv=(installation.path, "run", *session, "--format", "json", "-m", model),
            env={**_QUIET, _KEY: launch.key, **self._config.env},
            files={
                instruction: launch.instruction.encode(),
                config: msgspec.json.encode(self._settings(launch)),
            },
            stdin=instruction,
        )

    def _settings(self, launch: Launch) -> dict[str, object]:
        limit = {"context": self._config.context_tokens, "output": self._config.max_output_tokens}
        model = {"name": launch.model, "limit": limit, "tool_call": True, "reasoning": True}
        options: dict[str, object] = {"baseURL": _base_url(launch, self._config.protocol), "apiKey": f"{{env:{_KEY}}}"}
        if (silence_s := self._config.silence_s) is not None:
            options |= dict.fromkeys(("headerTimeout", "chunkTimeout"), 1000 * silence_s)
        return {
            "provider": {
                _PROVIDER: {
                    "npm": _PACKAGES[self.protocol],
                    "name": _PROVIDER,
                    "options": options,
                    "models": {launch.model: model},
                }
            },
            "small_model": f"{_PROVIDER}/{launch.model}",
            "mcp": {name: _server(server) for name, server in self._config.mcp.items()},
            "permission": {"*": "allow"},
            "snapshot": False,
            "autoupdate": False,
            "share": "disabled",
        }


def _server(server: McpServer) -> dict[str, object]:
    return {"type": "local", "command": server.command, "environment": server.env, "enabled": True}


def _base_url(launch: Launch, protocol: ProtocolName) -> str:
    """Its SDKs want the version in every base."""
    return f"{launch.sdk_url(protocol)}/v1" if protocol == "anthropic" else launch.sdk_url(protocol)


def _program(folder: Path) -> Path:
    """npm leaves out the packages of other platforms; of two for this one the "-baseline" runs on every processor."""
    found = sorted(folder.glob("node_modules/opencode-*/bin/opencode"))
    if not found:
        raise HarnessError(f"opencode for this platform: expected node_modules/opencode-*/bin/opencode below {folder}")
    return found[-1]
