"""API objects in memory with the API server's rules for versions, patches and watches, as far as Isochrone meets them.

Decides what a write does to an object and which changes came after a version. It must never know HTTP or time (the
caller says what time it is).

1. Every write makes a new object with the next resourceVersion and one entry in the log; a write that changes nothing
   makes neither. What was handed out is never changed afterwards.
2. The log is bounded. Who asks for what came after a version that is forgotten gets 410 and lists again.
3. Whatever is refused changes nothing and says why with the API server's own status and reason.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonpatch

from admission.demo import pod_changes
from admission.demo.cluster_kinds import KINDS, Kind, Object, Refused, Selection

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes the end of a generateName from
_SUFFIX_CHARS: Final = 5
_GATED: Final = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One change: no `old` is a creation, no `new` a deletion."""

    version: int
    kind: Kind
    old: Object | None
    new: Object | None

    def seen_by(self, selection: Selection) -> tuple[str, Object] | None:
        """The watch event for somebody who selects: an object that stops matching is deleted for them."""
        before = self.old is not None and self.old in selection
        after = self.new is not None and self.new in selection
        if after and self.new is not None:
            return ("MODIFIED" if before else "ADDED"), self.new
        if before and self.old is not None:
            meta = {**self.old["metadata"], "resourceVersion": str(self.version)}
            return "DELETED", {**(self.new or self.old), "metadata": meta}
        return None


class ObjectStore:
    """All objects of one cluster. `on_change` is called after every write."""

    def __init__(self, now: Callable[[], str], on_change: Callable[[], None], remembered: int = 10_000) -> None:
        self._now, self._on_change, self._remembered = now, on_change, remembered
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {kind: {} for kind in KINDS}
        self._log: dict[int, LogEntry] = {}
        self._made: Counter[str] = Counter()
        self.version = 1
        self.oldest = 1  # the earliest version from which a watch can go on

    # --- reading -------------------------------------------------------------------------------

    def list(self, kind: Kind, selection: Selection) -> list[Object]:
        """In the order of creation. Not to be written to."""
        return [obj for obj in self._objects[kind].values() if obj in selection]

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Raises Refused (404). Not to be written to."""
        try:
            return self._objects[kind][namespace, name]
        except KeyError:
            raise Refused(404, "NotFound", f'{kind.plural} "{name}" not found') from None

    def after(self, version: int) -> Iterator[LogEntry]:
        """What came after a version. Raises Refused (410) if that is no longer known."""
        if version < self.oldest:
            raise Refused(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        return (self._log[at] for at in range(version + 1, self.version + 1))

    # --- writing -------------------------------------------------------------------------------

    def create(self, kind: Kind, namespace: str, given: Object, *, keep_status: bool = False) -> Object:
        """Raises Refused: 400 for a wrong namespace, 409 for a name that is taken, 422 without a name."""
        obj = copy.deepcopy(given)
        meta = obj.setdefault("metadata", {})
        if kind.namespaced and meta.setdefault("namespace", namespace) != namespace:
            raise Refused(400, "BadRequest", "the namespace of the provided object does not match the request")
        wanted = meta.get("name") or meta.get("generateName")
        if not wanted:
            raise Refused(422, "Invalid", "metadata.name: Required value: name or generateName is required")
        # Counted per name, so that names and UIDs do not depend on what is created beside it.
        seed = f"{kind.plural}/{meta.get('namespace', '')}/{wanted}"
        self._made[seed] += 1
        seed += f"/{self._made[seed]}"
        meta.setdefault("name", f"{wanted}{_suffix(seed)}")
        if (meta.get("namespace", ""), meta["name"]) in self._objects[kind]:
            raise Refused(409, "AlreadyExists", f'{kind.plural} "{meta["name"]}" already exists')
        meta |= {"uid": _uid(seed), "creationTimestamp": self._now(), "generation": 1}
        meta.pop("resourceVersion", None)
        obj |= {"apiVersion": kind.api_version, "kind": kind.name}
        if kind.status and not keep_status:
            obj.pop("status", None)
        if kind.name == "Pod":
            _default_pod(obj)
        return self._write(kind, None, obj)

    def replace(self, kind: Kind, namespace: str, name: str, given: Object, sub: str = "") -> Object:
        """PUT. Raises Refused: 404, 409 if the resourceVersion in it is not the object's own, 422."""
        return self.change(kind, namespace, name, lambda _: copy.deepcopy(given), sub)

    def patch_json(self, kind: Kind, namespace: str, name: str, patch: bytes, sub: str = "") -> Object:
        """RFC 6902. Raises Refused: 404, 409, 422 if an operation (a `test` too) cannot be done or is not allowed."""

        def change(old: Object) -> Object:
            try:
                changed: Object = jsonpatch.apply_patch(old, patch)
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                raise Refused(422, "Invalid", f"the server rejected our request: {error}") from None
            return changed

        return self.change(kind, namespace, name, change, sub)

    def patch_merge(self, kind: Kind, namespace: str, name: str, patch: Object, sub: str = "") -> Object:
        """RFC 7386. Raises Refused: 404, 409, 422."""
        return self.change(kind, namespace, name, lambda old: merged(old, patch), sub)

    def apply(self, kind: Kind, namespace: str, name: str, given: Object) -> Object:
        """Server-side apply of one owner: creates, or merges maps and replaces lists. Owners are not kept track of."""
        wanted = copy.deepcopy(given)
        wanted.setdefault("metadata", {})["name"] = name
        if (namespace, name) not in self._objects[kind]:
            if wanted["metadata"].pop("uid", ""):
                raise Refused(409, "Conflict", "uid mismatch: the object has a uid, and there is no existing object")
            return self.create(kind, namespace, wanted)
        return self.change(kind, namespace, name, lambda old: merged(old, wanted))

    def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        how: Callable[[Object], Object],
        sub: str = "",
        *,
        free: bool = False,
    ) -> Object:
        """The one way in which an object changes; `free` leaves out the rules for pods (a binding is no update)."""
        old = self.get(kind, namespace, name)
        new = how(copy.deepcopy(old))
        meta_old, meta_new = old["metadata"], new.setdefault("metadata", {})
        for field in ("uid", "resourceVersion"):
            if meta_new.setdefault(field, meta_old[field]) != meta_old[field]:
                message = f"the object's {field} is {meta_old[field]}, the request says {meta_new[field]}"
                raise Refused(409, "Conflict", f'operation cannot be fulfilled on {kind.plural} "{name}": {message}')
        for field in ("name", "namespace", "creationTimestamp", "generation"):
            if field in meta_old:
                meta_new[field] = meta_old[field]
        new |= {"apiVersion": kind.api_version, "kind": kind.name}
        if sub == "status":
            _keep(new, old, "spec")
        elif kind.status and not free:
            _keep(new, old, "status")
        if kind.name == "Pod" and not free and (why := pod_changes.why_refused(old, new)):
            raise Refused(422, "Invalid", f'Pod "{name}" is invalid: {why}')
        if kind.name == "Pod" and not new["spec"].get("schedulingGates"):
            new["spec"].pop("schedulingGates", None)
        return old if new == old else self._write(kind, old, new)

    def bind(self, namespace: str, name: str, node: str, uid: str = "") -> Object:
        """Puts a pod on a node. Raises Refused: 404, 409 for one that is gated, bound, leaving or another."""
        pods = next(kind for kind in KINDS if kind.name == "Pod")
        pod = self.get(pods, namespace, name)
        why = pod_changes.why_not_bound(pod)
        if not why and uid and uid != pod["metadata"]["uid"]:
            why = f"the UID in the precondition ({uid}) does not match the UID in record"
        if why:
            raise Refused(409, "Conflict", f'operation cannot be fulfilled on pods/binding "{name}": {why}')

        def place(old: Object) -> Object:
            others = [one for one in old["status"].get("conditions", ()) if one["type"] != "PodScheduled"]
            old["spec"]["nodeName"] = node
            old["status"]["conditions"] = [*others, {"type": "PodScheduled", "status": "True"}]
            return old

        return self.change(pods, namespace, name, place, free=True)

    def delete(self, kind: Kind, namespace: str, name: str, preconditions: Mapping[str, str] | None = None) -> Object:
        """Gone at once, without grace. Raises Refused: 404, 409 for another UID or resource version."""
        old = self.get(kind, namespace, name)
        for key, wanted in (preconditions or {}).items():
            if wanted and wanted != old["metadata"].get(key):
                message = f"the {key} in the precondition ({wanted}) does not match the {key} in record"
                raise Refused(409, "Conflict", f'operation cannot be fulfilled on {kind.plural} "{name}": {message}')
        del self._objects[kind][namespace, name]
        self._log_change(kind, old, None)
        return old

    def forget_history(self) -> None:
        """Compaction: from now on only the present version can be watched from."""
        self._log.clear()
        self.oldest = self.version

    # --- inside --------------------------------------------------------------------------------

    def _write(self, kind: Kind, old: Object | None, new: Object) -> Object:
        meta = new["metadata"]
        meta["resourceVersion"] = str(self.version + 1)
        self._objects[kind][meta.get("namespace", ""), meta["name"]] = new
        self._log_change(kind, old, new)
        return new

    def _log_change(self, kind: Kind, old: Object | None, new: Object | None) -> None:
        self.version += 1
        self._log[self.version] = LogEntry(self.version, kind, old, new)
        if len(self._log) > self._remembered:
            self.oldest += 1
            del self._log[self.oldest]
        self._on_change()


def merged(old: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386) applied; None deletes a key."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _keep(new: Object, old: Object, part: str) -> None:
    if part in old:
        new[part] = old[part]
    else:
        new.pop(part, None)


def _default_pod(pod: Object) -> None:
    pod.setdefault("spec", {}).setdefault("schedulerName", "default-scheduler")
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    if pod["spec"].get("schedulingGates"):
        status.setdefault("conditions", [dict(_GATED)])


def _suffix(seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).digest()
    return "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in digest[:_SUFFIX_CHARS])


def _uid(seed: str) -> str:
    """Not random: the same cluster file gives the same UIDs, so that a run can be compared with another."""
    digits = hashlib.sha256(seed.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"
