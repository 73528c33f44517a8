"""EDGE. Lets held pods go by hand, whether the controller runs or not, and before an uninstall.

It decides which pods are held by us, that each finds its PodGroup, and the patch that opens our gate. It must never
know a plan: released pods go wherever Volcano puts them. Other systems' gates are theirs and stay closed.

1. The webhook goes first (if asked for), so that no pod is held after the last look.
2. The PodGroup comes before the gate opens: a pod whose PodGroup is missing waits without any Event.
3. An existing PodGroup is never changed; a new one asks for one member, so that every pod may start alone.
4. Whoever lets a pod go gives up its bound: it becomes `preferred`, or a running controller would refuse its node.
5. Every step may be repeated: what is done already is found done.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from admission.release.pod_group import API_VERSION
from admission.release.release_patch import release_patch
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError, ApiFailure
from topology.labels import GANG, GATE, GROUP_NAME, PREFERRED, QUEUE_NAME, REACH_MODE
from topology.objects import ListPage, Pod

PODGROUPS: Final = f"/apis/{API_VERSION}/namespaces/{{}}/podgroups"
WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}"
WEBHOOK_CONFIGURATION: Final = "zz-isochrone"

_PAGE: Final = 500
_AT_ONCE: Final = 8
_NAMED: Final = 3
_TRIES: Final = 5  # another system may remove its own gate between our read and our patch
_SWEEPS: Final = 5
_SETTLE_S: Final = 2.0  # API servers notice within about a second that a webhook is gone

Printer = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReleaseSummary:
    """How many pods were let go, and how many of the chosen ones are still held or were not there."""

    released: int
    failed: int
    found: bool = True  # False: a gang was named, and no held pod is of it

    @property
    def well(self) -> bool:
        """Everything that was asked for is done."""
        return self.found and not self.failed

    def __str__(self) -> str:
        return f"released {self.released} pod{'' if self.released == 1 else 's'}, {self.failed} failed"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which held pods are meant; an empty field means any."""

    namespace: str | None = None
    gang: str = ""
    pods: frozenset[str] = frozenset()

    def __contains__(self, pod: Pod) -> bool:
        meta = pod.metadata
        if meta.deletion_timestamp or not pod.has_gate(GATE):
            return False
        if self.gang and self.gang not in (meta.label(GANG), meta.annotation(GROUP_NAME)):
            return False
        return not self.pods or meta.name in self.pods


async def release(
    api: KubeApi,
    *,
    namespace: str | None = None,
    gang: str = "",
    pods: Collection[str] = (),
    remove_webhook: bool = False,
    printer: Printer = lambda _: None,
    settle_s: float = _SETTLE_S,
) -> ReleaseSummary:
    """Opens our gate on the chosen pods (`namespace` None: everywhere) and says one line for each thing done.

    Raises ApiFailure if the webhook cannot be removed or pods cannot be listed; failures of single pods are counted.
    """
    chosen = Chosen(namespace, gang, frozenset(pods))
    if remove_webhook:
        await _remove_webhook(api, printer)
    released, failed, seen = 0, 0, set[str]()
    others: set[str] = set()
    for expire in range(_SWEEPS):
        waiting = await _waiting(api, namespace)
        held = [pod for pod in waiting if pod in chosen]
        others.update(pod.metadata.label(GANG) for pod in waiting if pod.has_gate(GATE))
        seen.update(pod.metadata.name for pod in held)
        outcomes = await _release_all(api, held, printer)
        released += sum(outcomes)
        failed = len(outcomes) - sum(outcomes)
        # After removing the webhook an empty look counts only once the API servers know that it is gone.
        if not remove_webhook or (expire and not held):
            break
        await asyncio.sleep(settle_s)
    for name in sorted(chosen.pods - seen):
        printer(f"{namespace}/{name} is not there or not held by Isochrone")
        failed += 1
    found = not gang or bool(pods or seen)
    if not found:
        printer(_no_such_gang(gang, namespace, others - {"", gang}))
    return ReleaseSummary(released, failed, found)


async def _remove_webhook(api: KubeApi, printer: Printer) -> None:
    there = await api.delete(WEBHOOKS.format(WEBHOOK_CONFIGURATION))
    printer(f"webhook configuration {WEBHOOK_CONFIGURATION} {'removed' if there else 'was gone already'}")


def _no_such_gang(gang: str, namespace: str | None, others: Collection[str]) -> str:
    """With the gangs of a like name that have held pods; else with a few of all."""
    where = f"namespace {namespace}" if namespace else "any namespace"
    close = difflib.get_close_matches(gang, sorted(others), n=_NAMED)
    more = f"; did you mean {' or '.join(close)}?" if close else ""
    if not close and others:
        shown = sorted(others)[:_NAMED]
        more = f"; held there: {', '.join(shown)}{' and more' if len(others) > len(shown) else ''}"
    elif not others and namespace:
        more = "; nothing is held there: name another with -n, or --all"
    return f"no held pod of gang {gang} in {where}{more}"


async def _waiting(api: KubeApi, namespace: str | None) -> list[Pod]:
    """Every pod that has no node yet, page by page; an expired page starts the list again."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"
    fixed = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "limit": str(_PAGE)}
    for attempt in range(_TRIES):
        found: list[Pod] = []
        token = ""
        try:
            while True:
                body = await api.get(path, params={**fixed, "continue": token} if token else fixed)
                page = msgspec.json.decode(body, type=ListPage)
                found += (msgspec.json.decode(item, type=Pod) for item in page.items or ())
                token = page.metadata.continue_
                if not token:
                    return found
        except ApiError as error:
            if not error.gone or attempt == _TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


async def _release_all(api: KubeApi, held: Iterable[Pod], printer: Printer) -> list[bool]:
    """One PodGroup check per group, then the gates of its pods."""
    groups: dict[tuple[str, str], list[Pod]] = {}
    for pod in held:
        groups.setdefault((pod.metadata.namespace, pod.metadata.annotation(GROUP_NAME)), []).append(pod)
    outcomes: list[bool] = []
    limit = asyncio.Semaphore(_AT_ONCE)
    for (namespace, group), members in sorted(groups.items(), key=lambda entry: entry[0]):
        try:
            if group:
                await _ensure_group(api, namespace, group, members[0], printer)
        except ApiFailure as failure:
            for pod in members:
                printer(f"{pod.key} stays held, its PodGroup cannot be made: {failure}")
            outcomes += [False] * len(members)
            continue
        outcomes += await asyncio.gather(*(_release_one(api, pod, limit, printer) for pod in members))
    return outcomes


async def _ensure_group(api: KubeApi, namespace: str, group: str, pod: Pod, printer: Printer) -> None:
    """Makes a plain PodGroup if there is none. Create, not apply: one that the controller makes now must win."""
    collection = PODGROUPS.format(quote(namespace, safe=""))
    try:
        await api.get(f"{collection}/{quote(group, safe='')}")
        return
    except ApiError as error:
        if not error.not_found:
            raise
    spec: dict[str, str | int] = {"minMember": 1}
    if queue := pod.metadata.annotation(QUEUE_NAME):
        spec["queue"] = queue
    if pod.spec.priority_class_name:
        spec["priorityClassName"] = pod.spec.priority_class_name
    wanted = {
        "apiVersion": API_VERSION,
        "kind": "PodGroup",
        "metadata": {"name": group, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "isochrone"}},
        "spec": spec,
    }
    shown = f"{namespace}/{quote(group, safe='')}"
    try:
        await api.create(collection, wanted)
        printer(f"PodGroup {shown} created, minMember 1")
    except ApiError as error:
        if error.not_found:
            printer(f"PodGroup {shown} not created: this cluster has no Volcano PodGroups")
        elif not error.already_exists:
            raise


async def _release_one(api: KubeApi, pod: Pod, limit: asyncio.Semaphore, printer: Printer) -> bool:
    async with limit:
        try:
            how = await _open_gate(api, pod)
        except ApiFailure as failure:
            printer(f"{pod.key} stays held: {failure}")
            return False
    printer(f"{pod.key} {how}")
    return True


async def _open_gate(api: KubeApi, pod: Pod) -> str:
    """Removes our gate and no other; a gate that moved or a pod that was replaced fails the patch and is read again."""
    meta = pod.metadata
    path = f"/api/v1/namespaces/{quote(meta.namespace, safe='')}/pods/{quote(meta.name, safe='')}"
    for attempt in range(_TRIES):
        if not pod.has_gate(GATE):
            return "was released already"
        try:
            await api.patch_json(path, release_patch(pod, None, {REACH_MODE: PREFERRED}))
            left = [gate.name for gate in pod.spec.scheduling_gates or () if gate.name != GATE]
            return "released" if not left else f"released by us, still held by {', '.join(left)}"
        except ApiError as error:
            if error.not_found:
                return "is gone"
            if not (error.invalid or error.conflict) or attempt == _TRIES - 1:
                raise
        try:
            pod = msgspec.json.decode(await api.get(path), type=Pod)
        except ApiError as error:
            if error.not_found:
                return "is gone"
            raise
        if pod.metadata.uid != meta.uid:
            return "was replaced by a new pod"
    raise AssertionError("the last try returns or raises")
