"""Names to classes: a family's table ("local" → "bridle.sandboxes.local:LocalSandbox") or a user's "my.module:Class".

Nothing is imported before it is chosen, so a driver's dependencies are needed by those alone who use it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from bridle.errors import ConfigError


def resolve(what: str, names: Mapping[str, str], name: str) -> Any:
    """-> the class (or other object) that `name` stands for. `what` ("sandbox", "engine") is for the messages.

    Raises ConfigError for an unknown name, a module that cannot be imported, or an object it does not have.
    """
    target = name if ":" in name else names.get(name)
    if target is None:
        raise ConfigError(unknown(what, name, names) + '; your own class is given as "my.module:Class"')
    module_name, _, attribute = target.partition(":")
    return _attribute(what, name, _module(what, name, module_name), attribute)


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """-> 'unknown sandbox "bubblewarp": did you mean "bubblewrap"? There are: bubblewrap, local'."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f' did you mean "{close[0]}"?' if close else ""
    return f'unknown {what} "{given}":{hint} There are: {", ".join(names) or "none"}'


def _module(what: str, name: str, module_name: str) -> ModuleType:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f'{what} "{name}": "{module_name}" is no module name; expected "my.module:Class"')
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f'{what} "{name}": importing {module_name} failed: {error}. '
            "Install the package (or the bridle extra) that brings it into this Python, or correct the name"
        ) from error


def _attribute(what: str, name: str, module: ModuleType, attribute: str) -> Any:
    found = vars(module)
    if attribute not in found:
        public = [key for key in found if not key.startswith("_")]
        raise ConfigError(f'{what} "{name}": {unknown(f"object in {module.__name__}", attribute, public)}')
    return found[attribute]
