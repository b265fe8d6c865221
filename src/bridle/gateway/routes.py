"""Which protocol serves a call, and with what: the routes the protocols name, found by method and path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridle.protocols.base import Protocol, Route

MARKS = {"anthropic-version": "anthropic", "x-goog-api-key": "gemini", "x-goog-api-client": "gemini"}
"""Headers of official clients that tell which protocol a call speaks where its path does not."""
DEFAULT = "openai_chat"


@dataclass(frozen=True, slots=True)
class Found:
    """`route` None: there is none; `protocol` is then whose errors the client most likely understands. `model`: the one
    named in the path."""

    protocol: Protocol
    route: Route | None = None
    model: str = ""


class Routes:
    """Exact paths by one lookup; the few with a model in them by pattern."""

    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self._protocols = {protocol.name: protocol for protocol in protocols}
        self._exact: dict[str, list[Found]] = {}
        self._patterns: list[tuple[re.Pattern[str], Found]] = []
        for protocol in protocols:
            for route in protocol.routes:
                if "{model}" in route.path:
                    pattern = re.escape(_line(route)).replace(r"\{model\}", "(?P<model>[^/]+)")
                    self._patterns.append((re.compile(pattern), Found(protocol, route)))
                else:
                    self._exact.setdefault(_line(route), []).append(Found(protocol, route))

    def __iter__(self) -> Iterator[str]:
        """Every route once, as "METHOD path"."""
        yield from dict.fromkeys(_line(route) for protocol in self._protocols.values() for route in protocol.routes)

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> Found:
        """Several protocols may name one route (`GET /v1/models`): the client's own marks choose, else the first."""
        marked = self._marked(headers)
        line = f"{method} {path}"
        candidates = self._exact.get(line) or [
            Found(found.protocol, found.route, match["model"])
            for pattern, found in self._patterns
            if (match := pattern.fullmatch(line))
        ]
        own = (found for found in candidates if found.protocol is marked)
        return next(own, candidates[0] if candidates else Found(marked))

    def _marked(self, headers: Mapping[str, str]) -> Protocol:
        marked = (self._protocols.get(name) for header, name in MARKS.items() if header in headers)
        return next(filter(None, marked), self._protocols[DEFAULT])


def _line(route: Route) -> str:
    return f"{route.method} {route.path}"
