"""What is true on a running cluster, judged without the product: who is bound, how far pairs are, who wrote what.

The reach of two nodes is computed here from node labels and four hand-written numbers (docs: one-way, p99, a 64 KiB
page, NVSwitch machines over TCP, as `stack.nodes.grid` makes them). The product's own model is never asked.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from e2e.stack.access import Access
from e2e.stack.nodes import HOSTNAME, LEAF, ZONE
from e2e.stack.processes import LIMIT_S
from e2e.workloads import DECODE, GANG, GATE, PHASE, PHASES, PREFILL, REACH

SAME_NODE_US = 8.2
SAME_LEAF_US = 79.3
SAME_ZONE_US = 119.3
OTHER_ZONE_US = 2000.0
DEFAULT_BOUND_US = 1000.0
UNITS_US = {"us": 1.0, "ms": 1000.0}

SYSTEM_USERS = "system:serviceaccount:isochrone-system:"
POLL_S = 0.05

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One live pod, as far as these tests care."""

    name: str
    uid: str
    phase: str
    gang: str
    node: str
    nominated: str
    gates: tuple[str, ...]
    bound_us: float

    @property
    def held(self) -> bool:
        """Our gate keeps it."""
        return GATE in self.gates and not self.node


def seen(pod: Mapping[str, Any]) -> PodSeen:
    """The parts of a pod object that are looked at."""
    meta, spec = pod["metadata"], pod["spec"]
    labels = meta.get("labels", {})
    value = meta.get("annotations", {}).get(REACH)
    return PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        phase=labels.get(PHASE, ""),
        gang=labels.get(GANG, ""),
        node=spec.get("nodeName", ""),
        nominated=pod.get("status", {}).get("nominatedNodeName", ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates", [])),
        bound_us=duration_us(value) if value else DEFAULT_BOUND_US,
    )


def duration_us(text: str) -> float:
    """`15us` and `1ms` as microseconds."""
    found = re.fullmatch(r"(\d+)(us|ms)", text)
    assert found is not None, text
    return int(found[1]) * UNITS_US[found[2]]


def live_pods(cluster: Access, namespace: str, selector: str = "") -> list[PodSeen]:
    """Pods of a namespace that are not on their way out."""
    return [seen(pod) for pod in cluster.pods(namespace, selector) if "deletionTimestamp" not in pod["metadata"]]


def bound_pods(cluster: Access, namespace: str, selector: str = "") -> list[PodSeen]:
    """Live pods that have a node."""
    return [pod for pod in live_pods(cluster, namespace, selector) if pod.node]


# --- reach -----------------------------------------------------------------------------------------------------


def reach_us(a: Labels, b: Labels) -> float:
    """One-way time for a page between two of the grid's nodes, by their labels."""
    if a[HOSTNAME] == b[HOSTNAME]:
        return SAME_NODE_US
    if a[ZONE] != b[ZONE]:
        return OTHER_ZONE_US
    return SAME_LEAF_US if a[LEAF] == b[LEAF] else SAME_ZONE_US


def node_labels(cluster: Access) -> dict[str, Labels]:
    """Labels of every node by its name."""
    return {
        node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.api("GET", "/api/v1/nodes")["items"]
    }


@dataclass(frozen=True, slots=True)
class PairSeen:
    """One prefill-decode pair that is bound: the stricter of its two bounds counts."""

    prefill: PodSeen
    decode: PodSeen
    us: float

    @property
    def bound_us(self) -> float:
        """What both pods asked for."""
        return min(self.prefill.bound_us, self.decode.bound_us)

    @property
    def beyond(self) -> bool:
        """Whether the promise is broken."""
        return self.us > self.bound_us


def pairs(pods: list[PodSeen], labels: Mapping[str, Labels]) -> list[PairSeen]:
    """Every bound prefill-decode pair of every gang among these pods."""
    bound = [pod for pod in pods if pod.node]
    return [
        PairSeen(one, other, reach_us(labels[one.node], labels[other.node]))
        for one in bound
        for other in bound
        if one.gang == other.gang and one.phase == PREFILL and other.phase == DECODE
    ]


def beyond_bound(cluster: Access, namespace: str) -> list[PairSeen]:
    """Pairs of a namespace that break their bound."""
    return [pair for pair in pairs(live_pods(cluster, namespace), node_labels(cluster)) if pair.beyond]


def all_within(cluster: Access, namespace: str, at_least: int = 1) -> float:
    """Asserts that no pair breaks its bound, and that there are pairs at all; the worst reach in microseconds."""
    found = pairs(live_pods(cluster, namespace), node_labels(cluster))
    assert len(found) >= at_least, f"{len(found)} bound pairs in {namespace}, expected {at_least}"
    assert not [pair for pair in found if pair.beyond]
    return max(pair.us for pair in found)


def below_minimum(pods: list[PodSeen], gang: str, minimum: Mapping[str, int]) -> bool:
    """Whether a gang runs with fewer pods of a phase than it asked for."""
    running = {
        phase: sum(1 for pod in pods if pod.gang == gang and pod.phase == phase and pod.node) for phase in PHASES
    }
    return any(running.values()) and any(running[phase] < minimum[phase] for phase in PHASES)


# --- time ------------------------------------------------------------------------------------------------------


def seconds_until(cluster: Access, predicate: Callable[[], Any], limit_s: float, what: str) -> float:
    """Waits with an even, short step, so that the figure can be trusted; how long it took."""
    began = time.monotonic()
    while not predicate():
        cluster.check()
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - began


def bound_after(cluster: Access, namespace: str, count: int, limit_s: float = LIMIT_S, selector: str = "") -> float:
    """Waits until exactly this many pods are bound; how long it took."""

    def enough() -> bool:
        return len(bound_pods(cluster, namespace, selector)) >= count

    took = seconds_until(cluster, enough, limit_s, f"{count} pods of {namespace} {selector} bound")
    assert len(bound_pods(cluster, namespace, selector)) == count
    return took


def stays(cluster: Access, predicate: Callable[[], Any], seconds: float, what: str) -> None:
    """Asserts that something holds for a while, looking all the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert predicate(), f"{what}: no longer so"
        cluster.check()
        time.sleep(POLL_S)


# --- what was said, and who wrote ------------------------------------------------------------------------------


def events(cluster: Access, namespace: str, name: str, reason: str = "") -> list[dict[str, Any]]:
    """Events about one object, those of a reason alone if one is given."""
    query = f"?fieldSelector=involvedObject.name={name}" + (f",reason={reason}" if reason else "")
    found: list[dict[str, Any]] = cluster.api("GET", f"/api/v1/namespaces/{namespace}/events{query}")["items"]
    return found


def wait_event(cluster: Access, namespace: str, name: str, reason: str) -> dict[str, Any]:
    """Waits for the one Event with this reason that Isochrone's controller wrote about an object."""
    seconds_until(cluster, lambda: events(cluster, namespace, name, reason), LIMIT_S, f"{reason} Event of {name}")
    (event,) = events(cluster, namespace, name, reason)
    assert event["source"]["component"] == "isochrone-controller"
    return event


def counted(metrics: str, name: str, **labels: str) -> float:
    """The sum of a metric's series that carry these labels; 0 where there is none yet."""
    total = 0.0
    for found in re.finditer(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", metrics, re.MULTILINE):
        carried = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
        if labels.items() <= carried.items():
            total += float(found[2])
    return total


def writes(audit: list[dict[str, Any]], namespace: str) -> list[tuple[str, str, str]]:
    """Who wrote in a namespace: user, verb, resource with its subresource."""
    found = []
    for event in audit:
        about = event.get("objectRef", {})
        if about.get("namespace") == namespace or (
            about.get("resource") == "namespaces" and about.get("name") == namespace
        ):
            resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
            found.append((event["user"]["username"], event["verb"], resource))
    return found


def our_writes(audit: list[dict[str, Any]], namespace: str) -> list[tuple[str, str, str]]:
    """What Isochrone's service accounts wrote in a namespace."""
    return [each for each in writes(audit, namespace) if each[0].startswith(SYSTEM_USERS)]
