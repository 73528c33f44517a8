"""What places mean once they are found: the isochrone sets, the worst pair, a decision for every pod of the gang.

It searches for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.evaluate.partner_reach import known_nodes
from scheduler.evaluate.pci_affinity import split_share
from scheduler.evaluate.rail_alignment import Placed, gang_rails
from scheduler.model.decision import Outcome, PairReach, Plan, Terms
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, ReachBound
from scheduler.planning.gang_members import GangMembers, Places
from scheduler.planning.member_decisions import MemberDecisions
from scheduler.planning.partner_groups import PartnerPlaces, groups_of, nodes_by_phase
from scheduler.search.capacity_loss import lost_gpus
from scheduler.search.objective import Objective, expected_pods, taken_gpus
from topology.cluster.isochrone_sets import NodeSet, as_requirement, isochrone_masks
from topology.cluster.snapshot import Mask, NodeTable, Snapshot
from topology.labels import DECODE, PHASES, PREFERRED, PREFILL


def build_plan(asked: GangMembers, snapshot: Snapshot, policy: Policy, places: Places, expanded: int) -> Plan:
    """The plan that these places make."""
    table, gang = snapshot.table, asked.gang
    pods = _places_by_pod(gang, snapshot, places)
    sets, smaller = ({}, 0) if gang.mode == PREFERRED else _sets(gang, snapshot, pods, places)
    after = asked.assumed(snapshot, places)
    made = MemberDecisions(asked, snapshot, after, policy, places, pods)
    pairs = [decision.partner for decision in made.decisions.values() if decision.partner]
    placed = [(asked.needs[member.uid], places[member.uid]) for member in asked.placed(places)]
    taken = taken_gpus([(need.shape, 1) for need, _ in placed], snapshot, policy)
    objective = Objective(policy, gang.bound.us, taken, expected_pods(snapshot))
    lost = lost_gpus(snapshot, after, placed, policy, objective)
    terms = replace(
        terms_of(snapshot, pods, gang.bound, smaller, lost),
        split_groups=_split(gang, snapshot, places),
        off_rail=_off_rail(asked, snapshot, pods, places),
    )
    plan = Plan(
        request=gang,
        outcome=Outcome.PLANNED if places else Outcome.HELD,
        snapshot_id=snapshot.id,
        decisions=made.decisions,
        places={uid: table.names[node] for uid, node in sorted(places.items())},
        sets=sets,
        worst=max(pairs, key=_far) if pairs else None,
        expanded=expanded,
        terms=terms,
        cost=objective.cost(terms),
        equivalents=made.equivalents,
    )
    if not table.seen_devices and table.file.network is None:
        return plan
    from scheduler.planning.pair_path import with_paths  # networkx is loaded where there are ways to name

    return with_paths(plan, snapshot)


def _split(gang: GangRequest, snapshot: Snapshot, places: Places) -> float:
    """The share of the gang's groups that are torn between PCI roots."""
    gpus_at: dict[int, dict[str, list[int]]] = {}
    for m in gang.members:
        if m.uid in places:
            gpus_at.setdefault(places[m.uid], {}).setdefault(m.phase, []).append(m.gpus)
    group = gang.group
    return split_share(snapshot.root_capacity(), gpus_at, group.groups) if group is not None else 0.0


def _off_rail(asked: GangMembers, snapshot: Snapshot, pods: Sequence[PartnerPlaces], places: Places) -> float:
    """The share of the gang's GPUs on no rail of their partners; 0 where it shares cards, or nobody tells the rails."""
    there = tuple({n for p in pods if not p.planned and p.phase == phase for n in p.nodes} for phase in PHASES)
    rails = gang_rails(snapshot, (there[0], there[1]))
    placed = [m for m in asked.gang.members if m.uid in places]
    needs = [asked.needs[m.uid] for m in placed]
    if rails is None or any(need.devices is not None or need.shape.profile for need in needs):
        return 0.0
    return rails.off([Placed(m.phase == PHASES[1], m.gpus, places[m.uid]) for m in placed])


def _places_by_pod(gang: GangRequest, snapshot: Snapshot, places: Places) -> list[PartnerPlaces]:
    """Partners and planned members; an unbound partner on every node that it may take."""
    known = known_nodes(gang.partners, snapshot.table)
    pods = [PartnerPlaces(p.name, p.phase, known[p.nodes], planned=False) for p in gang.partners]
    pods += [PartnerPlaces(m.name, m.phase, (places[m.uid],), planned=True) for m in gang.members if m.uid in places]
    return [pod for pod in pods if pod.nodes]


def _sets(
    gang: GangRequest, snapshot: Snapshot, pods: Sequence[PartnerPlaces], places: Places
) -> tuple[dict[str, NodeSet], int]:
    """The isochrone set of each planned member by uid, and the nodes of the smaller set of the worst-off group."""
    table, bound = snapshot.table, gang.bound
    groups = groups_of(pods, table.reach, bound.size_bytes) if bound.nearest else [list(pods)]
    found: dict[tuple[str, str], NodeSet] = {}
    written: dict[tuple[bytes, frozenset[int]], NodeSet | None] = {}  # once where both phases stand alike
    sizes = []
    for group in groups:
        nodes = nodes_by_phase(group)
        masks = isochrone_masks(table, nodes[PREFILL], nodes[DECODE], bound.us, bound.size_bytes)
        sizes.append(min(int(mask.sum()) for mask in masks))
        for phase, mask in zip(PHASES, masks, strict=True):
            mine = [pod for pod in group if pod.phase == phase and pod.planned]
            if mine and (of_set := _written(table, mask, mine, written)) is not None:
                found |= dict.fromkeys(((phase, pod.name) for pod in mine), of_set)
    sets = {m.uid: found[m.phase, m.name] for m in gang.members if m.uid in places and (m.phase, m.name) in found}
    return sets, min(sizes, default=0)


def _written(
    table: NodeTable,
    mask: Mask,
    pods: Sequence[PartnerPlaces],
    known: dict[tuple[bytes, frozenset[int]], NodeSet | None],
) -> NodeSet | None:
    """A set as a requirement that holds where these pods stand."""
    there = frozenset(n for pod in pods for n in pod.nodes)
    key = mask.tobytes(), there
    if key not in known:
        known[key] = as_requirement(table, mask, sorted(there))
    return known[key]


def terms_of(
    snapshot: Snapshot, pods: Sequence[PartnerPlaces], bound: ReachBound, smaller_set: int, lost: float
) -> Terms:
    """What these places are judged by."""
    prefill, decode = (Counter((p.nodes, p.planned) for p in pods if p.phase == phase) for phase in PHASES)
    # Pods that stand on the same nodes are one row: a gang of thousands stands on far fewer nodes.
    far = np.zeros((len(prefill), len(decode)))
    starts = np.cumsum([0, *(len(nodes) for nodes, _ in decode)])[:-1]
    flat = np.array([node for nodes, _ in decode for node in nodes], dtype=np.int64)
    for i, (nodes, _) in enumerate(prefill):
        if len(decode):
            row = np.max([snapshot.table.reach.row_us(node, bound.size_bytes) for node in nodes], axis=0)
            far[i] = np.maximum.reduceat(row[flat], starts)
    new = [np.array([planned for _, planned in side], dtype=bool) for side in (prefill, decode)]
    often = [np.array(list(side.values()), dtype=np.int64) for side in (prefill, decode)]
    if bound.nearest:
        us = np.concatenate([far[new[0]].min(axis=1, initial=np.inf), far[:, new[1]].min(axis=0, initial=np.inf)])
        pods_of = np.concatenate([often[0][new[0]], often[1][new[1]]])
    else:
        pair = new[0][:, None] | new[1]
        us, pods_of = far[pair], np.outer(often[0], often[1])[pair]
    return Terms(float(us.max(initial=0.0)), float(us @ pods_of / pods_of.sum()) if len(us) else 0.0, lost, smaller_set)


def _far(pair: PairReach) -> tuple[float, str, str]:
    return pair.reach.us, pair.prefill, pair.decode
