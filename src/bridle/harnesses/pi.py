"""Pi: any of four protocols, streaming, compaction, no sub-agents. Installed from npm with a Node of its own.

0.87.1 and not the newest: of what 1.5.2 depends on, a plain registry does not have every package at that version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, ProtocolName, Recipe, Silence
from bridle.harnesses.install import node_agent
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_PACKAGE = "@earendil-works/pi-coding-agent"
_NODE_MAJOR = 22
_PROVIDER = "bridle"
_KEY = "BRIDLE_KEY"
_APIS = {
    "openai_chat": "openai-completions",
    "openai_responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "google-generative-ai",
}
_QUIET = {"enableInstallTelemetry": False, "quietStartup": True, "cacheWarming": "off"}


class PiConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: what the agent takes for the model's window. `reserve_tokens` before it the agent summarizes
    all but the newest `keep_recent_tokens`."""

    protocol: ProtocolName = "openai_chat"
    context_tokens: int = 100_000
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    max_output_tokens: int = 8192
    silence_s: Silence = None
    thinking: Literal["off", "minimal", "low", "medium", "high"] = "medium"


class Pi(Harness):
    Config = PiConfig
    default_version = "0.87.1"
    kind_rules = (
        KindRule(
            kind="compaction", name="compaction_system", system_contains="You are a context summarization assistant"
        ),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    resumes = True
    artifacts = ("~/.pi/agent/sessions",)

    def __init__(self, config: PiConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version
        self.protocol = config.protocol

    async def install(self, cache: Path, log: Log) -> Installation:
        script = "dist/bundle/cli.js"
        return await node_agent(cache, "pi", _PACKAGE, self._version, script, _NODE_MAJOR, log)

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        flags = ("-p", "--mode", "json", "--no-approve", "--thinking", self._config.thinking)
        model = ("--provider", _PROVIDER, "--model", launch.model)
        again = ("--continue",) if launch.resume else ()
        return Recipe(
            argv=(installation.runtime, installation.path, *again, *flags, *model),
            env={"PI_OFFLINE": "1", _KEY: launch.key, **self._config.env},
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.pi/agent/models.json": msgspec.json.encode(self._models(launch)),
                f"{sandbox.home}/.pi/agent/settings.json": msgspec.json.encode(self._settings()),
            },
            stdin=instruction,
        )

    def _settings(self) -> dict[str, object]:
        compaction = {
            "reserveTokens": self._config.reserve_tokens,
            "keepRecentTokens": self._config.keep_recent_tokens,
        }
        silence_s = self._config.silence_s
        idle = {} if silence_s is None else {"httpIdleTimeoutMs": 1000 * silence_s}
        return {**_QUIET, **idle, "compaction": compaction}

    def _models(self, launch: Launch) -> dict[str, object]:
        model = {
            "id": launch.model,
            "name": launch.model,
            "reasoning": self._config.thinking != "off",
            "contextWindow": self._config.context_tokens,
            "maxTokens": self._config.max_output_tokens,
            "input": ["text"],
            "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
        }
        provider = {
            "baseUrl": launch.sdk_url(self._config.protocol),
            "api": _APIS[self.protocol],
            "apiKey": f"${_KEY}",
            "models": [model],
        }
        return {"providers": {_PROVIDER: provider}}
