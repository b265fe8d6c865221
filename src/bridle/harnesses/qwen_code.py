"""Qwen Code: OpenAI chat, streaming, sub-agents, compaction. Installed from npm with a Node of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import node_agent
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

_PACKAGE = "@qwen-code/qwen-code"
_NODE_MAJOR = 22
_SUMMARIZER = "You are the component that summarizes a conversation"
_SUBAGENT = "- You operate in non-interactive mode: do not ask the user questions; proceed with available context."
_SETTINGS = {
    "general": {"enableAutoUpdate": False, "gitCoAuthor": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    # sub-agents after the answer, about sessions there will never be
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
    "agents": {"crossSessionMessaging": False},
    # as with a prompt on the command line
    "tools": {"shell": {"enableInteractiveShell": False}},
}
# their tools stand behind one that searches tools otherwise
_OFFERED = {"trust": True, "alwaysLoadTools": True}


class QwenCodeConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: the window the agent believes the model to have; `auto_compact_tokens`: when it summarizes,
    or earlier, as it keeps room for the summary."""

    context_tokens: int = 128_000
    auto_compact_tokens: int = 100_000
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.auto_compact_tokens <= self.context_tokens:
            raise ValueError("auto_compact_tokens lies between 1 and context_tokens")


class QwenCode(Harness):
    Config = QwenCodeConfig
    protocol = "openai_chat"
    default_version = "0.24.4"
    # the summary is asked for with the prompt and the tools of the work at first, and without where that fails
    kind_rules = (
        KindRule(kind="compaction", name="compaction_instruction", last_user_contains=_SUMMARIZER),
        KindRule(kind="compaction", name="compaction_system", system_contains=_SUMMARIZER),
        KindRule(kind="auxiliary", name="memory", system_contains="managed memory extraction subagent"),
        KindRule(kind="subagent", name="subagent_system", system_contains=_SUBAGENT),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    resumes = True
    artifacts = ("~/.qwen/projects",)

    def __init__(self, config: QwenCodeConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        return await node_agent(cache, "qwen_code", _PACKAGE, self._version, "cli-entry.js", _NODE_MAJOR, log)

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        flags = ("--yolo", "--auth-type", "openai", "--output-format", "json")
        again = ("--continue",) if launch.resume else ()
        return Recipe(
            argv=(installation.runtime, installation.path, *again, *flags),
            env={
                "OPENAI_API_KEY": launch.key,
                "OPENAI_BASE_URL": launch.base_url("openai"),
                "OPENAI_MODEL": launch.model,
                **self._config.env,
            },
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.qwen/settings.json": msgspec.json.encode(self._settings()),
            },
            stdin=instruction,
        )

    def _settings(self) -> dict[str, object]:
        share = self._config.auto_compact_tokens / self._config.context_tokens
        generation = {"contextWindowSize": self._config.context_tokens}
        if (silence_s := self._config.silence_s) is not None:
            generation |= dict.fromkeys(("timeout", "streamIdleTimeoutMs"), 1000 * silence_s)
        return {
            **_SETTINGS,
            "context": {"autoCompactThreshold": share},
            "model": {"generationConfig": generation},
            "mcpServers": {name: {**one.entry, **_OFFERED} for name, one in self._config.mcp.items()},
        }
