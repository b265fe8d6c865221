"""Codex: OpenAI Responses, streaming, sub-agents, compaction. Installed from npm; a native program, no Node."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, McpServers, Recipe, Silence
from bridle.harnesses.install import native_agent
from bridle.messages import KindRule, ThreadRule
from bridle.sandboxes.base import Sandbox

_PACKAGE = "@openai/codex"
_PROGRAM = f"node_modules/{_PACKAGE}-*/vendor/*/bin/codex"
_KEY = "BRIDLE_KEY"
# The first of its conversations, whose id ends the name of their file: `--last` may be one of a sub-agent.
_RESUME = (
    'first=$(ls "$HOME"/.codex/sessions/*/*/*/rollout-*.jsonl | head -n 1); '
    'exec "$0" exec resume "$(printf %s "${first%.jsonl}" | tail -c 36)" "$@"'
)
_QUIET = {
    "check_for_update_on_startup": False,
    "analytics.enabled": False,
    "features.plugins": False,
    "features.remote_plugin": False,
    "features.apps": False,
    # skills that fetch documents, draw and install over the network
    "skills.bundled.enabled": False,
    "web_search": "disabled",
}


class CodexConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`context_tokens`: the window the agent believes the model to have; `auto_compact_tokens`: when it summarizes;
    `subagent_depth`: 0 for no sub-agents, 1 for none of theirs. `websocket`: talk over one instead of HTTP.
    `settings`: more of its config.toml, by dotted key."""

    context_tokens: int = 128_000
    auto_compact_tokens: int = 100_000
    subagent_depth: int = 1
    websocket: bool = False
    silence_s: Silence = None
    mcp: McpServers = msgspec.field(default_factory=dict)
    settings: dict[str, str | int | bool] = msgspec.field(default_factory=dict)


class Codex(Harness):
    Config = CodexConfig
    protocol = "openai_responses"
    default_version = "0.169.0"
    kind_rules = (
        KindRule(
            kind="compaction",
            name="turn_metadata",
            header="x-codex-turn-metadata",
            header_contains='"request_kind":"compaction"',
        ),
        KindRule(kind="subagent", name="subagent_header", header="x-openai-subagent", header_contains="collab_spawn"),
        KindRule(kind="auxiliary", name="side_request_header", header="x-openai-subagent"),
    )
    thread_rules = (ThreadRule(thread="thread-id", parent="x-codex-parent-thread-id"),)
    resumes = True
    artifacts = ("~/.codex/sessions",)

    def __init__(self, config: CodexConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        return await native_agent(cache, "codex", _PACKAGE, self._version, _PROGRAM, log)

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        flags = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        program = ("/bin/sh", "-c", _RESUME, installation.path) if launch.resume else (installation.path, "exec")
        return Recipe(
            argv=(*program, *flags, "-"),
            env={_KEY: launch.key, **self._config.env},
            files={
                instruction: launch.instruction.encode(),
                f"{sandbox.home}/.codex/config.toml": self._settings(launch),
            },
            stdin=instruction,
        )

    def _settings(self, launch: Launch) -> bytes:
        """TOML: a string, a number, a boolean or a list of them is written there as in JSON."""
        values = {
            **_QUIET,
            "model": launch.model,
            "model_context_window": self._config.context_tokens,
            "model_auto_compact_token_limit": self._config.auto_compact_tokens,
            "agents.max_depth": self._config.subagent_depth,
            "model_provider": "bridle",
            "model_providers.bridle.name": "bridle",
            "model_providers.bridle.base_url": launch.base_url("openai"),
            "model_providers.bridle.env_key": _KEY,
            "model_providers.bridle.wire_api": "responses",
            "model_providers.bridle.supports_websockets": self._config.websocket,
            **self._timers(),
            **self._servers(),
            **self._config.settings,
        }
        return b"".join(b"%s = %s\n" % (name.encode(), msgspec.json.encode(value)) for name, value in values.items())

    def _timers(self) -> dict[str, int]:
        silence_s = self._config.silence_s
        return {} if silence_s is None else {"model_providers.bridle.stream_idle_timeout_ms": 1000 * silence_s}

    def _servers(self) -> dict[str, str | bool | tuple[str, ...]]:
        """The first prompt waits only for servers that are required."""
        found: dict[str, str | bool | tuple[str, ...]] = {}
        for name, server in self._config.mcp.items():
            found[f"mcp_servers.{name}.command"] = server.command[0]
            found[f"mcp_servers.{name}.args"] = server.command[1:]
            found[f"mcp_servers.{name}.required"] = True
            found |= {f'mcp_servers.{name}.env."{variable}"': value for variable, value in server.env.items()}
        return found
