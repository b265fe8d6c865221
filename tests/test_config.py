from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.config import Settings, load
from bridle.errors import ConfigError
from bridle.harnesses.command import CommandConfig

PAGE = Path(__file__).parent.parent / "docs" / "config.md"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_anything_there_are_defaults() -> None:
    assert load(None, (), {}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "n = 4\n[gateway]\nport = 8000\n"),
        ("a.yaml", "n: 4\ngateway: {port: 8000}\n"),
        ("a.json", '{"n": 4, "gateway": {"port": 8000}}'),
    ],
)
def test_a_file_is_toml_yaml_or_json(tmp_path: Path, name: str, text: str) -> None:
    settings = load(write(tmp_path / name, text), (), {})
    assert (settings.n, settings.gateway.port, settings.gateway.host) == (4, 8000, "127.0.0.1")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path / "a.yaml", ""), (), {}) == Settings()


def test_set_wins_over_a_file_and_a_flag_over_both(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "{n: 2, concurrency: 2, data: file}")
    settings = load(file, ["concurrency=3", "data=set", "data=again"], {"data": "flag", "n": None})
    assert (settings.n, settings.concurrency, settings.data) == (2, 3, "flag")


def test_a_later_set_wins_over_an_earlier_one() -> None:
    assert load(None, ["n=2", "n=3"], {}).n == 3


def test_set_takes_values_as_in_yaml() -> None:
    given = ["harness.name=command", "harness.options.argv=[python3, 'a b']", "session.sampling.temperature=0.7"]
    settings = load(None, given, {})
    assert settings.harness.options == {"argv": ["python3", "a b"]}
    assert settings.session.sampling.temperature == 0.7


def test_the_environment_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("N", "BRIDLE_N", "BRIDLE_GATEWAY_PORT", "BRIDLE_GATEWAY__PORT", "GATEWAY_PORT"):
        monkeypatch.setenv(name, "7")
    assert load(None, (), {}) == Settings()


BAD = [
    ("prt=1", 'prt: unknown key "prt": There are: cache, concurrency'),
    ("concurency=1", 'did you mean "concurrency"?'),
    ("gateway.prt=1", 'gateway.prt: unknown key "prt": did you mean "port"? There are: abort_grace_s'),
    ("session.limits.turn=1", 'session.limits.turn: unknown key "turn": did you mean "turns"?'),
    (
        "session.kinds=[{kind: mainn, name: x}]",
        "session.kinds[0].kind: expected one of main, subagent, compaction, auxiliary, got 'mainn'",
    ),
    ("gateway.port=eighty", "gateway.port: expected `int`, got `str`"),
    ("gateway=80", "gateway: expected `object`, got `int`"),
    ("samples.unused_draws=keep", "samples.unused_draws: expected one of train, drop, got 'keep'"),
    ("session.sampling.temperature=0", "sampling.temperature must be > 0"),
    ("n=0", "n (0) and concurrency (2) must be at least 1"),
    ("n", "--set n: expected key=value"),
    ("=1", "--set =1: expected key=value"),
    ("n=[1", "--set n=[1: the value is no YAML"),
    ("n.x=1", "n: expected `int`, got `object`"),
]


@pytest.mark.parametrize(("override", "message"), BAD, ids=[override for override, _ in BAD])
def test_a_bad_setting_is_named_with_what_was_expected(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, [override], {})
    assert message in raised.value.message
    assert "\n" not in raised.value.message


def test_a_value_is_no_group_of_settings() -> None:
    with pytest.raises(ConfigError, match=r"setting n\.x: n holds a value"):
        load(None, ["n=1", "n.x=1"], {})


FILES = [
    ("a.toml", "n = ", "a.toml: Invalid value"),
    ("a.yaml", "n: [1", "a.yaml: while parsing"),
    ("a.yaml", "- n", "a.yaml: expected a mapping of settings, got list"),
    ("a.json", "\xff", "a.json: "),
]


@pytest.mark.parametrize(("name", "text", "message"), FILES)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as raised:
        load(file, (), {})
    assert message in raised.value.message
    assert "\n" not in raised.value.message


def test_a_folder_is_no_file_of_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*: Is a directory"):
        load(tmp_path, (), {})


def settings_of(kind: type[Any], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from settings_of(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_the_page_describes_every_setting_and_no_other() -> None:
    described = re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(), re.MULTILINE)
    harness = [f"harness.options.{name}" for name in CommandConfig.__struct_fields__]
    known = [*settings_of(Settings), *harness]
    assert sorted(set(described)) == sorted(described), "a setting is described twice"
    assert set(described) - set(known) == set()
    assert set(settings_of(Settings)) - set(described) == set()


def test_the_page_gives_the_true_defaults() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    for name, given in rows:
        value: Any = Settings()
        for part in name.split("."):
            value = getattr(value, part)
        shown = msgspec.json.encode(value).decode() if value not in ("", (), {}) else "—"
        assert given.strip().strip("`").replace(" ", "") == shown.replace(" ", ""), name
