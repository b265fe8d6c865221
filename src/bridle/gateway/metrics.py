"""Prometheus metrics of one gateway, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter("bridle_turns", "Model calls answered or under way.", ["protocol"], registry=self.registry)
        self.errors = Counter("bridle_errors", "Agent calls refused or failed.", ["kind"], registry=self.registry)
        self.sessions = Gauge("bridle_sessions_open", "Sessions not yet finished.", registry=self.registry)
        self.sampled = Counter(
            "bridle_sampled_tokens", "Tokens sampled, counted as sessions finish.", registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
