from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import bridle
from bridle.errors import ConfigError
from bridle.registry import resolve, unknown

PACKAGE = Path(bridle.__file__).parent
NAMES = {
    "ordered": "collections:OrderedDict",
    "absent": "bridle_absent.module:Thing",
    "gone": "collections:OrderedDcit",
}


def tables() -> list[tuple[str, str, str]]:
    """(family, name, target) of every family's table of names, read without importing anything."""
    found = []
    for init in sorted(PACKAGE.glob("*/__init__.py")):
        for node in ast.walk(ast.parse(init.read_text())):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "NAMES" and isinstance(node.value, ast.Dict):
                found += [(init.parent.name, *entry) for entry in ast.literal_eval(node.value).items()]
    return found


def test_a_name_in_the_table_gives_its_class() -> None:
    from collections import OrderedDict

    assert resolve("mapping", NAMES, "ordered") is OrderedDict


def test_a_users_own_class_works_wherever_a_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_engine.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("engine", {}, "my_own_engine:Mine").__name__ == "Mine"
    sys.modules.pop("my_own_engine")


def test_an_unknown_name_is_refused_with_the_closest_one_and_all_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("mapping", NAMES, "orderd")
    assert str(caught.value) == (
        'unknown mapping "orderd": did you mean "ordered"? There are: absent, gone, ordered; '
        'your own class is given as "my.module:Class"'
    )


def test_an_unknown_name_like_no_other_gets_no_guess() -> None:
    assert unknown("engine", "zzz", ["local"]) == 'unknown engine "zzz": There are: local'
    assert unknown("engine", "zzz", []) == 'unknown engine "zzz": There are: none'


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent", "importing bridle_absent.module failed: No module named 'bridle_absent'. Install the package"),
        ("gone", 'unknown object in collections "OrderedDcit": did you mean "OrderedDict"?'),
        ("collections:Ordered", 'did you mean "OrderedDict"?'),
        (":Class", '"" is no module name; expected "my.module:Class"'),
        (".relative:Class", '".relative" is no module name'),
        ("no such:Class", '"no such" is no module name'),
    ],
)
def test_what_cannot_be_resolved_is_a_config_error_that_says_why(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match="mapping ") as caught:
        resolve("mapping", NAMES, name)
    assert said in str(caught.value)


def test_nothing_is_imported_before_it_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_chosen.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"bad": "never_chosen:Thing", **NAMES}
    resolve("mapping", names, "ordered")
    with pytest.raises(RuntimeError, match="imported"):
        resolve("mapping", names, "bad")


@pytest.mark.parametrize(("family", "name", "target"), tables())
def test_every_name_in_a_familys_table_stands_for_a_class_of_that_family(family: str, name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    assert module.startswith(f"bridle.{family}."), f"{family}: {name} leads out of its family"
    source = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    assert source.exists(), f"{family}: {name} names {source}, which does not exist"
    defined = {
        node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert attribute in defined
