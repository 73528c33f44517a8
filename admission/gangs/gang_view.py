"""From the live pods of a gang to what the planner is asked, and whether it is time to ask.

Decides who is a member (gated by us, nobody else in the way), who is a partner (has a place, or was released into its
isochrone set), what bound and minimum hold. It must never know the API server or the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from admission.gangs.template_revision import Template, TemplateOf, no_template, of_older, to_fill
from admission.recognition.pod_settings import PodSettings, read_settings
from admission.recognition.replica_group import largest, unit_of
from scheduler.model.request import GangRequest, Partner, PodRequest, ReachBound, pod_request_of
from topology.cluster.snapshot import NodeTable
from topology.cluster.state import GangKey
from topology.labels import DECISION, DECODE, GATE, PHASE, PHASES, PREFERRED, PREFILL, REACH_MODE, REQUIRED
from topology.objects import Pod
from topology.selectors import selects_node


@dataclass(frozen=True, slots=True)
class GangView:
    """One gang as it stands: its pods by role in the process, and its settings."""

    key: GangKey
    members: tuple[Pod, ...]  # gated by us alone: to be planned
    blocked: tuple[Pod, ...]  # gated by us and by somebody else too: not yet
    released: tuple[Pod, ...]  # released by us, not bound
    bound: tuple[Pod, ...]
    settings: PodSettings
    explicit_minimum: bool
    problems: tuple[str, ...]
    fill: tuple[Pod, ...] = ()  # members of an older template, without whom the minimum is not reached
    replaced: tuple[Pod, ...] = ()  # gated, of an older template, and not needed

    @property
    def held(self) -> tuple[Pod, ...]:
        """Everyone whom our gate holds."""
        return self.members + self.blocked

    @property
    def started(self) -> bool:
        """Some of the gang's pods were let go already: a PodGroup must stand."""
        return bool(self.released or self.bound)


def view_of(key: GangKey, pods: Sequence[Pod], template_of: TemplateOf = no_template) -> GangView:
    """Sort a gang's live pods (terminating ones left out) and settle what holds for all of them.

    Where pods differ, the stricter wins: the smallest bound, the largest message, the largest minimum. Only pods of
    the newest template have a say, else the old ones would hold up those that replace them. Gated pods that their
    owner replaces by newer ones are members as far as the minimum is not reached without them.
    """
    everybody = sorted((p for p in pods if p.metadata.deletion_timestamp is None), key=lambda p: p.metadata.name)
    older = of_older(everybody, template_of)
    leaving = {uid for uid, template in older.items() if not template.retained}
    held_back, live = list[Pod](), list[Pod]()
    for pod in everybody:
        (held_back if pod.metadata.uid in leaving and pod.has_gate(GATE) else live).append(pod)
    gated, released, bound = _by_progress(live)
    settings, explicit, problems = _settings([p for p in live if p.metadata.uid not in older])
    view = GangView(
        key=key,
        members=tuple([p for p in gated if _gated_once(p)]),
        blocked=tuple([p for p in gated if not _gated_once(p)]),
        released=tuple(released),
        bound=tuple(bound),
        settings=settings,
        explicit_minimum=explicit,
        problems=problems,
    )
    return _filled(view, held_back, older) if held_back else view


def _by_progress(live: Iterable[Pod]) -> tuple[list[Pod], list[Pod], list[Pod]]:
    """Pods behind our gate, pods that a plan released, and bound pods; one released by hand is none of these."""
    gated, released, bound = list[Pod](), list[Pod](), list[Pod]()
    for pod in live:
        if pod.spec.node_name:
            bound.append(pod)
        elif pod.has_gate(GATE):
            gated.append(pod)
        elif _by_plan(pod):
            released.append(pod)
    return gated, released, bound


def _gated_once(held: Pod) -> bool:
    """Whether our gate is the only one of a pod that it holds."""
    return len(held.spec.scheduling_gates or ()) == 1


def _filled(view: GangView, held_back: Sequence[Pod], older: Mapping[str, Template]) -> GangView:
    """With those whom the minimum lacks."""
    here = [p.metadata.label(PHASE) for p in (*view.held, *view.released, *view.bound)]
    lacking = {phase: needed_of(view, phase) - here.count(phase) for phase in PHASES}
    fill = to_fill((p for p in held_back if _gated_once(p)), lacking, older)
    chosen = {p.metadata.uid for p in fill}
    return replace(
        view,
        members=tuple(sorted((*view.members, *fill), key=lambda p: p.metadata.name)),
        fill=tuple(fill),
        replaced=tuple(p for p in held_back if p.metadata.uid not in chosen),
    )


def _by_plan(pod: Pod) -> bool:
    """Released by us, not by hand: whoever opens the gate by hand also makes the bound a wish, and has no set."""
    meta = pod.metadata
    return bool(meta.annotation(DECISION)) and meta.annotation(REACH_MODE) != PREFERRED


def _settings(pods: Sequence[Pod]) -> tuple[PodSettings, bool, tuple[str, ...]]:
    read = {read_settings(p.metadata.annotations, requests=False) for p in pods}  # most often all say the same
    problems = sorted({str(bad) for _, wrong in read for bad in wrong})
    each = [settings for settings, _ in read] or [PodSettings()]
    merged = PodSettings(
        reach_us=min(s.reach_us for s in each),
        reach_size_bytes=max(s.reach_size_bytes for s in each),
        mode="required" if any(s.mode == REQUIRED for s in each) else "preferred",
        pairing="all" if any(s.pairing == "all" for s in each) else "nearest",
        min_prefill=_largest_minimum(s.min_prefill for s in each),
        min_decode=_largest_minimum(s.min_decode for s in each),
    )
    explicit = any(_states_minimum(s) for s in each)
    return merged, explicit, tuple(problems)


def _states_minimum(settings: PodSettings) -> bool:
    return settings.min_prefill is not None or settings.min_decode is not None


def _largest_minimum(stated: Iterable[int | None]) -> int:
    return max((minimum for minimum in stated if minimum is not None), default=1)


def request_of(view: GangView, table: NodeTable) -> GangRequest:
    """The planner's request. A released partner counts on every node that its own affinity allows."""
    partners = [
        Partner(p.metadata.uid, p.metadata.name, p.metadata.label(PHASE), (p.spec.node_name,), spec=p.spec)
        for p in view.bound
    ]
    allowed: dict[bytes, tuple[str, ...]] = {}  # pods of one phase share their set
    for pod in view.released:
        wishes = msgspec.json.encode((pod.spec.node_selector, pod.spec.affinity))
        if wishes not in allowed:
            # Nodes that are down or closed too: they may be back before the pod is bound.
            allowed[wishes] = tuple(n.metadata.name for n in table.nodes if selects_node(pod.spec, n))
        meta = pod.metadata
        partners.append(Partner(meta.uid, meta.name, meta.label(PHASE), allowed[wishes], bound=False))
    settings = view.settings
    return GangRequest(
        namespace=view.key[0],
        name=view.key[1],
        members=tuple(_requests(view.members)),
        partners=tuple(partners),
        bound=ReachBound(settings.reach_us, settings.reach_size_bytes),
        pairing=settings.pairing,
        mode=settings.mode,
        min_prefill=needed_of(view, PREFILL),
        min_decode=needed_of(view, DECODE),
    )


def _requests(pods: Iterable[Pod]) -> Iterator[PodRequest]:
    """What each requests, read once for each equivalence class; the requests of a class share one `spec`."""
    read: dict[tuple[str, tuple[int, int]], PodRequest] = {}
    for pod in pods:
        meta = pod.metadata
        key = meta.label(PHASE), pod.equivalence_class
        if (known := read.get(key)) is None:
            known = read[key] = pod_request_of(pod)
        yield replace(known, uid=meta.uid, namespace=meta.namespace, name=meta.name, unit=unit_of(pod))


def needed_of(view: GangView, phase: str) -> int:
    """The minimum of this phase, in pods."""
    settings = view.settings
    return ((settings.min_prefill if phase == PREFILL else settings.min_decode) or 1) * unit_size(view, phase)


def unit_size(view: GangView, phase: str) -> int:
    """Pods that make up one member of this phase; the minimum counts members."""
    return largest(p for p in (*view.held, *view.released, *view.bound) if p.metadata.label(PHASE) == phase)


def newest_of(view: GangView) -> dict[str, PodRequest]:
    """Phase to what a held pod of the newest template asks; phases without one are left out."""
    fill = {p.metadata.uid for p in view.fill}
    return {p.metadata.label(PHASE): pod_request_of(p) for p in view.members if p.metadata.uid not in fill}


def lost_partners(view: GangView, table: NodeTable) -> tuple[Pod, ...]:
    """Bound pods whose node is not known, and released ones none of whose nodes is.

    Nobody can say how far a joiner is from them, and their nodes may come back: no one joins until they are gone.
    """
    lost = [p for p in view.bound if p.spec.node_name not in table.index]
    lost += [p for p in view.released if not any(selects_node(p.spec, n) for n in table.nodes)]
    return tuple(lost)


def complete(view: GangView, replicas: Mapping[str, int]) -> bool:
    """Whether everybody who is to come is here, so that nothing is gained by waiting for a quiet moment.

    `replicas` is owner uid to wanted pods. True when every owner has as many live pods as it wants; and for pods
    without a known owner, when a minimum was stated and is there. Never while pods of an older template fill: their
    Deployment may be about to replace them.
    """
    if view.fill:
        return False
    pods = view.held + view.released + view.bound
    per_owner: dict[str, int] = {}
    ownerless: list[Pod] = []
    for pod in pods:
        owner = pod.metadata.controller
        if owner is None or owner.uid not in replicas:
            ownerless.append(pod)
        else:
            per_owner[owner.uid] = per_owner.get(owner.uid, 0) + 1
    if any(per_owner[uid] < replicas[uid] for uid in per_owner):
        return False
    if not ownerless:
        return True
    prefill = sum(1 for p in pods if p.metadata.label(PHASE) == PREFILL)
    settings = view.settings
    return (
        view.explicit_minimum
        and prefill >= (settings.min_prefill or 1)
        and len(pods) - prefill >= (settings.min_decode or 1)
    )
