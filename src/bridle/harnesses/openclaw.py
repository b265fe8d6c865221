"""OpenClaw: any of four protocols, streaming, sub-agents, compaction. Installed from npm with a Node of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import (
    Harness,
    HarnessConfig,
    Installation,
    Launch,
    Log,
    McpServers,
    ProtocolName,
    Recipe,
    Silence,
)
from bridle.harnesses.install import node_agent, run_installer
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_NODE_MAJOR = 24
_PROVIDER = "bridle"
_KEY = "BRIDLE_KEY"
_SESSION = "rollout"
"""It stands in the first prompt."""
_PENDING = ".openclaw-lifecycle-pending"
"""npm runs no scripts here. The agent makes up for its own when it first starts, where it can write: on the host."""
# what `agent exec` sets by itself
_EXEC = {
    "env": {"shellEnv": {"enabled": False}},
    "skills": {"load": {"watch": False}},
}
_TOOLS = {"profile": "coding", "fs": {"workspaceOnly": True}, "exec": {"mode": "full"}}
_APIS = {
    "openai_chat": "openai-completions",
    "openai_responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "google-generative-ai",
}


class OpenClawConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: what the agent takes for the model's window; it summarizes before."""

    protocol: ProtocolName = "openai_chat"
    context_tokens: int = 100_000
    max_output_tokens: int = 8192
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)


class OpenClaw(Harness):
    Config = OpenClawConfig
    default_version = "2026.9.6"
    kind_rules = (
        KindRule(
            kind="compaction", name="compaction_system", system_contains="You are a context summarization assistant"
        ),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    resumes = True
    artifacts = ()

    def __init__(self, config: OpenClawConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version
        self.protocol = config.protocol

    async def install(self, cache: Path, log: Log) -> Installation:
        installation = await node_agent(cache, "openclaw", "openclaw", self._version, "openclaw.mjs", _NODE_MAJOR, log)
        if Path(installation.path).with_name(_PENDING).exists():
            await run_installer([installation.runtime, installation.path, "--version"], log)
        return installation

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        """`agent exec`, made for runs like this one, never goes on in a conversation; `agent --local` does, and makes
        the same prompts with the settings of the former. Its own deadline lies past the rollout's, which kills it."""
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        program = (installation.runtime, installation.path, "agent", "--local", "--session-id", _SESSION)
        flags = ("--model", f"{_PROVIDER}/{launch.model}", "--json")
        deadline = ("--timeout", str(int(launch.time_budget_s) + 60))
        return Recipe(
            argv=(*program, *flags, *deadline, "--message-file", instruction),
            env={_KEY: launch.key, **self._config.env},
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.openclaw/openclaw.json": msgspec.json.encode(self._settings(launch, sandbox)),
            },
        )

    def _settings(self, launch: Launch, sandbox: Sandbox) -> dict[str, object]:
        model = {
            "id": launch.model,
            "name": launch.model,
            "reasoning": True,
            "input": ["text"],
            "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
            "contextWindow": self._config.context_tokens,
            "maxTokens": self._config.max_output_tokens,
        }
        provider: dict[str, object] = {
            "baseUrl": launch.sdk_url(self._config.protocol),
            "apiKey": f"${{{_KEY}}}",
            "api": _APIS[self.protocol],
            "models": [model],
        }
        if (silence_s := self._config.silence_s) is not None:
            provider["timeoutSeconds"] = silence_s
        defaults = {
            "model": {"primary": f"{_PROVIDER}/{launch.model}"},
            "workspace": sandbox.workspace,
            "skipBootstrap": True,
            "sandbox": {"mode": "off"},
        }
        return {
            **_EXEC,
            "tools": self._tools(),
            "models": {"providers": {_PROVIDER: provider}},
            "agents": {"defaults": defaults},
            "mcp": {"servers": {name: one.entry for name, one in self._config.mcp.items()}},
            # an index over sessions there will never be
            "plugins": {"slots": {"memory": "none"}},
        }

    def _tools(self) -> dict[str, object]:
        """Those of servers stand behind one that searches tools otherwise, with most of its own."""
        return {**_TOOLS, "toolSearch": False} if self._config.mcp else {**_TOOLS}
