"""A gateway over a scripted engine, in a run directory of its own, and what the independent checker says of the run.

async with ground(directory, renderer, script) as g:
    session = await g.open()
    ...                          # agents talk to session.base_urls with session.key
    report = await g.checked(session)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bridle.engines.base import Engine
from bridle.engines.calls import Call
from bridle.engines.journal import Entry, read_journal
from bridle.engines.script import Script, ScriptTurn
from bridle.engines.scripted import ScriptedEngine
from bridle.exporters.jsonl import JsonlExporter
from bridle.gateway.access import LiveSession
from bridle.gateway.client import GatewayClient, OpenedSession
from bridle.gateway.server import Gateway, GatewayConfig, serve
from bridle.rendering.template import TemplateRenderer
from bridle.samples.check import Report, check, render
from bridle.samples.fidelity import Fidelity, TurnRecord
from bridle.samples.linearize import document, linearize
from bridle.samples.sample import Sample
from bridle.sessions.codec import decode
from bridle.sessions.records import Record, SessionOptions
from bridle.sessions.session import Session


def shell(*commands: str, text: str | None = None, thinking: str | None = None, **more: Any) -> ScriptTurn:
    return ScriptTurn(text=text, thinking=thinking, calls=tuple(Call(shell=command) for command in commands), **more)


class Ground:
    """`fidelity` and `samples` hold what the last finished session came to."""

    def __init__(self, directory: Path, engine: Engine, gateway: Gateway, client: GatewayClient) -> None:
        self.directory = directory
        self.engine = engine
        self.gateway = gateway
        self.client = client
        self._opened: dict[str, LiveSession] = {}
        self.samples: list[Sample] = []
        self.fidelity: Fidelity | None = None

    async def open(self, session_id: str = "s", **options: Any) -> OpenedSession:
        """`options`: fields of SessionOptions."""
        opened = await self.client.open(session_id, SessionOptions(**options))
        self._opened[session_id] = self.gateway.control.access.get(session_id)
        return opened

    def live(self, session_id: str = "s") -> LiveSession:
        """Also once it is finished, when the gateway has let it go."""
        return self._opened.get(session_id) or self.gateway.control.access.get(session_id)

    async def finish(self, session_id: str = "s", **samples: Any) -> Fidelity:
        """Finishes the session over HTTP and lays down what a rollout would."""
        return self._keep(session_id, await self.client.finish(session_id, "finished", samples))

    async def checked(self, session_id: str = "s", **samples: Any) -> Report:
        """Finishes the session. Raises AssertionError with the checker's words unless all is accounted for."""
        await self.finish(session_id, **samples)
        return self.check()

    def check(self) -> Report:
        report = check(self.directory)
        if not report.ok:
            raise AssertionError("\n".join(render(report)))
        return report

    @property
    def refusals(self) -> int:
        """Agent calls refused or failed so far."""
        metric = next(m for m in self.gateway.control.metrics.errors.collect())
        return int(sum(sample.value for sample in metric.samples if sample.name.endswith("_total")))

    @property
    def turns(self) -> tuple[TurnRecord, ...]:
        assert self.fidelity is not None
        return self.fidelity.turns

    @property
    def echoes(self) -> list[str]:
        """How draws came back, in order, transplanted ones marked so."""
        return [echo.echo + "+transplanted" * echo.transplanted for turn in self.turns for echo in turn.echoes]

    @property
    def notes(self) -> list[str]:
        return [note.what for turn in self.turns for note in turn.notes]

    def journal(self) -> list[Entry]:
        return list(read_journal(self.directory / "journal.jsonl"))

    def log(self, session_id: str = "s") -> list[Record]:
        return read_log(self.directory, session_id)

    def recover(self, session_id: str = "s") -> Fidelity:
        """Lays down what the session's log alone says, as after a crash of the gateway."""
        return self._keep(session_id, document(linearize_log(self.directory, session_id)))

    def _keep(self, session_id: str, finished: dict[str, Any]) -> Fidelity:
        self.samples, self.fidelity = lay_down(self.directory, session_id, finished)
        return self.fidelity


@asynccontextmanager
async def ground(
    directory: Path,
    renderer: TemplateRenderer,
    script: Script,
    engine: Engine | None = None,
    *,
    context_length: int = 131072,
    **config: Any,
) -> AsyncIterator[Ground]:
    """`config`: fields of GatewayConfig. Without an `engine` it is a scripted one whose draws train."""
    journal = directory / "journal.jsonl"
    scripted = ScriptedEngine(
        script, renderer.vocabulary, renderer.write, journal, context_length=context_length, score="fake"
    )
    async with (
        engine or scripted as sampling,
        serve(GatewayConfig(**config), renderer, sampling, directory) as gateway,
        GatewayClient(gateway.url, gateway.control_token) as client,
    ):
        yield Ground(directory, sampling, gateway, client)


def lay_down(directory: Path, session_id: str, finished: dict[str, Any]) -> tuple[list[Sample], Fidelity]:
    """Samples and fidelity record of a session, where a checker of the run looks for them."""
    place = directory / "rollouts" / session_id
    samples = [Sample.from_dict(fields) for fields in finished["samples"]]
    JsonlExporter().write(samples, place / "samples.jsonl")
    (place / "fidelity.json").write_bytes(msgspec.json.encode(finished["fidelity"]))
    return samples, msgspec.convert(finished["fidelity"], Fidelity)


def read_log(directory: Path, session_id: str) -> list[Record]:
    return list(decode((directory / "rollouts" / session_id / "session.log").read_bytes()))


def linearize_log(directory: Path, session_id: str) -> Any:
    session = Session.replay(read_log(directory, session_id))
    return linearize(session.tree, facts=session.facts)
