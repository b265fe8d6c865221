"""A gateway as something to enter and leave: the ASGI application, the listening socket, the draws under way."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvicorn

from bridle.engines.base import Engine
from bridle.errors import ConfigError, EngineUnfit
from bridle.gateway.access import Access
from bridle.gateway.app import AgentApp
from bridle.gateway.control import Control
from bridle.gateway.metrics import Metrics
from bridle.gateway.pause import Pause
from bridle.gateway.turn import OnTurn, Turns
from bridle.lifetimes import Supervisor
from bridle.protocols import NAMES as PROTOCOLS
from bridle.registry import resolve
from bridle.rendering.base import Renderer


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    model: str = "bridle"
    """The name agents ask for."""
    abort_grace_s: float = 1.0
    """How long a draw goes on after its client went away, for a retry to join."""
    ping_s: float = 15.0
    """A silent stream gets a keep-alive this often (Gemini CLI gives up after 60 s without a byte)."""
    max_body_mb: int = 64
    max_hold_s: float = 600.0
    """How long a call waits while sampling is paused."""
    engine_retries: int = 2
    """How often a turn is tried again whose engine failed before its first token."""


class Gateway:
    """A running gateway. `url` is where it listens, `control_token` what its control routes ask for."""

    def __init__(self, url: str, control_token: str, control: Control) -> None:
        self.url = url
        self.control_token = control_token
        self.control = control


@asynccontextmanager
async def serve(
    config: GatewayConfig,
    renderer: Renderer,
    engine: Engine,
    data: Path,
    control_token: str = "",
    on_turn: OnTurn | None = None,
) -> AsyncIterator[Gateway]:
    """Listens until left. `engine` is entered already and belongs to the caller; `data` receives the session logs.

    `on_turn` is called with every turn that was recorded; what it raises is logged and changes nothing."""
    if not engine.facts.returns_stop_id:
        raise EngineUnfit(
            f"engine {engine.facts.name} does not return the stop id it sampled, so turns cannot be trained exactly; "
            "use an engine or a version that does"
        )
    token = control_token or secrets.token_hex(24)
    access, metrics, pause = Access(token), Metrics(), Pause(config.max_hold_s)
    listener = _listen(config.host, config.port)
    async with _closing(access), Supervisor("gateway") as supervisor:
        control = Control(access, renderer, metrics, pause, data, config.model)
        app = AgentApp(
            {name: resolve("protocol", PROTOCOLS, name)() for name in PROTOCOLS},
            access,
            Turns(
                renderer,
                engine,
                supervisor,
                pause,
                abort_grace_s=config.abort_grace_s,
                engine_retries=config.engine_retries,
                on_turn=on_turn,
            ),
            metrics,
            control.app(),
            models=(config.model,),
            max_body_bytes=config.max_body_mb << 20,
            ping_s=config.ping_s,
        )
        control.base_url = f"http://{config.host}:{listener.getsockname()[1]}"
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
                ws_max_size=app.max_body_bytes,
            )
        )
        serving = supervisor.start("http", server.serve(sockets=[listener]))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn tells it no other way
                await asyncio.sleep(0.005)
            yield Gateway(control.base_url, token, control)
        finally:
            server.should_exit = True
            await asyncio.wait((serving,), timeout=5)


@asynccontextmanager
async def _closing(access: Access) -> AsyncIterator[None]:
    """Entered before the supervisor: the draws it cancels still write their last record."""
    try:
        yield
    finally:
        for live in access:
            live.journal.close()
            if live.capture is not None:
                await live.capture.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever entered the gateway decides when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Head and body go out apart: without it the body waits 40 ms for the client's delayed acknowledgement of the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another gateway.port") from error
    listener.listen(2048)
    return listener
