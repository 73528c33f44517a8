"""What pods hold on the cards of a node, and where: from their annotations where these say so, else predicted.

Only pods that ask for more than plain whole GPUs are kept here; whole GPUs are counted by amounts. Everything is keyed
by pod uid, so a pod that is allocated, then seen again, counts once. An allocation that cannot be read counts what the
pod asks for, on the safe side, and the node says that it is partly unknown until better news comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from topology.bad_input import BadInput
from topology.gpus.capacity import NodeGpus
from topology.gpus.devices import ALLOCATED, Share, pod_shares
from topology.gpus.forms import HAMI, KAI, OURS, WHOLE
from topology.gpus.gpu_request import GpuRequest, whole_gpus
from topology.gpus.gpu_row import EVERYTHING, GpuRow, choose, empty_row, put, put_all
from topology.gpus.request import readable_gpus, requests_gpus
from topology.labels import PHASE
from topology.objects import Pod


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """One pod's part of a node's cards. `shares` is empty where nobody says which cards they are."""

    request: GpuRequest
    phase: str = ""
    shares: tuple[Share, ...] = ()
    doubt: str = ""
    """What could not be read, with the pod's name."""

    @property
    def units(self) -> int:
        """What the pod takes of nvidia.com/gpu."""
        return self.request.count if self.request.form in (WHOLE.name, HAMI.name) else 0


def allocation_of(pod: Pod) -> GpuAllocation | None:
    """A pod's hold on cards, or None for a pod that amounts alone describe: no GPU, plain whole GPUs, MIG instances.

    Never raises: a request that cannot be read holds nothing here (it is reported where requests are read), and an
    allocation that cannot be read holds what the request says.
    """
    notes = pod.metadata.annotations
    if not requests_gpus(pod.spec, notes) and (not notes or ALLOCATED.isdisjoint(notes)):
        return None
    request, _ = readable_gpus(pod.spec, notes)
    if request is None or request.profiles:
        return None
    doubt = ""
    try:
        shares = pod_shares(notes) or ()
    except BadInput as bad:
        shares, doubt = (), f"{pod.metadata.namespace}/{pod.metadata.name}: {bad}"
    if request.plain and not shares and not doubt:
        return None
    return GpuAllocation(request, pod.metadata.label(PHASE), shares, doubt)


def allocation_of_request(request: GpuRequest | None, phase: str) -> GpuAllocation | None:
    """What a planned pod will hold on cards, or None where its amounts say everything."""
    return None if request is None or request.plain or request.profiles else GpuAllocation(request, phase)


@dataclass(slots=True)
class NodeAllocations:
    """All holds on one node by pod uid. Never changed but for what is remembered; `with_hold` gives another."""

    holds: Mapping[str, GpuAllocation] = field(default_factory=dict)
    _row: tuple[NodeGpus, int, GpuRow] | None = field(default=None, compare=False)
    _next: tuple[str, GpuAllocation, NodeAllocations] | None = field(default=None, compare=False, repr=False)

    def with_hold(self, uid: str, hold: GpuAllocation | None) -> NodeAllocations:
        """These holds with one pod's replaced, or removed with None. The same pod added again gives the same value
        again: a pod tried in a session is added in every call, and its node's cards are worked out once."""
        if hold is not None and self._next is not None and self._next[0] == uid and self._next[1] is hold:
            return self._next[2]
        holds = {k: v for k, v in self.holds.items() if k != uid}
        if hold is None:
            return NodeAllocations(holds)
        after = NodeAllocations(holds | {uid: hold})
        self._next = uid, hold, after
        return after

    def doubts(self) -> tuple[str, ...]:
        """Why the node is partly unknown, sorted; empty where everything could be read."""
        return tuple(sorted(h.doubt for h in self.holds.values() if h.doubt))

    def row(self, devices: NodeGpus, units: int) -> GpuRow:
        """The node's cards with every pod on them; `units` is what amounts count as taken of nvidia.com/gpu."""
        if self._row is None or self._row[0] is not devices or self._row[1] != units:
            self._row = (devices, units, held_row(devices, self.holds, units))
        return self._row[2]


def held_row(devices: NodeGpus, holds: Mapping[str, GpuAllocation], units: int) -> GpuRow:
    """A node's cards with all holds placed: those whose cards are known first, then predictions in the order of uids,
    then `units` less what the holds explain as plain whole GPUs on the lowest free indices."""
    if all(not hold.shares and not hold.request.pinned for hold in holds.values()):
        # Nobody's card is known, so which cards they are matters no more than by size and state: many nodes are alike.
        equivalent = replace(devices, model="", uuids=("",) * len(devices.uuids), instances=(), links=None, problem="")
        return _predicted(equivalent, tuple((holds[uid].request, holds[uid].phase) for uid in sorted(holds)), units)
    return _placed(devices, holds, units)


@lru_cache(maxsize=4096)
def _predicted(devices: NodeGpus, asked: tuple[tuple[GpuRequest, str], ...], units: int) -> GpuRow:
    holds = {f"{i:05}": GpuAllocation(request, phase) for i, (request, phase) in enumerate(asked)}
    return _placed(devices, holds, units)


def _placed(devices: NodeGpus, holds: Mapping[str, GpuAllocation], units: int) -> GpuRow:
    row = empty_row(devices)
    index = {uuid: i for i, uuid in enumerate(devices.uuids) if uuid}
    unknown: list[GpuAllocation] = []
    shared: set[int] = set()
    for uid in sorted(holds):
        hold = holds[uid]
        at = [_gpu(share.gpu, index, len(devices.memory_mib)) for share in hold.shares]
        if not at or None in at:
            unknown.append(hold)
            continue
        for share, gpu in zip(hold.shares, at, strict=True):
            if gpu is not None:
                row = put(devices, row, gpu, _given(hold.request, share), hold.phase, share.memory_mib or None)
    for hold in unknown:
        chosen = choose(devices, row, hold.request, hold.phase, EVERYTHING) or _least_bad(row, hold.request.count)
        row = put_all(devices, row, chosen, hold.request, hold.phase)
        if hold.request.form in (KAI.name, OURS.name):
            shared.update(chosen)
    # A fraction without a device of its own lives on a card that a reservation pod holds as a whole GPU.
    plain = max(0, units - sum(hold.units for hold in holds.values()) - len(shared))
    return put_plain(devices, row, plain)


def _given(request: GpuRequest, share: Share) -> GpuRequest:
    """What was given counts before what was asked, where it says how much."""
    if not share.memory_mib:
        return request
    compute = share.compute_percent * 10
    return replace(request, whole=False, memory_mib=share.memory_mib, memory_milli=0, compute_milli=compute)


def put_plain(devices: NodeGpus, row: GpuRow, units: int) -> GpuRow:
    """`units` of nvidia.com/gpu on a node: whole cards by the lowest index, or replicas by the fewest taken first
    (NVIDIA/k8s-device-plugin internal/rm/allocate.go, the `distributed` policy)."""
    one = whole_gpus(1)
    for _ in range(units):
        chosen = choose(devices, row, one, "", EVERYTHING)
        if chosen is None:
            return row  # more is taken than there is: nothing is left, which the amounts say too
        if devices.replicas > 1 and not devices.listed:
            chosen = (max(range(len(row.left_compute)), key=lambda i: (row.left_compute[i], -i)),)
        row = put(devices, row, chosen[0], one, "")
    return row


def _gpu(name: str, index: Mapping[str, int], count: int) -> int | None:
    """A card by UUID, or by number where the allocation gives numbers."""
    if name in index:
        return index[name]
    return int(name) if name.isdigit() and int(name) < count else None


def _least_bad(row: GpuRow, count: int) -> tuple[int, ...]:
    """More is held than fits by our rules: it counts on the cards with the most left."""
    order = sorted(range(len(row.left_mib)), key=lambda i: (row.users[i] < 0, -row.left_mib[i], i))
    return tuple(order[:count])
