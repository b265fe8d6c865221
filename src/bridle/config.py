"""Settings of a run: every family's own configuration in one tree, from defaults, a file, and dotted overrides.

The environment is not a source: it holds secrets only. Unknown keys are refused, with what was probably meant.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from bridle.decoding import decode
from bridle.errors import ConfigError
from bridle.gateway.control import Linearization
from bridle.gateway.server import GatewayConfig
from bridle.samples.credit import Credit
from bridle.sandboxes.base import SandboxConfig
from bridle.sessions.records import SessionOptions


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built-in name or "my.module:Class", and the options of what it stands for."""

    name: str
    options: dict[str, Any] = {}


class EngineChoice(Choice, frozen=True, forbid_unknown_fields=True):
    name: str = "scripted"


class HarnessChoice(Choice, frozen=True, forbid_unknown_fields=True):
    """`name` "" takes each task's own, and mini_swe_agent for a task that names none."""

    name: str = ""


class SandboxChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` "" takes each task's own, and the best that works here for a task that names none."""

    name: str = ""
    limits: SandboxConfig = SandboxConfig()


class RendererSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`verify`: what is done at start with a model that is found unfaithful: refuse it, warn of it, or do not look."""

    verify: Literal["refuse", "warn", "off"] = "refuse"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "tiny"
    """A directory with tokenizer, chat template and, for a local engine, weights; "tiny" makes one."""
    renderer: RendererSettings = RendererSettings()
    engine: EngineChoice = EngineChoice()
    harness: HarnessChoice = HarnessChoice()
    sandbox: SandboxChoice = SandboxChoice()
    gateway: GatewayConfig = GatewayConfig()
    session: SessionOptions = SessionOptions()
    samples: Linearization = Linearization()
    reducer: str = ""
    """"my.module:function", samples of a rollout -> those to hand on; "" hands all of them on."""
    credit: Credit = Credit()
    n: int = 1
    """Rollouts per task: the size of a group."""
    concurrency: int = 2
    """Rollouts under way at once."""
    data: str = "build"
    """Where runs are kept."""
    cache: str = ""
    """Where agents and the tiny model are kept; "" is ~/.cache/bridle, or bridle in XDG_CACHE_HOME."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.concurrency < 1:
            raise ValueError(f"n ({self.n}) and concurrency ({self.concurrency}) must be at least 1")


def load(file: Path | None, overrides: Iterable[str], flags: Mapping[str, Any]) -> Settings:
    """`overrides` are "dotted.key=value" (values as in YAML), `flags` dotted keys already parsed; later ones win.

    A flag of None was not given.
    """
    document = {} if file is None else _read(file)
    for override in overrides:
        _put(document, *_parsed(override))
    for key, value in flags.items():
        if value is not None:
            _put(document, key, value)
    return decode(document, Settings, "settings")


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {_one_line(error)}") from error
    if not isinstance(document, dict | None):
        raise ConfigError(f"{file}: expected a mapping of settings, got {type(document).__name__}")
    return document or {}


def _parsed(override: str) -> tuple[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: expected key=value, for example --set gateway.port=8000")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: the value is no YAML: {_one_line(error)}") from error


def _put(document: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for name in parents:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise ConfigError(f"setting {dotted}: {name} holds a value, not a group of settings")
    document[last] = value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
