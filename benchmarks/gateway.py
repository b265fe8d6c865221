"""What a turn costs the gateway as its history grows: CPU seconds without the engine's, and where they go.

Prints one line per history length, ratios to the shortest one, and a whole session of 100 turns. Cost may grow with the
request (its JSON is parsed and hashed), never faster.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from bridle.gateway.prompt import prepare
from bridle.messages import ModelRequest, Text
from bridle.protocols.openai_chat import OpenAIChat
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.sessions.codec import encode
from bridle.sessions.match import digest
from bridle.sessions.records import Limits, Opened, Record, SessionOptions
from bridle.sessions.session import Draw, Session
from bridle.tokens import ids_of

LENGTHS = (2_000, 32_000, 128_000)
RESULT = "drwxr-xr-x 2 agent agent 4096 tests\n" * 20
PARTS = ("parse", "digest", "match+render", "record", "prompt", "finish")


class Played:
    """A session driven as the gateway drives it, each part of a turn timed in CPU seconds."""

    def __init__(self, renderer: TemplateRenderer) -> None:
        self.renderer = renderer
        self.log_bytes = 0
        self.session = Session(self._sink)
        self.session.open(Opened("b", "m", "r", SessionOptions(limits=Limits(turns=0)), 0.0))
        self.messages: list[dict[str, object]] = [
            {"role": "system", "content": "You are a coding agent."},
            {"role": "user", "content": "Fix it."},
        ]
        self.protocol = OpenAIChat()
        self.prompt_tokens = 0
        tail = [*renderer.vocabulary.encode("I look at the next file.").tolist(), renderer.stop_ids[0]]
        self.drawn = ids_of(tail)

    def _sink(self, record: Record) -> None:
        self.log_bytes += len(encode(record))

    def turn(self) -> list[float]:
        """-> CPU seconds of each of PARTS."""
        body = json.dumps({"model": "m", "messages": self.messages}).encode()
        clock = [time.process_time()]
        request = self.protocol.parse(body, {})
        clock.append(time.process_time())
        asked = digest(request)
        clock.append(time.process_time())
        prompt = prepare(self.renderer, self.session, request, 1 << 30)
        clock.append(time.process_time())
        turn = self.session.start(request, asked, prompt.found, prompt.rendered, prompt.lead, 0.0, prompt.before_stop)
        clock.append(time.process_time())
        self.prompt_tokens = len(self.session.tree.prompt(turn))
        clock.append(time.process_time())
        self._finish(turn, request)
        clock.append(time.process_time())
        return [after - before for before, after in pairwise(clock)]

    def _finish(self, turn: object, request: ModelRequest) -> None:
        parser = self.renderer.parser(False, ())
        parser.feed(self.drawn.tolist())
        message, _ = parser.finish()
        logprobs = np.full(len(self.drawn), -0.5, np.float32)
        drawn = Draw(self.drawn, logprobs, "stop", ((0, 0),), stop_id=self.renderer.stop_ids[0])
        self.session.finish(turn, drawn, message, 0.0)  # type: ignore[arg-type]
        said = "\n".join(part.text for part in message.parts if isinstance(part, Text))
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": RESULT}]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        renderer = load_renderer(make_tokenizer(Path(directory)))
    print(f"{'history':>8} {'ms/turn':>8} {'ratio':>6}  " + " ".join(f"{part:>13}" for part in PARTS))
    base = 0.0
    for length in LENGTHS:
        played = Played(renderer)
        while played.prompt_tokens < length:
            played.turn()
        parts = np.median([played.turn() for _ in range(9)], axis=0) * 1000
        base = base or float(parts.sum())
        shown = " ".join(f"{value:13.2f}" for value in parts)
        print(f"{played.prompt_tokens:8d} {parts.sum():8.2f} {parts.sum() / base:6.1f}  {shown}")
    session(renderer)


def session(renderer: TemplateRenderer) -> None:
    played = Played(renderer)
    spent = np.array([sum(played.turn()) for _ in range(100)]) * 1000
    first, last = spent[:10].mean(), spent[-10:].mean()
    print(
        f"100 turns, {played.prompt_tokens} tokens: {spent.sum():.0f} ms CPU, first ten {first:.2f} ms a turn, "
        f"last ten {last:.2f} ms; log {played.log_bytes / 1024:.0f} KiB"
    )


if __name__ == "__main__":
    main()
