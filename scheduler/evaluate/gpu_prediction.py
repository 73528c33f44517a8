"""Which GPUs of the chosen node a pod will get: a prediction wherever somebody else hands them out.

The node is ours to choose; the cards are NVIDIA's plugin's, or the sharing plugin's. So this says what their own rule
would take from what is free now (by the kubelet's word, where an agent brings it), how well those cards are joined, and
whether better ones were there. It looks at one node, never at the whole table, since every explained decision asks it.
"""

from __future__ import annotations

from scheduler.model.gpu_pick import GpuPick
from scheduler.model.request import PodRequest
from topology.cluster.snapshot import Snapshot
from topology.gpus.allocations import held_row
from topology.gpus.capacity import NodeGpus
from topology.gpus.forms import WHOLE
from topology.gpus.gpu_request import GpuRequest, whole_gpus
from topology.gpus.gpu_row import EVERYTHING, GpuRow, choose, empty_row, put
from topology.gpus.roots import whole_in_use
from topology.gpus.sets import GpuSet, best_set, evaluate_set, plugin_set


def gpu_pick(snapshot: Snapshot, request: PodRequest, node: int, partner: int | None = None) -> GpuPick | None:
    """The cards a pod will have on a node, the pod itself not counted there yet; None where nothing better than "some"
    can be said: no GPU asked, MIG instances, or plain GPUs of which nobody knows how they are joined. `partner` is the
    node of its farthest partner."""
    gpu = request.gpu
    if gpu is None or gpu.profiles:
        return None
    devices = snapshot.table.gpus.devices[node]
    if gpu.plain and devices.links is None:
        return None
    row = _row(snapshot, devices, node)
    if gpu.whole and devices.links is not None:
        rails = partner_rails(snapshot, partner) if partner is not None and partner != node else None
        return _whole(devices, row, gpu, rails)
    chosen = choose(devices, row, gpu, request.phase, EVERYTHING)
    return GpuPick(tuple(sorted(set(chosen))), gpu.predicted) if chosen else None


def partner_rails(snapshot: Snapshot, node: int) -> frozenset[int]:
    """Rails of the cards in use on the partner's node, its own among them: numbers of live network cards there, as the
    agent sees them. Empty where no agent does."""
    devices = snapshot.table.gpus.devices[node]
    if devices.links is None or not devices.links.rails_known:
        return frozenset()
    users = _row(snapshot, devices, node).users
    rails = zip(devices.links.rails, users, devices.healthy, strict=True)
    return frozenset(rail for rail, there, healthy in rails if rail is not None and there and healthy)


def _row(snapshot: Snapshot, devices: NodeGpus, node: int) -> GpuRow:
    column = snapshot.gpu_column
    units = int(snapshot.used[node, column]) if column is not None else 0
    name = snapshot.table.names[node]
    held, in_use = snapshot.holds.get(name), snapshot.in_use.get(name)
    if held is None and in_use is not None and devices.kind == WHOLE.name and devices.replicas <= 1:
        row = empty_row(devices)
        for device, taken in enumerate(whole_in_use(devices, units, in_use)):
            row = put(devices, row, device, whole_gpus(1), "") if taken else row
        return row
    return held_row(devices, held.holds if held is not None else {}, units)


def _whole(devices: NodeGpus, row: GpuRow, gpu: GpuRequest, rails: frozenset[int] | None) -> GpuPick | None:
    """`rails` are the partner's; None where it is on the same node, so that no network card matters."""
    links = devices.links
    free = [users == 0 for users in row.users]
    taken = plugin_set(links, free, gpu.count) if links is not None else None
    if links is None or taken is None:
        return None
    theirs = rails or frozenset[int]()
    got, best = evaluate_set(links, taken, free, (), theirs), best_set(links, free, gpu.count, (), theirs)
    network = _network(got, theirs) if links.rails_known and rails is not None else ""
    if gpu.count == 1:
        return GpuPick(taken, gpu.predicted, network=network)
    return GpuPick(taken, gpu.predicted, got.worst, _better(got, best), network)


def _network(got: GpuSet, rails: frozenset[int]) -> str:
    count = len(got.gpus)
    if rails:
        return f"{count - got.off_rail} of {count} on the partner's rails"
    return f"{count - got.without_nic} of {count} beside a network card" if got.without_nic else ""


def _better(got: GpuSet, best: GpuSet | None) -> str:
    if best is None or best.worst == got.worst:
        return ""
    return f"{','.join(map(str, best.gpus))} would be {best.worst}"
