"""A real gateway with a fault proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridle.doctor.faults import Fault, FaultProxy, faulty
from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.testing.ground import Ground, ground


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> TemplateRenderer:
    return load_renderer(make_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def proxied(renderer: TemplateRenderer, tmp_path: Path) -> Any:
    """(what the engine says to every call, fault) -> the gateway, one session, the proxy."""

    @asynccontextmanager
    async def enter(
        turn: ScriptTurn, fault: Fault | None, grace_s: float = 0.05
    ) -> AsyncIterator[tuple[Ground, OpenedSession, FaultProxy]]:
        script = Script((Thread((turn,)),), Expect(reasons=("undelivered",)), resegment=0.4, seed=3)
        async with (
            ground(tmp_path / "run", renderer, script, abort_grace_s=grace_s) as g,
            faulty(g.gateway.url, fault) as proxy,
        ):
            yield g, await g.open(), proxy

    return enter
