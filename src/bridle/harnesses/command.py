"""Any program that takes its base URL and key from the environment: the way to run an agent that has no file here."""

from __future__ import annotations

from pathlib import Path

from bridle.errors import ConfigError, HarnessError
from bridle.harnesses.base import Harness, HarnessConfig, Installation, Launch, Log, ProtocolName, Recipe
from bridle.sandboxes.base import Mount, Sandbox


class CommandConfig(HarnessConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`argv`: its words may hold {instruction_file}, {instruction} (which shows it in the process list, and long ones
    do not fit), {model}, {workspace}, {home}; without either of the first two the instruction is the program's stdin.
    `resume_argv`: the same for a follow-up in the conversation the program had last; without it, it has none.
    `mounts`: host paths the program needs, shown read-only under the same path. The other names say which environment
    variables carry what."""

    argv: tuple[str, ...]
    resume_argv: tuple[str, ...] = ()
    protocol: ProtocolName = "openai_chat"
    mounts: tuple[str, ...] = ()
    openai_url_env: tuple[str, ...] = ("OPENAI_BASE_URL",)
    anthropic_url_env: tuple[str, ...] = ("ANTHROPIC_BASE_URL",)
    gemini_url_env: tuple[str, ...] = ("GOOGLE_GEMINI_BASE_URL",)
    key_env: tuple[str, ...] = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
    model_env: tuple[str, ...] = ("OPENAI_MODEL", "ANTHROPIC_MODEL", "GEMINI_MODEL")


class CommandHarness(Harness):
    Config = CommandConfig
    default_version = "unversioned"

    def __init__(self, config: CommandConfig) -> None:
        if not config.argv:
            raise ConfigError("the command harness has no argv; expected the program and its arguments")
        self._config = config
        self.protocol = config.protocol
        self.resumes = bool(config.resume_argv)

    async def install(self, cache: Path, log: Log) -> Installation:
        missing = [path for path in self._config.mounts if not Path(path).exists()]
        if missing:
            raise HarnessError(f"the command harness's mounts name what is not on this host: {', '.join(missing)}")
        return Installation(
            self._config.version or self.default_version,
            mounts=tuple(Mount(path, path) for path in self._config.mounts),
        )

    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe:
        instruction = f"{sandbox.home}/.bridle/instruction.md"
        words = {
            "{instruction_file}": instruction,
            "{model}": launch.model,
            "{workspace}": sandbox.workspace,
            "{home}": sandbox.home,
            "{instruction}": launch.instruction,
        }
        argv = self._config.resume_argv if launch.resume else self._config.argv
        given = any(name in word for word in argv for name in ("{instruction_file}", "{instruction}"))
        return Recipe(
            argv=tuple(_filled(word, words) for word in argv),
            env={**self._environment(launch), **self._config.env},
            files={instruction: launch.instruction.encode()},
            stdin="/dev/null" if given else instruction,
        )

    def _environment(self, launch: Launch) -> dict[str, str]:
        urls = {
            "openai": self._config.openai_url_env,
            "anthropic": self._config.anthropic_url_env,
            "gemini": self._config.gemini_url_env,
        }
        return {
            **{name: launch.base_urls[family] for family in launch.base_urls.keys() & urls for name in urls[family]},
            **dict.fromkeys(self._config.key_env, launch.key),
            **dict.fromkeys(self._config.model_env, launch.model),
        }


def _filled(word: str, words: dict[str, str]) -> str:
    """The instruction comes last, so that nothing in it is taken for a name."""
    for name, value in words.items():
        word = word.replace(name, value)
    return word
