"""Gemini CLI: Google's generateContent, streaming, sub-agents, compaction. Installed from npm with a Node of its own.

It takes any model for one of a million tokens. It summarizes before a follow-up, never while it works on a prompt.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import node_agent
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_PACKAGE = "@google/gemini-cli"
_NODE_MAJOR = 22
_QUIET = {
    # without it, it starts itself once more, and the first process ignores SIGTERM
    "GEMINI_CLI_NO_RELAUNCH": "true",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
}
_SETTINGS = {
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    # both ask a model that searches the web by itself
    "tools": {"exclude": ["google_web_search", "web_fetch"]},
}
_REQUEST_TIMEOUT = 45773134
"""Of its experiments, which it takes from a file where it cannot ask for them."""
_WINDOW = 1 << 20
_SUMMARIZER = "responsible for distilling chat history into a structured XML <state_snapshot>"
_SCOPES = ("core", "codebase_investigator", "cli_help")


class GeminiCliConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`auto_compact_tokens`: from how many on it summarizes before a follow-up. `silence_s`: before the first word; in
    the middle of an answer it bears five minutes."""

    auto_compact_tokens: int = 100_000
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)


class GeminiCli(Harness):
    Config = GeminiCliConfig
    protocol = "gemini"
    default_version = "0.61.0"
    kind_rules = (
        KindRule(kind="subagent", name="complete_task", system_contains="you MUST call the `complete_task` tool"),
        KindRule(kind="compaction", name="compaction_system", system_contains=_SUMMARIZER),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    resumes = True
    artifacts = ("~/.gemini/tmp",)

    def __init__(self, config: GeminiCliConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        return await node_agent(cache, "gemini_cli", _PACKAGE, self._version, "bundle/gemini.js", _NODE_MAJOR, log)

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        experiments = f"{sandbox.home}/.bridle/experiments.json"
        program = (installation.runtime, installation.path)
        again = ("--resume", "latest") if launch.resume else ()
        return Recipe(
            argv=(*program, *again, "--yolo", "--output-format", "json", "--model", launch.model),
            env={
                **_QUIET,
                "GEMINI_API_KEY": launch.key,
                "GOOGLE_GEMINI_BASE_URL": launch.base_url("gemini"),
                "GEMINI_EXP": experiments,
                **self._config.env,
            },
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.gemini/settings.json": msgspec.json.encode(self._settings(launch.model)),
                experiments: msgspec.json.encode({"flags": self._flags()}),
            },
            stdin=instruction,
        )

    def _flags(self) -> list[dict[str, int | str]]:
        silence_s = self._config.silence_s
        return [] if silence_s is None else [{"flagId": _REQUEST_TIMEOUT, "intValue": str(silence_s)}]

    def _settings(self, model: str) -> dict[str, object]:
        """Its checks, its summaries and some sub-agents have models of their own, by name: here all are the one
        served."""
        overrides = [{"match": {"overrideScope": scope}, "modelConfig": {"model": model}} for scope in _SCOPES]
        return {
            **_SETTINGS,
            "model": {"compressionThreshold": self._config.auto_compact_tokens / _WINDOW},
            "modelConfigs": {"customOverrides": overrides},
            "mcpServers": {name: {**one.entry, "trust": True} for name, one in self._config.mcp.items()},
        }
