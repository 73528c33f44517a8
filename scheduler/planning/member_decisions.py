"""A decision for every member of a planned gang: its verdict on each node, its best nodes, its own.

Members of one equivalence class are evaluated once, against the cluster with the whole gang in it; each one's own node
is then evaluated again without it, since a pod does not compete with itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import (
    Evaluation,
    PodFit,
    candidate_of,
    counts_of,
    evaluate,
    nearest_misses,
    ranking_of,
    record_of,
    shortages,
    too_far,
)
from scheduler.evaluate.partner_reach import Deciding, Named, other_phase, reach_to
from scheduler.evaluate.unsatisfiable import too_large
from scheduler.model.decision import KEEP, Candidate, Decision, PairReach, decision_id
from scheduler.model.policy import Policy
from scheduler.model.request import PodRequest, ReachBound
from scheduler.model.verdict import Verdict, VerdictCode
from scheduler.planning.gang_members import EquivalenceClass, GangMembers, Places
from scheduler.planning.gang_usage import held_by_gang
from scheduler.planning.partner_groups import PartnerPlaces
from topology.cluster.snapshot import Amount2D, Snapshot
from topology.labels import PHASES, PREFILL


class MemberDecisions:
    """`decisions` by uid, and for each uid in `equivalents` the first member of its class on its node, which has the
    same decision. `pods` are all of the gang that have places; `after` is the snapshot with them in it."""

    def __init__(
        self,
        asked: GangMembers,
        snapshot: Snapshot,
        after: Snapshot,
        policy: Policy,
        places: Places,
        pods: Sequence[PartnerPlaces],
    ) -> None:
        self._asked, self._after, self._policy = asked, after, policy
        # Of pods that may stand on the same nodes the first by name speaks for all.
        first: dict[tuple[str, tuple[int, ...]], str] = {}
        for pod in pods:
            at = pod.phase, pod.nodes
            first[at] = min(pod.name, first.get(at, pod.name))
        self._named = {
            phase: [(name, n) for (of, nodes), name in first.items() if of == phase for n in nodes] for phase in PHASES
        }
        self._where = {phase: frozenset(nodes for of, nodes in first if of == phase) for phase in PHASES}
        self._on: dict[EquivalenceClass, dict[int, str]] = {}
        for member in asked.gang.members:
            if member.uid in places:
                self._on.setdefault(asked.equivalence_class(member), {})[places[member.uid]] = member.uid
        # What its own pods have matters to advice only, and that only to who is left out.
        left_out = len(places) < len(asked.members)
        self._own: Amount2D | None = held_by_gang(asked.gang, snapshot, places) if left_out else None
        self._classes: dict[EquivalenceClass, _ClassDecisions] = {}
        self._views: dict[object, _ClassView] = {}
        self.decisions: dict[str, Decision] = {}
        self.equivalents: dict[str, str] = {}
        for member in asked.members:
            made = self._of_class(member).decision(member, places.get(member.uid))
            self.decisions[member.uid], self.equivalents[member.uid] = made

    def _of_class(self, member: PodRequest) -> _ClassDecisions:
        each, bound = self._asked.equivalence_class(member), self._asked.gang.bound
        if each not in self._classes:
            partners = self._named[other_phase(member.phase)]
            self._classes[each] = _ClassDecisions(self._view_of(member, each, partners), partners, bound)
        return self._classes[each]

    def _view_of(self, member: PodRequest, each: EquivalenceClass, partners: Named) -> _ClassView:
        """Both phases see the same where they request the same and are, as their partners are, on the same nodes."""
        need, mine = self._asked.needs[member.uid], self._on.get(each, {})
        phase = member.phase if need.devices is not None else ""
        key = id(need), self._where[other_phase(member.phase)], tuple(sorted(mine)), phase
        if key not in self._views:
            need = need if self._own is None else replace(need, own=self._own)
            self._views[key] = _ClassView(self._after, need, partners, self._asked.gang.bound, self._policy, mine)
        return self._views[key]


_Found = tuple[NDArray[np.int64], Mapping[VerdictCode, Verdict], list[Candidate]]
"""Nodes per verdict, nearest misses and the best nodes."""


class _ClassView:
    """Every node as pods of one need see it with everybody in place, and their own nodes as each sees its own. `mine`:
    one uid for each node of theirs."""

    def __init__(
        self,
        after: Snapshot,
        need: PodFit,
        partners: Named,
        bound: ReachBound,
        policy: Policy,
        mine: Mapping[int, str],
    ) -> None:
        self.after, self.need, self._bound = after, need, bound
        reach_us = reach_to(after.table, partners, bound) if partners else after.table.reach.self_us(bound.size_bytes)
        rails = {node for _, node in partners}
        self.evaluated = evaluate(after, need, reach_us, bound, policy, None, rails)
        self.counts = counts_of(self.evaluated)
        self.ranking = ranking_of(self.evaluated, KEEP + 1)
        # Each one's own node, without one of them on it: on different nodes they do not see each other.
        nodes = np.array(sorted(mine), dtype=np.int64)
        self.without = after.without_assumed(mine.values()) if mine else after
        self.own = evaluate(self.without, need, reach_us, bound, policy, nodes, rails)
        self.short = shortages(after, self.evaluated, need, bound)
        self._candidates: dict[tuple[bool, int, int], Candidate] = {}

    def candidate(self, evaluated: Evaluation, at: int, partners: Named) -> Candidate:
        """A node of `evaluated` or `own` as a candidate; of its partners at most one, who decides for it."""
        key = evaluated is self.own, at, partners[0][1] if partners else -1
        if key not in self._candidates:
            self._candidates[key] = candidate_of(self.after, evaluated, at, partners, self._bound)
        return self._candidates[key]


class _ClassDecisions:
    """Members of one phase and need, and what they find beside their partners."""

    def __init__(self, view: _ClassView, partners: Named, bound: ReachBound) -> None:
        self._view, self._bound = view, bound
        after, evaluated = view.after, view.evaluated
        self._deciding = Deciding(after.table, partners, bound)
        self._nearest: Mapping[VerdictCode, Verdict] = view.short | too_far(after, evaluated, bound, partners)
        self._first: dict[int, Decision] = {}
        self._on: dict[int, _Found] = {}
        self._ranked = {
            (node := int(evaluated.nodes[i])): view.candidate(evaluated, i, self._deciding.of(node))
            for i in view.ranking
        }

    def decision(self, member: PodRequest, node: int | None) -> tuple[Decision, str]:
        """The record of one member; on a node of its own it is judged there as if it were not there yet. And the uid of
        the first twin on that node: what is said of one is said of the other."""
        if node is None:
            after, ranked = self._view.after, list(self._ranked.values())[:KEEP]
            made = record_of(after, member, self._view.counts, self._nearest, ranked, self._bound, (), None)
            return replace(made, too_large=too_large(after, self._view.need)), member.uid
        first = self._first.get(node)
        if first is not None and _one_record(first.request, member):
            return _of_equivalent(first, member), first.request.uid
        if node not in self._on:
            self._on[node] = self._found_on(member, node)
        counts, nearest, ranked = self._on[node]
        now = self._view.after if nearest is self._nearest else self._view.after.without_assumed([member.uid])
        made = record_of(now, member, counts, nearest, ranked, self._bound, self._deciding.of(node), node)
        self._first.setdefault(node, made)
        return made, member.uid

    def _found_on(self, member: PodRequest, node: int) -> _Found:
        view = self._view
        now, counts, nearest = view.after, view.counts.copy(), self._nearest
        at = int(np.searchsorted(view.own.nodes, node))
        before, code = int(view.evaluated.codes[node]), int(view.own.codes[at])
        counts[before] -= 1
        counts[code] += 1
        known = nearest.get(VerdictCode(before))
        if code != VerdictCode.ELIGIBLE or (known is not None and known.node == now.table.names[node]):
            now = now.without_assumed([member.uid])
            nearest = nearest_misses(now, self._with(node, at), view.need, self._bound, self._deciding)
        mine = view.candidate(view.own, at, self._deciding.of(node))
        others = [candidate for there, candidate in self._ranked.items() if there != node]
        return counts, nearest, [mine, *others][:KEEP]

    def _with(self, node: int, at: int) -> Evaluation:
        """All verdicts, with this node's own one; scores are of no use any more, reach is."""
        evaluated, own = self._view.evaluated, self._view.own
        codes, short_of = evaluated.codes.copy(), evaluated.short_of.copy()
        codes[node], short_of[node] = own.codes[at], own.short_of[at]
        return replace(evaluated, codes=codes, short_of=short_of)


def _one_record(a: PodRequest, b: PodRequest) -> bool:
    """Whether what is recorded of one member holds for another of its class on the same node: both are written alike,
    and amounts say all of it, since what pods hold on cards is each one's own."""
    return a.hold is None and (a.amounts, a.gpu, a.problem) == (b.amounts, b.gpu, b.problem)


def _of_equivalent(first: Decision, member: PodRequest) -> Decision:
    """The decision of a pod on the node of its twin."""
    pair = first.partner
    if pair is not None:
        mine = member.phase == PREFILL
        pair = PairReach(member.name if mine else pair.prefill, pair.decode if mine else member.name, pair.reach)
    return replace(first, id=decision_id(member.uid, first.snapshot_id), request=member, partner=pair)
