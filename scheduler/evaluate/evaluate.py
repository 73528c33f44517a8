"""One pod against every node asked: a verdict for each, a score for each, the nearest miss per verdict.

`plan` and `decide` both speak through this file, so they cannot disagree about a node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.gpu_fit import GpuFit, GpuNeed, gpu_fit, gpu_need, gpu_phrase, short_of_gpus
from scheduler.evaluate.gpu_prediction import gpu_pick
from scheduler.evaluate.partner_reach import Deciding, Named, partner_of
from scheduler.evaluate.pci_affinity import RootFit, root_fit
from scheduler.evaluate.rail_alignment import off_rail
from scheduler.evaluate.score import Scored
from scheduler.model.decision import KEEP, Candidate, Decision, PairReach, decision_id
from scheduler.model.policy import Policy
from scheduler.model.request import PodRequest, ReachBound
from scheduler.model.verdict import Verdict, VerdictCode
from topology.cluster.snapshot import Amount2D, Mask, Snapshot, capacity_for
from topology.fragmentation.pod_shape import NOTHING, PodShape, shape_of
from topology.gpus.forms import GPU_PARTS
from topology.labels import PREFILL
from topology.resources import CPU, GPU, MEMORY, PODS

_BY_RESOURCE = {GPU: VerdictCode.INSUFFICIENT_GPU, MEMORY: VerdictCode.INSUFFICIENT_MEMORY}
_ELIGIBLE, _TOO_FAR = int(VerdictCode.ELIGIBLE), int(VerdictCode.REACH_EXCEEDED)  # arrays compare with an enum slowly
ON_GPUS = -2
"""In place of a column: amounts would do, and the node's cards do not."""

_UNITS = {GPU: "gpus", MEMORY: "bytes", CPU: "millicores", PODS: "pods"}


@dataclass(frozen=True, slots=True)
class PodFit:
    """A pod's request against one node table: the row (R,), what no node has, and who accepts the pod (N,); `devices`
    where the node's cards must be looked at one by one; `roots` as they were before any pod of its gang had a place;
    `own`: what its gang holds itself, (N, R), which nobody is told to free."""

    row: Amount2D
    missing: tuple[str, ...]
    accepts: Mask
    devices: GpuNeed | None = None
    shape: PodShape = NOTHING
    roots: RootFit | None = None
    own: Amount2D | None = None


def fit_of(request: PodRequest, snapshot: Snapshot, policy: Policy | None = None) -> PodFit:
    """The request in the snapshot's columns. Nodes without a hostname label are not accepted: no set can name them."""
    devices = gpu_need(request.gpu, request.phase, policy or Policy())
    counted = request.amounts
    if devices is not None:
        counted = {name: amount for name, amount in counted.items() if name not in GPU_PARTS}
    row, missing = snapshot.table.vector(counted)
    return PodFit(
        row=row,
        missing=(request.problem,) if request.problem else missing,
        accepts=snapshot.table.accept_mask(request.spec) & snapshot.table.named,
        devices=devices,
        shape=shape_of(request.amounts, request.gpu, request.phase, request.spec),
        roots=_roots(request, snapshot),
    )


def _roots(request: PodRequest, snapshot: Snapshot) -> RootFit | None:
    """How much of the pod's gang each node has room for under its PCI roots; None where that is nobody's question."""
    if request.group is None or not request.gpus:
        return None
    capacity = snapshot.root_capacity()
    return root_fit(capacity, len(snapshot.table), request.group) if len(capacity.nodes) else None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Verdict codes (n,), reach (n,) in us and scores of the nodes asked, as indices into the node table."""

    nodes: NDArray[np.int64]
    codes: NDArray[np.int8]
    short_of: NDArray[np.int64]  # column of the resource that is short, where the code says so; ON_CARDS for cards
    scored: Scored
    devices: GpuFit | None = None


def _filter_amounts(
    resources: Sequence[str],
    row: NDArray[np.int64],
    free: NDArray[np.int64],
    allocatable: NDArray[np.int64],
    codes: NDArray[np.int8],
    short_of: NDArray[np.int64],
) -> None:
    """Writes into `codes` and `short_of`, (n,), which counted resource of `row` a node lacks; amounts are (n, R)."""
    code_of = {i: _BY_RESOURCE.get(resources[i], VerdictCode.INSUFFICIENT_OTHER) for i in np.flatnonzero(row).tolist()}
    # The rarest resource comes last, so that it is the one named where several are short.
    order = sorted(code_of, key=lambda i: (-code_of[i], i))
    for column in order:
        short = free[:, column] < row[column]
        codes[short], short_of[short] = code_of[column], column
    for column in order:
        # After all shortages: a node that has none of something does not get it by waiting.
        absent = allocatable[:, column] == 0
        codes[absent], short_of[absent] = VerdictCode.RESOURCE_MISSING, column


def evaluate(
    snapshot: Snapshot,
    need: PodFit,
    reach_us: NDArray[np.float64],
    bound: ReachBound,
    policy: Policy,
    nodes: NDArray[np.int64] | None = None,
    partners: Collection[int] = (),
) -> Evaluation:
    """Judge the nodes asked (all of them by default). `reach_us` is (N,) and says how far each node is; `partners` are
    the nodes of the other phase, whose network rails count."""
    table = snapshot.table
    asked = np.arange(len(table)) if nodes is None else nodes
    allocatable = table.allocatable if nodes is None else table.allocatable.take(nodes, axis=0)
    free = allocatable - (snapshot.used if nodes is None else snapshot.used.take(nodes, axis=0))
    codes = np.full(len(asked), _ELIGIBLE, dtype=np.int8)
    codes[reach_us[asked] > bound.us] = _TOO_FAR
    short_of = np.full(len(asked), -1, dtype=np.int64)
    _filter_amounts(table.resources, need.row, free, allocatable, codes, short_of)
    devices = None
    if need.devices is not None and not need.missing:
        # The rarest of all: counted resources would do, and no card has the memory.
        devices = gpu_fit(snapshot.gpus, need.devices, nodes)
        lacking = ~devices.fits
        for short, code in (
            (lacking, VerdictCode.INSUFFICIENT_GPU),
            (lacking & devices.but_for_memory, VerdictCode.INSUFFICIENT_MEMORY),
            (devices.none, VerdictCode.RESOURCE_MISSING),
        ):
            if short.any():
                reported = short & (codes != VerdictCode.RESOURCE_MISSING)
                codes[reported], short_of[reported] = code, ON_GPUS
    if need.missing:
        codes[:] = VerdictCode.RESOURCE_MISSING
        short_of[:] = -1
    codes[~need.accepts[asked]] = VerdictCode.NODE_NOT_ACCEPTED
    fits = (codes == _ELIGIBLE) | (codes == _TOO_FAR)
    whole = need.shape.gpus if need.devices is None and not need.shape.profile else 0
    rails = off_rail(snapshot, whole, asked, partners)
    scored = Scored(snapshot, asked, need.shape, reach_us[asked], bound.us, policy, fits, need.roots, rails)
    return Evaluation(nodes=asked, codes=codes, short_of=short_of, scored=scored, devices=devices)


def nearest_misses(
    snapshot: Snapshot, evaluated: Evaluation, need: PodFit, bound: ReachBound, partners: Named | Deciding = ()
) -> Mapping[VerdictCode, Verdict]:
    """Per verdict the node that came closest, with the numbers that make the gap. Ties go to the first name.

    `partners`, if any, are those that the reach was judged by.
    """
    return shortages(snapshot, evaluated, need, bound) | too_far(snapshot, evaluated, bound, partners)


def shortages(snapshot: Snapshot, evaluated: Evaluation, need: PodFit, bound: ReachBound) -> dict[VerdictCode, Verdict]:
    """`nearest_misses` for want of room."""
    table, counts = snapshot.table, counts_of(evaluated)
    misses: dict[VerdictCode, Verdict] = {}
    if counts[VerdictCode.RESOURCE_MISSING]:
        absent = np.flatnonzero(evaluated.codes == int(VerdictCode.RESOURCE_MISSING))
        # Named only if it is the same resource everywhere; the phrase counts all of these nodes.
        columns = np.unique(evaluated.short_of[absent]).tolist()
        name = need.missing[0] if need.missing else ""
        if not name and len(columns) == 1:
            name = gpu_phrase(need.devices) if columns[0] == ON_GPUS else table.resources[columns[0]]
        if name == GPU and all(table.gpus_are_split(int(evaluated.nodes[i])) for i in absent):
            name = f"whole {GPU}, since the cards are in MIG mode"
        code = VerdictCode.RESOURCE_MISSING
        misses[code] = Verdict(code, table.names[evaluated.nodes[absent[0]]], 1.0, 0.0, name)
    for code in (VerdictCode.INSUFFICIENT_GPU, VerdictCode.INSUFFICIENT_MEMORY, VerdictCode.INSUFFICIENT_OTHER):
        if counts[code]:
            at = np.flatnonzero(evaluated.codes == int(code))
            misses[code] = _shortage(snapshot, evaluated, need, bound, code, at)
    return misses


def too_far(
    snapshot: Snapshot, evaluated: Evaluation, bound: ReachBound, partners: Named | Deciding
) -> dict[VerdictCode, Verdict]:
    """`nearest_misses` for reach."""
    table, misses = snapshot.table, dict[VerdictCode, Verdict]()
    far = np.flatnonzero(evaluated.codes == _TOO_FAR)
    if len(far) and np.isfinite(evaluated.scored.reach_us[far]).any():
        at_best = far[int(np.argmin(evaluated.scored.reach_us[far]))]
        node = int(evaluated.nodes[at_best])
        partner, reach = "", None
        if partners:
            deciding = partners.of(node) if isinstance(partners, Deciding) else partners
            partner, other = partner_of(table, node, deciding, bound)
            reach = table.reach.between(node, other, bound.size_bytes)
        misses[VerdictCode.REACH_EXCEEDED] = Verdict(
            VerdictCode.REACH_EXCEEDED,
            table.names[node],
            bound.us,
            float(evaluated.scored.reach_us[at_best]),
            "us",
            suffices=True,
            partner=partner,
            reach=reach,
        )
    return misses


def _shortage(
    snapshot: Snapshot, evaluated: Evaluation, need: PodFit, bound: ReachBound, code: VerdictCode, at: NDArray[np.int64]
) -> Verdict:
    """The closest of the nodes `at` (positions) that lack room: one where the gap alone is in the way, before one that
    is in reach, before the smallest gap. Cards come before counted resources, of which those nodes have enough."""
    table = snapshot.table
    on_gpus = at[evaluated.short_of[at] == ON_GPUS]
    if len(on_gpus) and evaluated.devices is not None and need.devices is not None:
        within = evaluated.scored.reach_us <= bound.us
        miss = short_of_gpus(table.names, evaluated.nodes, evaluated.devices, within, code, on_gpus)
        if need.own is not None and need.own[table.index[miss.node]].any():
            miss = replace(miss, suffices=False)  # which of the cards its own pods have is not looked at
        return miss if len(on_gpus) == len(at) else replace(miss, mixed=True)
    nodes, columns = evaluated.nodes[at], evaluated.short_of[at]
    allocatable = table.allocatable[nodes]
    free = allocatable - snapshot.used[nodes]
    each = np.arange(len(at))
    have, asked = free[each, columns], need.row[columns]
    within = evaluated.scored.reach_us[at] <= bound.us
    alone = ((free < need.row) & (need.row > 0)).sum(axis=1) == 1
    others = snapshot.used[nodes, columns] - (0 if need.own is None else need.own[nodes, columns])
    missing = asked - np.maximum(have, 0)
    suffices = within & alone & (allocatable[each, columns] >= asked) & (others >= missing)
    gap = missing / np.maximum(asked, 1)
    rank = np.where(suffices, 0, np.where(within, 1, 2))
    first = np.flatnonzero(rank == rank.min())
    first = first[gap[first] == gap[first].min()]
    best = int(first[np.argmin(nodes[first])])
    name = table.resources[columns[best]]
    return Verdict(
        code,
        table.names[nodes[best]],
        float(asked[best]),
        float(max(have[best], 0)),
        _UNITS.get(name, name),
        suffices=bool(suffices[best]),
    )


def decision_of(
    snapshot: Snapshot,
    request: PodRequest,
    need: PodFit,
    evaluated: Evaluation,
    bound: ReachBound,
    partners: Sequence[tuple[str, int]],
    chosen: int | None = None,
) -> Decision:
    """The readable record: counts, nearest misses, the choice first and then the best of the rest.

    `partners` are (pod name, node index) of the other phase; the worst of them from the chosen node is named.
    """
    order = ranking_of(evaluated, KEEP + 1)
    at: NDArray[np.int64] = np.flatnonzero(evaluated.nodes == (-1 if chosen is None else chosen))
    if len(at):
        order = [int(at[0]), *(i for i in order if i != at[0])]
    ranked = [candidate_of(snapshot, evaluated, i, partners, bound) for i in order[:KEEP]]
    nearest = nearest_misses(snapshot, evaluated, need, bound, partners)
    return record_of(snapshot, request, counts_of(evaluated), nearest, ranked, bound, partners, chosen)


def counts_of(evaluated: Evaluation) -> NDArray[np.int64]:
    """Nodes per verdict code, shape (codes,)."""
    counts: NDArray[np.int64] = np.bincount(evaluated.codes, minlength=len(VerdictCode))
    return counts


def ranking_of(evaluated: Evaluation, count: int) -> list[int]:
    """Positions of the best eligible nodes, best first: scores are distinct, so a partial sort says the same."""
    total = evaluated.scored.total_nano
    positions = np.flatnonzero(evaluated.codes == _ELIGIBLE)
    if len(positions) > count:
        positions = positions[np.argpartition(-total[positions], count)[:count]]
    order: list[int] = positions[np.argsort(-total[positions])].tolist()
    return order


def record_of(
    snapshot: Snapshot,
    request: PodRequest,
    counts: NDArray[np.int64],
    nearest: Mapping[VerdictCode, Verdict],
    ranked: Sequence[Candidate],
    bound: ReachBound,
    partners: Sequence[tuple[str, int]],
    chosen: int | None,
) -> Decision:
    """The decision that these findings make; names the worst partner of the chosen node."""
    table = snapshot.table
    pair, other = None, None
    named = [miss.node for miss in nearest.values()] if chosen is None else [table.names[chosen]]
    if chosen is not None and partners:
        name, other = partner_of(table, chosen, partners, bound)
        named.append(table.names[other])
        reach = table.reach.between(chosen, other, bound.size_bytes)
        mine = (name, request.name) if request.phase != PREFILL else (request.name, name)
        pair = PairReach(prefill=mine[0], decode=mine[1], reach=reach)
    return Decision(
        id=decision_id(request.uid, snapshot.id),
        snapshot_id=snapshot.id,
        request=request,
        bound_us=bound.us,
        node_count=int(counts.sum()),
        eligible=int(counts[VerdictCode.ELIGIBLE]),
        ruled_out={c: int(counts[c]) for c in VerdictCode if c is not VerdictCode.ELIGIBLE and counts[c]},
        nearest=nearest,
        ranked=tuple(ranked),
        chosen=None if chosen is None else table.names[chosen],
        partner=pair,
        facts_age_s=snapshot.facts_age_s,
        agents=snapshot.agent_ages(named),
        predicted_gpus=request.gpus > 0 or (request.gpu is not None and request.gpu.predicted),
        pick=gpu_pick(snapshot, request, chosen, other) if chosen is not None else None,
    )


def candidate_of(
    snapshot: Snapshot, evaluated: Evaluation, position: int, partners: Sequence[tuple[str, int]], bound: ReachBound
) -> Candidate:
    """The readable form of one judged node."""
    table, node = snapshot.table, int(evaluated.nodes[position])
    reach = None
    if partners:
        _, partner = partner_of(table, node, partners, bound)
        reach = table.reach.between(node, partner, bound.size_bytes)
    return evaluated.scored.candidate(position, table.names[node], reach)


def has_capacity(snapshot: Snapshot, need: PodFit) -> Mask:
    """Nodes that accept the pod and have room for one of it, shape (N,)."""
    if need.missing:
        return np.zeros(len(snapshot.table), dtype=bool)
    capacity: Mask = need.accepts & (capacity_for(snapshot.free, need.row) > 0)
    if need.devices is not None:
        capacity &= gpu_fit(snapshot.gpus, need.devices).fits
    return capacity
