"""What places mean once they are found: the isochrone sets, the worst pair, a decision for every pod of the gang.

It searches for nothing. Members that ask for the same are judged once, against the cluster with the whole gang in it;
each one's own node is then judged again without it, since a pod does not compete with itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import (
    Judged,
    Need,
    candidate_of,
    counts_of,
    judge,
    nearest_misses,
    ranking_of,
    record_of,
    shortages,
    too_far,
)
from scheduler.evaluate.partner_reach import Deciding, Named, known_nodes, other_phase, reach_to
from scheduler.evaluate.pci_affinity import torn_share
from scheduler.evaluate.rail_alignment import Placed, gang_rails
from scheduler.evaluate.unsatisfiable import too_large
from scheduler.model.decision import KEEP, Candidate, Decision, Outcome, PairReach, Plan, Terms, decision_id
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest, ReachBound
from scheduler.model.verdict import Verdict, VerdictCode
from scheduler.planning.gang_usage import held_by_gang
from scheduler.planning.partner_groups import Standing, groups_of, nodes_by_phase
from scheduler.search.capacity_loss import lost_gpus
from scheduler.search.objective import Objective, expected_pods, taken_gpus
from topology.cluster.isochrone_sets import NodeSet, as_requirement, isochrone_masks
from topology.cluster.snapshot import Assumed, Snapshot
from topology.labels import DECODE, PHASES, PREFERRED, PREFILL

Places = dict[str, int]  # pod uid to node index


def planned(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    needs: Mapping[str, Need],
    places: Places,
    expanded: int,
) -> Plan:
    """The plan that these places make."""
    table, bound = snapshot.table, gang.bound
    pods = _standing(gang, snapshot, places)
    sets, smaller = ({}, 0) if gang.mode == PREFERRED else _sets(gang, snapshot, pods, places)
    after = snapshot.with_assumed(
        {m.uid: Assumed(table.names[places[m.uid]], m.amounts, m.hold) for m in gang.members if m.uid in places}
    )
    # Of pods that may stand on the same nodes the first by name speaks for all.
    first: dict[tuple[str, tuple[int, ...]], str] = {}
    for p in pods:
        first[p.phase, p.nodes] = min(p.name, first.get((p.phase, p.nodes), p.name))
    named = {
        phase: [(name, n) for (of, nodes), name in first.items() if of == phase for n in nodes] for phase in PHASES
    }
    alike: dict[tuple[str, int], dict[int, str]] = {}
    for m in gang.members:
        if m.uid in places:
            alike.setdefault((m.phase, id(needs[m.uid])), {})[places[m.uid]] = m.uid
    where = {phase: frozenset(nodes for of, nodes in first if of == phase) for phase in PHASES}
    # What its own pods have matters to advice only, and that only to who is left out.
    own = held_by_gang(gang, snapshot, places) if len(places) < len(gang.members) else None
    kinds: dict[tuple[str, int], _Kind] = {}
    looks: dict[object, _Look] = {}
    decisions: dict[str, Decision] = {}
    twins: dict[str, str] = {}
    for member in sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)):
        need = needs[member.uid]
        key = member.phase, id(need)
        if key not in kinds:
            other, mine = other_phase(member.phase), alike.get(key, {})
            # Both phases see the same where they ask alike and stand, and have their partners, on the same nodes.
            seen = id(need), where[other], tuple(sorted(mine)), member.phase if need.cards is not None else ""
            if seen not in looks:
                need = need if own is None else replace(need, own=own)
                looks[seen] = _Look(after, need, named[other], bound, policy, mine)
            kinds[key] = _Kind(looks[seen], named[other], bound)
        decisions[member.uid], twins[member.uid] = kinds[key].decision(member, places.get(member.uid))
    pairs = [d.partner for d in decisions.values() if d.partner]
    placed = [(needs[uid], places[uid]) for uid in decisions if uid in places]
    taken = taken_gpus([(need.shape, 1) for need, _ in placed], snapshot, policy)
    objective = Objective(policy, bound.us, taken, expected_pods(snapshot))
    lost = lost_gpus(snapshot, after, placed, policy, objective)
    terms = replace(terms_of(snapshot, pods, bound, smaller, lost), torn=_torn(gang, snapshot, places))
    terms = replace(terms, off_rail=_off_rail(snapshot, pods, needs, gang, places))
    plan = Plan(
        request=gang,
        outcome=Outcome.PLANNED if places else Outcome.HELD,
        snapshot_id=snapshot.id,
        decisions=decisions,
        places={uid: table.names[node] for uid, node in sorted(places.items())},
        sets=sets,
        worst=max(pairs, key=_far) if pairs else None,
        expanded=expanded,
        terms=terms,
        cost=objective.cost(terms),
        twins=twins,
    )
    if not table.seen_devices and table.file.network is None:
        return plan
    from scheduler.pair_path import with_paths  # networkx is loaded where there are ways to name

    return with_paths(plan, snapshot)


def _torn(gang: GangRequest, snapshot: Snapshot, places: Places) -> float:
    """The share of the gang's groups that are torn between PCI roots."""
    gpus_at: dict[int, dict[str, list[int]]] = {}
    for m in gang.members:
        if m.uid in places:
            gpus_at.setdefault(places[m.uid], {}).setdefault(m.phase, []).append(m.gpus)
    group = gang.group
    return torn_share(snapshot.root_room(), gpus_at, group.groups) if group is not None else 0.0


def _off_rail(
    snapshot: Snapshot, pods: Sequence[Standing], needs: Mapping[str, Need], gang: GangRequest, places: Places
) -> float:
    """The share of the gang's GPUs on no rail of their partners; 0 where it shares cards, or nobody tells the rails."""
    there = tuple({n for p in pods if not p.planned and p.phase == phase for n in p.nodes} for phase in PHASES)
    rails = gang_rails(snapshot, (there[0], there[1]))
    placed = [m for m in gang.members if m.uid in places]
    if rails is None or any(needs[m.uid].cards is not None or needs[m.uid].shape.profile for m in placed):
        return 0.0
    return rails.off([Placed(m.phase == PHASES[1], m.gpus, places[m.uid]) for m in placed])


def _standing(gang: GangRequest, snapshot: Snapshot, places: Places) -> list[Standing]:
    """Partners and planned members; an unbound partner on every node that it may take."""
    known = known_nodes(gang.partners, snapshot.table)
    pods = [Standing(p.name, p.phase, known[p.nodes], planned=False) for p in gang.partners]
    pods += [Standing(m.name, m.phase, (places[m.uid],), planned=True) for m in gang.members if m.uid in places]
    return [pod for pod in pods if pod.nodes]


def _sets(
    gang: GangRequest, snapshot: Snapshot, pods: Sequence[Standing], places: Places
) -> tuple[dict[str, NodeSet], int]:
    """The isochrone set of each planned member by uid, and the nodes of the smaller set of the worst-off group."""
    table, bound = snapshot.table, gang.bound
    groups = groups_of(pods, table.reach, bound.size_bytes) if bound.nearest else [list(pods)]
    found: dict[tuple[str, str], NodeSet] = {}
    known: dict[tuple[bytes, frozenset[int]], NodeSet | None] = {}  # where both phases stand alike it is written once
    sizes = []
    for group in groups:
        nodes = nodes_by_phase(group)
        masks = isochrone_masks(table, nodes[PREFILL], nodes[DECODE], bound.us, bound.size_bytes)
        sizes.append(min(int(mask.sum()) for mask in masks))
        for phase, mask in zip(PHASES, masks, strict=True):
            mine = [pod for pod in group if pod.phase == phase and pod.planned]
            if not mine:
                continue
            there = frozenset(n for pod in mine for n in pod.nodes)
            key = mask.tobytes(), there
            if key not in known:
                known[key] = as_requirement(table, mask, sorted(there))
            if (written := known[key]) is not None:
                found |= dict.fromkeys(((phase, pod.name) for pod in mine), written)
    sets = {m.uid: found[m.phase, m.name] for m in gang.members if m.uid in places and (m.phase, m.name) in found}
    return sets, min(sizes, default=0)


def terms_of(snapshot: Snapshot, pods: Sequence[Standing], bound: ReachBound, smaller_set: int, lost: float) -> Terms:
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


_Found = tuple[NDArray[np.int64], Mapping[VerdictCode, Verdict], list[Candidate]]
"""Nodes per verdict, nearest misses and the best nodes."""


class _Look:
    """Every node as pods of one need see it with everybody in place, and their own nodes as each sees its own. `mine`:
    one uid for each node of theirs."""

    def __init__(
        self,
        after: Snapshot,
        need: Need,
        partners: Named,
        bound: ReachBound,
        policy: Policy,
        mine: Mapping[int, str],
    ) -> None:
        self.after, self.need, self._bound = after, need, bound
        reach_us = reach_to(after.table, partners, bound) if partners else after.table.reach.self_us(bound.size_bytes)
        rails = {node for _, node in partners}
        self.judged = judge(after, need, reach_us, bound, policy, None, rails)
        self.counts = counts_of(self.judged)
        self.ranking = ranking_of(self.judged, KEEP + 1)
        # Each one's own node, without one of them on it: on different nodes they do not see each other.
        nodes = np.array(sorted(mine), dtype=np.int64)
        self.without = after.without_assumed(mine.values()) if mine else after
        self.own = judge(self.without, need, reach_us, bound, policy, nodes, rails)
        self.short = shortages(after, self.judged, need, bound)
        self._candidates: dict[tuple[bool, int, int], Candidate] = {}

    def candidate(self, judged: Judged, at: int, partners: Named) -> Candidate:
        """A node of `judged` or `own` as a candidate; of its partners at most one, who decides for it."""
        key = judged is self.own, at, partners[0][1] if partners else -1
        if key not in self._candidates:
            self._candidates[key] = candidate_of(self.after, judged, at, partners, self._bound)
        return self._candidates[key]


class _Kind:
    """Members of one phase and need, and what they find beside their partners."""

    def __init__(self, look: _Look, partners: Named, bound: ReachBound) -> None:
        self._look, self._bound = look, bound
        after, judged = look.after, look.judged
        self._deciding = Deciding(after.table, partners, bound)
        self._nearest: Mapping[VerdictCode, Verdict] = look.short | too_far(after, judged, bound, partners)
        self._first: dict[int, Decision] = {}
        self._on: dict[int, _Found] = {}
        self._ranked = {
            (node := int(judged.nodes[i])): look.candidate(judged, i, self._deciding.of(node)) for i in look.ranking
        }

    def decision(self, member: PodRequest, node: int | None) -> tuple[Decision, str]:
        """The record of one member; on a node of its own it is judged there as if it were not there yet. And the uid of
        the first twin on that node: what is said of one is said of the other."""
        if node is None:
            after, ranked = self._look.after, list(self._ranked.values())[:KEEP]
            made = record_of(after, member, self._look.counts, self._nearest, ranked, self._bound, (), None)
            return replace(made, too_large=too_large(after, self._look.need)), member.uid
        first = self._first.get(node)
        if first is not None and _twins(first.request, member):
            return _of_twin(first, member), first.request.uid
        if node not in self._on:
            self._on[node] = self._found_on(member, node)
        counts, nearest, ranked = self._on[node]
        now = self._look.after if nearest is self._nearest else self._look.after.without_assumed([member.uid])
        made = record_of(now, member, counts, nearest, ranked, self._bound, self._deciding.of(node), node)
        self._first.setdefault(node, made)
        return made, member.uid

    def _found_on(self, member: PodRequest, node: int) -> _Found:
        look = self._look
        now, counts, nearest = look.after, look.counts.copy(), self._nearest
        at = int(np.searchsorted(look.own.nodes, node))
        before, code = int(look.judged.codes[node]), int(look.own.codes[at])
        counts[before] -= 1
        counts[code] += 1
        known = nearest.get(VerdictCode(before))
        if code != VerdictCode.ELIGIBLE or (known is not None and known.node == now.table.names[node]):
            now = now.without_assumed([member.uid])
            nearest = nearest_misses(now, self._with(node, at), look.need, self._bound, self._deciding)
        mine = look.candidate(look.own, at, self._deciding.of(node))
        others = [candidate for there, candidate in self._ranked.items() if there != node]
        return counts, nearest, [mine, *others][:KEEP]

    def _with(self, node: int, at: int) -> Judged:
        """All verdicts, with this node's own one; scores are of no use any more, reach is."""
        judged, own = self._look.judged, self._look.own
        codes, short_of = judged.codes.copy(), judged.short_of.copy()
        codes[node], short_of[node] = own.codes[at], own.short_of[at]
        return replace(judged, codes=codes, short_of=short_of)


def _twins(a: PodRequest, b: PodRequest) -> bool:
    """Whether two pods of one phase ask for the same and amounts say all of it: holds on cards are each pod's own."""
    return a.hold is None and (a.amounts, a.gpu, a.problem) == (b.amounts, b.gpu, b.problem)


def _of_twin(first: Decision, member: PodRequest) -> Decision:
    """The decision of a pod on the node of its twin."""
    pair = first.partner
    if pair is not None:
        mine = member.phase == PREFILL
        pair = PairReach(member.name if mine else pair.prefill, pair.decode if mine else member.name, pair.reach)
    return replace(first, id=decision_id(member.uid, first.snapshot_id), request=member, partner=pair)


def _far(pair: PairReach) -> tuple[float, str, str]:
    return pair.reach.us, pair.prefill, pair.decode
