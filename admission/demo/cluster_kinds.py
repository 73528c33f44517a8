"""What a request to the API server is about: which kind, namespace and name its path means, which objects it selects.

Decides how paths and selectors are read, for the kinds that Isochrone uses. It must never hold an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from topology.objects import Requirement
from topology.selectors import matches_requirements

Object = dict[str, Any]


class Refused(Exception):  # noqa: N818  # an answer, not an error of ours
    """A request that is answered with a Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object. `status`: it has a status subresource, so a plain patch leaves the status alone."""

    root: str
    plural: str
    name: str
    namespaced: bool = True
    status: bool = False

    @property
    def api_version(self) -> str:
        """As objects write it: `v1`, `apps/v1`."""
        return self.root.removeprefix("/apis/").removeprefix("/api/")


_CORE, _APPS, _VOLCANO = "/api/v1", "/apis/apps/v1", "/apis/scheduling.volcano.sh/v1beta1"
KINDS: Final = (
    Kind(_CORE, "namespaces", "Namespace", namespaced=False),
    Kind(_CORE, "nodes", "Node", namespaced=False, status=True),
    Kind(_CORE, "pods", "Pod", status=True),
    Kind(_CORE, "events", "Event"),
    Kind(_CORE, "secrets", "Secret"),
    Kind(_APPS, "deployments", "Deployment", status=True),
    Kind(_APPS, "replicasets", "ReplicaSet", status=True),
    Kind(_APPS, "statefulsets", "StatefulSet", status=True),
    Kind(_VOLCANO, "podgroups", "PodGroup"),  # a CRD without a status subresource
    Kind(_VOLCANO, "queues", "Queue", namespaced=False, status=True),
    Kind("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", status=True),
    Kind("/apis/topology.volcano.sh/v1alpha1", "hypernodes", "HyperNode", namespaced=False, status=True),
    Kind("/apis/coordination.k8s.io/v1", "leases", "Lease"),
    Kind(
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    ),
)
_BY_PLACE: Final = {(kind.root, kind.plural): kind for kind in KINDS}
_BY_PLURAL: Final = {kind.plural: kind for kind in KINDS}

_PATH = re.compile(
    r"(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?"
)
_TERM = re.compile(r"(?:[^,()]|\([^()]*\))+")
_SET = re.compile(r"([^\s!=(),]+)\s+(in|notin)\s+\(([^()]*)\)")
_EQUAL = re.compile(r"([^\s!=(),]+)\s*(==|=|!=)\s*([^\s!=(),]*)")
_THERE = re.compile(r"(!?)\s*([^\s!=(),]+)")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names; an empty name means the collection, an empty namespace all of them."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    sub: str = ""


def kind_named(plural: str) -> Kind:
    """The kind of this plural. Raises KeyError for one that is not known."""
    return _BY_PLURAL[plural]


def target_of(path: str) -> Target:
    """Reads a path. Raises Refused (404) for whatever is not served here, as for a CRD that is not installed."""
    match = _PATH.fullmatch(path)
    kind = _BY_PLACE.get((match["root"], match["plural"])) if match else None
    if match is None or kind is None or (match["namespace"] and not kind.namespaced):
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    target = Target(kind, match["namespace"] or "", match["name"] or "", match["sub"] or "")
    if target.name and kind.namespaced and not target.namespace:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    return target


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind a list or a watch is about."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[tuple[str, bool, str], ...] = ()  # path, equal or not, value

    def __contains__(self, obj: Object) -> bool:
        meta = obj["metadata"]
        if self.namespace and meta.get("namespace", "") != self.namespace:
            return False
        if not matches_requirements(meta.get("labels") or {}, self.labels):
            return False
        return all((_field(obj, path) == value) is equal for path, equal, value in self.fields)


def selection_of(namespace: str, query: Mapping[str, str]) -> Selection:
    """Reads `labelSelector` and `fieldSelector`. Raises Refused (400) for one that cannot be read."""
    labels = tuple(_requirement(term) for term in _terms(query.get("labelSelector", "")))
    fields = []
    for term in _terms(query.get("fieldSelector", "")):
        match = _EQUAL.fullmatch(term)
        if match is None:
            raise Refused(400, "BadRequest", f"unable to parse field selector term {term!r}")
        fields.append((match[1], match[2] != "!=", match[3]))
    return Selection(namespace, labels, tuple(fields))


def _terms(text: str) -> list[str]:
    return [term.strip() for term in _TERM.findall(text) if term.strip()]


def _requirement(term: str) -> Requirement:
    if match := _SET.fullmatch(term):
        values = tuple(value.strip() for value in match[3].split(","))
        return Requirement(match[1], "In" if match[2] == "in" else "NotIn", values)
    if match := _EQUAL.fullmatch(term):
        return Requirement(match[1], "NotIn" if match[2] == "!=" else "In", (match[3],))
    if match := _THERE.fullmatch(term):
        return Requirement(match[2], "DoesNotExist" if match[1] else "Exists")
    raise Refused(400, "BadRequest", f"unable to parse label selector term {term!r}")


def _field(obj: Object, path: str) -> str:
    place: Any = obj
    for part in path.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    return "" if place is None else str(place)
