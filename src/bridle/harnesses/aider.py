"""aider: OpenAI chat, streaming, no tools: edits are text. Installed from PyPI into a virtual environment.

It puts its whole prompt together anew for every request (the files after the dialogue), so each turn is a branch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, Recipe, Silence
from bridle.harnesses.install import python_packages
from bridle.messages import KindRule
from bridle.sandboxes.base import Sandbox

# Of its own files, the cache of its map of the repository is the one that no option keeps out of the workspace.
_START = (
    "import sys; from aider.repomap import RepoMap; RepoMap.TAGS_CACHE_DIR = sys.argv.pop(1); "
    "from aider.main import main; sys.exit(main())"
)
_QUIET = {
    "AIDER_YES_ALWAYS": "true",
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
    "AIDER_SHOW_RELEASE_NOTES": "false",
    "AIDER_SHOW_MODEL_WARNINGS": "false",
    "AIDER_AUTO_COMMITS": "false",
    "AIDER_DIRTY_COMMITS": "false",
    "AIDER_GITIGNORE": "false",
    "AIDER_PRETTY": "false",
    "AIDER_FANCY_INPUT": "false",
    "AIDER_DETECT_URLS": "false",
    "AIDER_SUGGEST_SHELL_COMMANDS": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class AiderConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True):
    """`files`: those in the chat from the start, below the workspace; it may add others. `map_tokens` 0: no map of the
    repository. Past a sixteenth of `context_tokens` (at least 1024, at most 8192) it summarizes the dialogue."""

    edit_format: str = "diff"
    files: tuple[str, ...] = ()
    map_tokens: int = 1024
    context_tokens: int = 100_000
    max_output_tokens: int = 8192
    silence_s: Silence = None


class Aider(Harness):
    Config = AiderConfig
    protocol = "openai_chat"
    default_version = "0.86.2"
    kind_rules = (
        KindRule(
            kind="compaction",
            name="summary_system",
            system_contains="summarize this partial conversation about programming",
        ),
        KindRule(kind="auxiliary", name="commit_message_system", system_contains="one-line Git commit messages"),
    )
    resumes = True
    artifacts = ("~/.aider/chat.md",)

    def __init__(self, config: AiderConfig) -> None:
        self._config = config
        self._version = config.version or self.default_version

    async def install(self, cache: Path, log: Log) -> Installation:
        packages = [f"aider-chat=={self._version}"]
        return await python_packages(cache, "aider", self._version, packages, log, minimum=(3, 10), below=(3, 13))

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        """Its own files are kept out of the workspace, and so out of the patch."""
        home = f"{sandbox.home}/.aider"
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        metadata = f"{home}/model.json"
        model = f"openai/{launch.model}"
        # -I: the workspace, where the agent works, must not be on the import path of the agent itself
        program = (installation.runtime, "-I", "-c", _START, f"{home}/tags")
        flags = ("--model", model, "--weak-model", model, "--edit-format", self._config.edit_format)
        again = ("--restore-chat-history",) if launch.resume else ()
        silence_s = self._config.silence_s
        timer = () if silence_s is None else ("--timeout", str(silence_s))
        return Recipe(
            argv=(*program, *again, *flags, *timer, "--message-file", instruction, *self._config.files),
            env={
                **_QUIET,
                "AIDER_CHAT_HISTORY_FILE": f"{home}/chat.md",
                "AIDER_INPUT_HISTORY_FILE": f"{home}/input",
                "AIDER_MODEL_METADATA_FILE": metadata,
                "AIDER_MAP_TOKENS": str(self._config.map_tokens),
                "OPENAI_API_KEY": launch.key,
                "OPENAI_API_BASE": launch.base_url("openai"),
                **self._config.env,
            },
            files={
                instruction: launch.instruction.encode(),
                metadata: msgspec.json.encode({model: self._metadata()}),
            },
        )

    def _metadata(self) -> dict[str, object]:
        """Of a model it knows nothing of, it would ask the network."""
        return {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": self._config.context_tokens,
            "max_output_tokens": self._config.max_output_tokens,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
        }
