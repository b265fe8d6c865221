"""Claude Code: Anthropic messages, streaming, sub-agents, compaction. Installed from npm; runs without Node."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import native_agent
from bridle.messages import KindRule, ThreadRule
from bridle.sandboxes.base import Sandbox

_PACKAGE = "@anthropic-ai/claude-code"
_PROGRAM = f"node_modules/{_PACKAGE}-*/claude"

# Nothing but the model is to be talked to; nothing in the prompt may change from request to request or run to run.
_QUIET = {
    "IS_SANDBOX": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
    "DISABLE_PROMPT_CACHING": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
_MODEL_NAMES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


class ClaudeCodeConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`auto_compact_tokens`: when the agent summarizes; it takes a model it does not know for one of a million tokens.
    `thinking_tokens` 0: the agent asks for no thinking."""

    auto_compact_tokens: int = 100_000
    max_output_tokens: int = 8192
    thinking_tokens: int = 0
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)


class ClaudeCode(Harness):
    Config = ClaudeCodeConfig
    protocol = "anthropic"
    default_version = "2.1.328"
    kind_rules = (
        KindRule(
            kind="compaction", name="compaction_instruction", last_user_contains="CRITICAL: Respond with TEXT ONLY"
        ),
        KindRule(kind="subagent", name="agent_id_header", header="x-claude-code-agent-id"),
        KindRule(kind="auxiliary", name="no_tools", tools="none"),
    )
    thread_rules = (ThreadRule("x-claude-code-agent-id", "x-claude-code-parent-agent-id", depth=1),)
    resumes = True
    artifacts = ("~/.claude/projects",)

    def __init__(self, config: ClaudeCodeConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        return await native_agent(cache, "claude_code", _PACKAGE, self._version, _PROGRAM, log)

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        servers = f"{sandbox.home}/.bridle/mcp.json"
        flags = ("--output-format", "json", "--dangerously-skip-permissions", "--strict-mcp-config")
        again = ("--continue",) if launch.resume else ()
        return Recipe(
            argv=(installation.path, "-p", *again, *flags, "--mcp-config", servers),
            env={
                **_QUIET,
                **dict.fromkeys(_MODEL_NAMES, launch.model),
                "ANTHROPIC_BASE_URL": launch.base_url("anthropic"),
                "ANTHROPIC_API_KEY": launch.key,
                "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(self._config.auto_compact_tokens),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self._config.max_output_tokens),
                "MAX_THINKING_TOKENS": str(self._config.thinking_tokens),
                **self._timers(),
                **self._config.env,
            },
            files={instruction: launch.instruction.encode(), servers: self._servers()},
            stdin=instruction,
        )

    def _timers(self) -> dict[str, str]:
        silence_s = self._config.silence_s
        return {} if silence_s is None else {"API_TIMEOUT_MS": str(1000 * silence_s)}

    def _servers(self) -> bytes:
        """Written without servers too: then those that a workspace brings do not start either."""
        return msgspec.json.encode({"mcpServers": {name: one.entry for name, one in self._config.mcp.items()}})
