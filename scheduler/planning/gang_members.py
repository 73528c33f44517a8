"""A gang against one node table: its members by equivalence class, what each needs, where the partners are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import PodFit, fit_of
from scheduler.evaluate.partner_reach import nodes_of
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest
from topology.cluster.snapshot import Amount2D, Assumed, Snapshot
from topology.labels import PHASES

EquivalenceClass = tuple[str, int]
"""Phase, and which need of the gang's: equal for members that can be swapped."""

Places = dict[str, int]  # pod uid to node index


@dataclass(frozen=True, slots=True)
class GangMembers:
    """Members in the order of phases and names; `needs` by uid, one object for members that request the same of this
    cluster; `partners` by phase, the nodes of each."""

    gang: GangRequest
    members: Sequence[PodRequest]
    needs: Mapping[str, PodFit]
    partners: Mapping[str, list[NDArray[np.int64]]]

    @classmethod
    def of(cls, gang: GangRequest, snapshot: Snapshot, policy: Policy) -> GangMembers:
        """The one place that says which members request the same: whose need is equal in every column, in who accepts
        them and in what they need of cards. It is worked out once for members whose requests are equal as written."""
        read: dict[tuple[object, ...], PodFit] = {}
        distinct: dict[tuple[object, ...], PodFit] = {}
        needs = {}
        for member in gang.members:
            written = id(member.spec), tuple(sorted(member.amounts.items())), member.phase, member.gpu, member.problem
            if written not in read:
                need = fit_of(member, snapshot, policy)
                key = need.row.tobytes(), need.accepts.tobytes(), need.missing, need.devices
                read[written] = distinct.setdefault(key, need)
            needs[member.uid] = read[written]
        return cls(
            gang=gang,
            members=sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)),
            needs=needs,
            partners={phase: nodes_of(gang.partners, phase, snapshot.table) for phase in PHASES},
        )

    def equivalence_class(self, member: PodRequest) -> EquivalenceClass:
        """Equal for members that are interchangeable."""
        return member.phase, id(self.needs[member.uid])

    def by_class(self, members: Iterable[PodRequest]) -> dict[EquivalenceClass, list[PodRequest]]:
        """These members by equivalence class, in their order."""
        classes: dict[EquivalenceClass, list[PodRequest]] = {}
        for member in members:
            classes.setdefault(self.equivalence_class(member), []).append(member)
        return classes

    def beside(self, own: Amount2D) -> GangMembers:
        """The same, knowing what the gang's pods hold, (N, R): nobody is told to free that."""
        with_own = {id(need): replace(need, own=own) for need in self.needs.values()}
        return replace(self, needs={uid: with_own[id(need)] for uid, need in self.needs.items()})

    def placed(self, places: Places) -> list[PodRequest]:
        """Members that have places among these."""
        return [member for member in self.members if member.uid in places]

    def assumed(self, snapshot: Snapshot, places: Places) -> Snapshot:
        """The cluster with these members in their places."""
        names = snapshot.table.names
        return snapshot.with_assumed(
            {m.uid: Assumed(names[places[m.uid]], m.amounts, m.hold) for m in self.placed(places)}
        )
