"""Why a gang waits for something other than room: one sentence each, with what to do about it. Pure.

What a plan says is scheduler.explain.events's to word; here is what stands before a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from admission.fairness.queue_quota import QueueShort
from scheduler.model.reason import Reason
from topology.cluster.state import GangKey
from topology.labels import GROUP_NAME, REACH_MODE
from topology.objects import Pod
from topology.resources import CPU, GPU, MEMORY
from topology.units import show_age, show_bytes


@dataclass(frozen=True, slots=True)
class WaitMessage:
    """What is said to each pod. The same `key` means the same news."""

    reason: Reason
    text: str
    key: str


def for_group(group: str) -> WaitMessage:
    """The pods name a PodGroup of somebody else that does not exist yet."""
    return WaitMessage(
        Reason.WAITING_FOR_GANG,
        f"The PodGroup {group} that this pod names does not exist; it stays gated until somebody creates it, "
        f"or remove the annotation {GROUP_NAME} from the pod template",
        f"group/{group}",
    )


def for_lost(lost: Sequence[Pod]) -> WaitMessage:
    """Partners are on nodes that are not known, so nobody can join within reach of them."""
    first = lost[0]
    where = f"on node {first.spec.node_name}, which is" if first.spec.node_name else "bound to nodes that are"
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return WaitMessage(
        Reason.WAITING_FOR_PARTNER,
        f"Partner {first.metadata.name}{more} is {where} not known any more: nobody can say what is near it. "
        f"Joiners wait until the node is back or the pod is gone; delete the pod if it does not go by itself",
        f"lost/{first.metadata.uid}",
    )


def for_queue(short: QueueShort) -> WaitMessage:
    """The gang's Volcano queue cannot hold it now."""
    key = f"queue/{short.queue}/{short.resource}/{short.why}"
    if short.why:
        text = f"Queue {short.queue} {short.why}; the gang stays gated until it is there and open, or name another one"
        return WaitMessage(Reason.WAITING_FOR_QUEUE, text, key)
    need, left, of = (_amount(short.resource, n) for n in (short.need, short.left, short.of))
    text = (
        f"Queue {short.queue} has {left} of {of} {_unit(short.resource)} left and {need} are needed; "
        f"raise its capability, or wait for others of the queue to go"
    )
    return WaitMessage(Reason.WAITING_FOR_QUEUE, text, key)


def behind(older: GangKey, passed: int, for_quota: bool) -> WaitMessage:
    """An older gang was passed often enough."""
    what = "its queue" if for_quota else "room"
    return WaitMessage(
        Reason.WAITING_FOR_QUEUE,
        f"Waits behind the older gang {older[0]}/{older[1]}, which waits for {what} and was passed {passed} times: "
        f"it goes first; give this gang a higher priority class if it must not wait",
        f"behind/{older[0]}/{older[1]}",
    )


def for_not_held(pods: Sequence[Pod], phase: str) -> WaitMessage:
    """Pods of the missing phase exist and are not held: they are partners once they are on a node."""
    first = pods[0].metadata.name
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return WaitMessage(
        Reason.WAITING_FOR_PARTNER,
        f"Its {phase} {first}{more} is on no node yet and not held (let go by hand, or {REACH_MODE}: preferred): "
        f"this pod is planned within reach of it once it is. If it finds no node, see its Events",
        f"not-held/{phase}",
    )


def for_unit(unit: str, missing: int) -> WaitMessage:
    """The pod is one of several that make up one member, and some of them do not exist."""
    return WaitMessage(
        Reason.WAITING_FOR_GANG,
        f"{missing} pods of its group {unit} are missing; a group goes as a whole, once its owner has made all of it",
        f"unit/{unit}",
    )


def for_partners_unit(short: Mapping[str, int], reason: Reason) -> WaitMessage:
    """Pods enough are there, but some make up groups that are not all there, which count for nothing until they are."""
    unit, missing = next(iter(short.items()))
    more = f" and {len(short) - 1} more groups" if len(short) > 1 else ""
    return WaitMessage(
        reason,
        f"{missing} pods of the group {unit}{more} of its gang are missing, and without it the gang is below its "
        f"minimum; a group goes as a whole, once its owner has made all of it",
        f"partners/{unit}",
    )


def for_preemption(priority: int) -> WaitMessage:
    """Let go without nomination, so that Volcano may make room inside the sets."""
    return WaitMessage(
        Reason.INSUFFICIENT_GPU,
        f"No room as it is, but enough if pods of a priority below {priority} leave: released inside its isochrone "
        f"sets without nomination, for Volcano's preempt action to make room there",
        f"preemption/{priority}",
    )


def nomination_withdrawn(pod: Pod) -> WaitMessage:
    """The node that was planned for a released pod cannot take it."""
    node = pod.status.nominated_node_name
    return WaitMessage(
        Reason.REPLANNED,
        f"Node {node}, planned for it, is gone, closed or full: its nomination is taken back, and Volcano looks for "
        f"another place inside its isochrone set",
        f"withdrawn/{node}",
    )


def renewed(pod: Pod, waited_s: float) -> WaitMessage:
    """A released pod that was not placed in time is deleted, for its owner to make another."""
    owner = pod.metadata.controller
    maker = f"{owner.kind} {owner.name}" if owner is not None else "its owner"
    return WaitMessage(
        Reason.REPLANNED,
        f"Not placed within {show_age(waited_s)} of its release: deleted for {maker} to make another, which is "
        f"planned anew",
        "renewed",
    )


def still_unplaced(pod: Pod, waited_s: float) -> WaitMessage:
    """A released pod that was not placed in time and that nobody would make again."""
    owner = pod.metadata.controller
    maker = f"{owner.kind} {owner.name}" if owner is not None else "nobody"
    return WaitMessage(
        Reason.REPLANNED,
        f"Not placed within {show_age(waited_s)} of its release. It belongs to {maker}, so it is not deleted; it waits "
        f"inside its isochrone set for room. Recreate it to have it planned anew",
        "unplaced",
    )


def _amount(resource: str, amount: int) -> str:
    if resource == CPU:
        return f"{amount / 1000:g}"
    return show_bytes(amount) if resource == MEMORY else str(amount)


def _unit(resource: str) -> str:
    return {GPU: "GPUs", CPU: "CPU", MEMORY: "of memory"}.get(resource, resource)


def replaced_first(fill: Sequence[Pod], running: Iterable[Pod], reason: Reason) -> WaitMessage:
    """Older pods make up the minimum and find no room, which newer ones in their place would find."""
    ran = {o.uid for p in running if (o := p.metadata.controller) is not None}
    owners = {o.uid: o.name for p in fill if (o := p.metadata.controller) is not None}
    never = sorted(name for uid, name in owners.items() if uid not in ran)
    advice = "raise the maxUnavailable of the Deployment's strategy"
    if len(never) == len(owners):
        advice = (
            f"delete ReplicaSet {', '.join(never)}, none of whose pods runs, or set the maxUnavailable of the "
            f"Deployment's strategy to 100%"
        )
    pods = "1 held pod" if len(fill) == 1 else f"{len(fill)} held pods"
    text = (
        f"A rollout is under way: the minimum needs {pods} of an older template ({fill[0].metadata.name}), for which "
        f"there is no room; with pods of the new template instead there is. The Deployment does not remove old ones "
        f"before the new ones run: {advice}"
    )
    return WaitMessage(reason, text, f"rollout/{','.join(sorted(owners))}/{len(fill)}")


def left_to_its_owner() -> WaitMessage:
    """A held pod of an older template without which the gang has its minimum."""
    return WaitMessage(
        Reason.WAITING_FOR_GANG,
        "Its pod template was replaced, and the gang does not need it for its minimum: it stays gated until its "
        "Deployment removes it",
        "replaced",
    )
