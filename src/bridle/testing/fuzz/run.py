"""The inputs of one process: made from numbers, sent to parsers and to a real gateway, judged."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import numpy as np

from bridle.engines.base import Chunk, EngineFacts, GenerateRequest
from bridle.errors import BridleError
from bridle.gateway.client import GatewayClient, OpenedSession
from bridle.gateway.server import GatewayConfig, serve
from bridle.messages import Message, Text, Thinking, ToolCall
from bridle.protocols import NAMES
from bridle.protocols.base import Protocol
from bridle.registry import resolve
from bridle.rendering.base import Renderer
from bridle.rendering.template import load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.sessions.records import Limits, SessionOptions
from bridle.testing.fuzz.client import Answer, RawClient, RawSocket
from bridle.testing.fuzz.corpus import CALL, SIGNATURE, Seed, seeds
from bridle.testing.fuzz.mutate import damaged, extremes
from bridle.testing.fuzz.oracle import TELLTALES, wrong
from bridle.tokens import concatenate, ids_of

OVER_HTTP = 4
"""One in so many inputs goes through the whole gateway."""
OVER_SOCKET = 0.3
"""Of what goes to the gateway in Responses, the part that goes as a WebSocket's frame."""
HANG_S = 10.0
BIG_HANG_S = 60.0
PER_SESSION = 250
PROGRESS = 5000
SAID = (
    Message("assistant", (Thinking("Hm."), Text("I look."), ToolCall("", "bash", '{"command": "ls"}'))),
    Message("assistant", (Text("Done. \u2713 STOP and on"),)),
    Message("assistant", (ToolCall("", "bash", '{"command": "ls"'), ToolCall("", "nothing", "[]"))),
    Message("assistant", ()),
)
CALL_ID = re.compile(r"call[0-9a-f]{20}")
SIGNED = re.compile(r'sig[0-9a-f]{20}|(?<="thoughtSignature":")[^"]+')
"""Of what Gemini signs the signature is inside base64."""
MARKS = {"anthropic": {"anthropic-version": "2023-06-01"}}


@dataclass(frozen=True)
class Plan:
    """`numbers`: of the inputs to make. `extremes`: whether the deep, long and wide ones are sent too."""

    seed: int
    numbers: range
    extremes: bool


@dataclass(frozen=True)
class Failure:
    number: int
    protocol: str
    what: str
    input: bytes
    hang: bool = False


@dataclass
class Found:
    inputs: int = 0
    over_http: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def __add__(self, other: Found) -> Found:
        statuses = {
            name: self.statuses.get(name, 0) + other.statuses.get(name, 0) for name in self.statuses | other.statuses
        }
        inputs, over_http = self.inputs + other.inputs, self.over_http + other.over_http
        return Found(inputs, over_http, statuses, [*self.failures, *other.failures])

    def count(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


def share(plan: Plan) -> Found:
    """One process's part, with a line of progress now and then."""
    started = time.monotonic()

    def progress(done: int, found: Found) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        state = f"{len(found.failures)} wrong, {time.monotonic() - started:.0f} s, {peak} MiB"
        sys.stdout.write(f"  {done} of {len(plan.numbers)} inputs, {state}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="bridle-fuzz-") as directory:
        return asyncio.run(fuzz(plan, Path(directory), progress))


async def fuzz(plan: Plan, directory: Path, progress: Callable[[int, Found], None]) -> Found:
    renderer = load_renderer(make_tokenizer(directory / "model"))
    engine = FuzzEngine(renderer)
    found = Found()
    async with (
        engine,
        serve(GatewayConfig(), renderer, engine, directory) as gateway,
        GatewayClient(gateway.url, gateway.control_token) as control,
        Target(gateway.url, control) as target,
    ):
        fuzzer = Fuzzer(plan.seed, target, found)
        with listening() as complaints:
            if plan.extremes:
                await fuzzer.extremes()
            for done, number in enumerate(plan.numbers, 1):
                await fuzzer.one(number)
                fuzzer.overheard(number, complaints)
                if done % PROGRESS == 0:
                    progress(done, found)
        await target.close_session()
    return found


@dataclass(frozen=True)
class Call:
    """One HTTP call but for its body. `astray`: its path or method may lead anywhere, so any protocol may answer."""

    protocol: str
    method: str
    path: str
    headers: dict[str, str]
    what: str = ""
    astray: bool = False


class Fuzzer:
    """Protocols take turns by the input's number."""

    def __init__(self, seed: int, target: Target, found: Found) -> None:
        self.seed = seed
        self.target = target
        self.found = found
        self.protocols: list[Protocol] = [resolve("protocol", NAMES, name)() for name in NAMES]
        self.seeds = {protocol.name: seeds(protocol.name) for protocol in self.protocols}

    async def one(self, number: int) -> None:
        rng = random.Random(f"{self.seed}:{number}")
        protocol = self.protocols[number % len(self.protocols)]
        seed = rng.choice(self.seeds[protocol.name])
        self.found.inputs += 1
        if rng.randrange(OVER_HTTP) == 0:
            await self.over_http(number, seed, rng)
        else:
            self.parse(number, protocol, seed, damaged(seed.body, rng))

    def parse(self, number: int, protocol: Protocol, seed: Seed, body: bytes) -> None:
        try:
            protocol.parse(body, {}, seed.target)
            self.found.count("parsed")
        except BridleError as error:
            self.found.count(f"refused by the parser with {error.status}")
            if error.status >= 500:
                self.fail(number, protocol.name, f"{error.status} {error}", body)
        except Exception as error:  # noqa: BLE001 - whatever else is raised is what is looked for
            self.fail(number, protocol.name, f"{type(error).__name__}: {error}", body)

    async def over_http(self, number: int, seed: Seed, rng: random.Random) -> None:
        calls, signatures = await self.target.identities(seed.protocol, self.seeds[seed.protocol])
        text = json.dumps(seed.body).replace(CALL, rng.choice(calls)).replace(SIGNATURE, rng.choice(signatures))
        if seed.protocol == "openai_responses" and rng.random() < OVER_SOCKET:
            await self.over_socket(number, damaged({"type": "response.create", **json.loads(text)}, rng))
        else:
            call = around(seed, rng, self.target.session)
            await self.send(number, call, damaged(json.loads(text), rng), HANG_S)

    async def over_socket(self, number: int, frame: bytes) -> None:
        self.found.over_http += 1
        try:
            async with asyncio.timeout(HANG_S):
                end = await self.target.socket.ask(self.target.session.key, frame)
        except TimeoutError:
            await self.target.socket.close()
            self.fail(number, "WebSocket", f"no end within {HANG_S:g} s", frame, hang=True)
            return
        except ConnectionError as error:
            self.fail(number, "WebSocket", str(error), frame)
            return
        self.found.count("frames answered")
        if any(word in end for word in TELLTALES):
            self.fail(number, "WebSocket", f"speaks of itself: {end[:300]!r}", frame)

    async def extremes(self) -> None:
        for protocol in self.protocols:
            seed = self.seeds[protocol.name][0]
            for number, (what, body) in enumerate(extremes(seed.body), 1):
                await self.target.identities(protocol.name, self.seeds[protocol.name])
                headers = key_of(self.target.session) | MARKS.get(protocol.name, {})
                self.found.inputs += 1
                await self.send(-number, Call(protocol.name, "POST", seed.target, headers, what), body, BIG_HANG_S)

    async def send(self, number: int, call: Call, body: bytes, hang_s: float) -> None:
        self.found.over_http += 1
        try:
            async with asyncio.timeout(hang_s):
                answer = await self.target.client.send(call.method, call.path, call.headers, body)
        except TimeoutError:
            await self.target.client.close()
            self.fail(number, call.protocol, f"{call.what}: no end within {hang_s:g} s", body, hang=True)
            return
        except ConnectionError as error:
            self.fail(number, call.protocol, f"{call.what}: {error}", body)
            return
        self.found.count(str(answer.status))
        if complaint := wrong("" if call.astray else call.protocol, answer):
            self.fail(number, call.protocol, f"{call.what}{call.method} {call.path[:100]}: {complaint}", body)

    def overheard(self, number: int, complaints: list[str]) -> None:
        """What the gateway logged as an error explains the failure it belongs to, or is one."""
        last = self.found.failures[-1] if self.found.failures else None
        for line in complaints:
            if last is not None and last.number == number:
                self.found.failures[-1] = last = replace(last, what=f"{last.what}\n  log: {line}")
            else:
                self.fail(number, "log", line, b"")
        complaints.clear()

    def fail(self, number: int, protocol: str, what: str, body: bytes, hang: bool = False) -> None:
        self.found.failures.append(Failure(number, protocol, what, body[: 1 << 20], hang))


class Target:
    """A gateway under fire: one session after another, each finished and its tokens counted."""

    def __init__(self, url: str, control: GatewayClient) -> None:
        parts = urlsplit(url)
        self.client = RawClient(parts.hostname or "", parts.port or 0)
        self.socket = RawSocket(f"{url}/v1/responses")
        self.control = control
        self.session = OpenedSession("", "", {}, "")
        self._used = PER_SESSION
        self._number = 0
        self._identities: dict[str, tuple[Sequence[str], Sequence[str]]] = {}

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)
        await self.socket.close()

    async def identities(self, protocol: str, corpus: Sequence[Seed]) -> tuple[Sequence[str], Sequence[str]]:
        """Call ids and signatures that this session minted for this protocol; the session is changed now and then."""
        if self._used >= PER_SESSION:
            await self.close_session()
            self._number += 1
            options = SessionOptions(limits=Limits(turns=100_000), media="replace")
            self.session = await self.control.open(f"fuzz-{self._number}", options)
            self._used = 0
            self._identities.clear()
        self._used += 1
        if protocol not in self._identities:
            self._identities[protocol] = await self._minted(next(seed for seed in corpus if seed.first))
        return self._identities[protocol]

    async def _minted(self, seed: Seed) -> tuple[Sequence[str], Sequence[str]]:
        """Also proof that a sound request is still answered."""
        headers = key_of(self.session) | MARKS.get(seed.protocol, {})
        answer = Answer(0, {}, b"")
        for _ in SAID:
            answer = await self.client.send("POST", seed.target, headers, json.dumps(seed.body).encode())
            if answer.status != 200:
                raise AssertionError(f"{seed.protocol}: a sound request got {answer.status}: {answer.body[:300]!r}")
            if b'"bash"' in answer.body and b"I look." in answer.body:
                break
        text = answer.body.decode()
        return CALL_ID.findall(text) or ["none"], SIGNED.findall(text) or ["none"]

    async def close_session(self) -> None:
        """Every sampled token is trained or has a reason, whatever was thrown at the session."""
        if not self.session.id:
            return
        finished = await self.control.finish(self.session.id, "finished", {})
        totals = finished["fidelity"]["totals"]
        accounted = totals["trained"] + sum(totals["untrained"].values())
        if accounted != totals["sampled"]:
            raise AssertionError(f"{self.session.id}: {accounted} of {totals['sampled']} sampled tokens accounted for")


class FuzzEngine:
    """Answers whatever it is asked, in turn, so that no fault is its own."""

    def __init__(self, renderer: Renderer) -> None:
        self.facts = EngineFacts("fuzz", "fuzz", context_length=200_000, holds_calls=True)
        self._renderer = renderer
        self._turn = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        said = SAID[self._turn % len(SAID)]
        self._turn += 1
        encode = self._renderer.vocabulary.encode
        pieces = self._renderer.write(said, request.thinking_open)
        ids = concatenate([ids_of([piece]) if isinstance(piece, int) else encode(piece) for piece in pieces])
        cut = ids[: request.sampling.max_tokens]
        logprobs = np.full(len(cut), -1.0, np.float32)
        half = len(cut) // 2
        yield Chunk(cut[:half], logprobs[:half])
        yield Chunk(cut[half:], logprobs[half:], finish="stop" if len(cut) == len(ids) else "length")

    async def abort(self, rid: str) -> None:
        return None


def around(seed: Seed, rng: random.Random, session: OpenedSession) -> Call:
    """The call that carries a body; one in ten is damaged too."""
    headers = key_of(session) | MARKS.get(seed.protocol, {})
    call = Call(seed.protocol, "POST", seed.target, headers)
    return rng.choice(AROUND)(call, rng, session) if rng.random() < 0.1 else call


def _other_method(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    return replace(call, method=rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS")), astray=True)


def _other_path(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    return replace(call, path=rng.choice(PATHS), astray=True)


def _through_session(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    return replace(call, path=f"/s/{session.id}{call.path}")


def _longer_path(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    return replace(call, path=call.path + rng.choice(TAILS), astray=True)


def _other_key(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    key = rng.choice(("Bearer", "Bearer x", "Basic \xff", "Bearer " + "x" * 3000))
    return replace(call, headers=call.headers | {"authorization": key})


def _claimed_retry(call: Call, rng: random.Random, session: OpenedSession) -> Call:
    return replace(
        call, headers=call.headers | {"x-stainless-retry-count": rng.choice(("1", "-1", "9" * 30, "x", "\xb2"))}
    )


PATHS = ("/v1/v1/v1", "/v1/", "/s/", "/s//v1/messages", "/v1beta/models/:x", "/s/%00/v1/messages", "/v1/models/%ff")
TAILS = ("?", "?a=b&a=c", "?alt=sse&alt=x", "?key=%00", "/", "//", "?" + "x" * 3000)
AROUND: tuple[Callable[[Call, random.Random, OpenedSession], Call], ...] = (
    _other_method,
    _other_path,
    _through_session,
    _longer_path,
    _other_key,
    _claimed_retry,
)


def key_of(session: OpenedSession) -> dict[str, str]:
    return {"authorization": f"Bearer {session.key}"}


@contextmanager
def listening() -> Iterator[list[str]]:
    """-> the lines the gateway logs as errors: what it did not foresee."""
    lines: list[str] = []
    handler = _Lines(lines)
    logger = logging.getLogger("bridle")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.getMessage()}: {record.exc_info[1]!r}" if record.exc_info else record.getMessage())
