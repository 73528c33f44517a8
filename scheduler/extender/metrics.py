"""EDGE. The extender's metrics: names, labels and what each counts, in the caller's registry.

Decides names and buckets; names are a contract (docs/contracts.md). It must never decide what is counted as what:
labels are closed sets that the callers own.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Volcano gives up after 500 ms as shipped (1 s by default); below 1 ms nothing is worth telling apart.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

UNKNOWN_VERB: Final = "unknown"
"""The label for every path that is no verb: what strangers ask for must not grow the registry."""

ANSWERED: Final = "answered"
REJECTED: Final = "rejected"  # the caller's mistake: a 4xx
FAILED: Final = "failed"  # a bug of ours: answered neutrally


class ExtenderMetrics:
    """What the extender counts. Give it the registry that the process shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # labels() costs more than the count itself, so what it found is kept: the sets are closed.
        requests = Counter(
            "isochrone_extender_requests",
            "Calls to the Volcano extender: answered, rejected (caller's mistake) or failed (bug, answered neutrally).",
            ("verb", "result"),
            registry=registry,
        )
        self.requests = cache(requests.labels)
        duration = Histogram(
            "isochrone_extender_duration_seconds",
            "Time from the headers of a call to its answer, the body's way included.",
            ("verb",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.duration = cache(duration.labels)
        decisions = Counter(
            "isochrone_decisions",
            "What answers to Volcano said: scored, foreign, cold, accepted, refused, taken-back, neutral.",
            ("verb", "result"),
            registry=registry,
        )
        self.decisions = cache(decisions.labels)
        self.cold = Counter(
            "isochrone_extender_cold_answers",
            "Neutral answers because the first lists from the API server were not complete.",
            registry=registry,
        )
        self.snapshot_age = Gauge(
            "isochrone_snapshot_age_seconds",
            "Age of the facts behind the last scores.",
            registry=registry,
        )
        self.tried = Gauge(
            "isochrone_extender_session_pods",
            "Pods that Volcano placed or evicted in its current session, not yet seen as bound.",
            registry=registry,
        )
