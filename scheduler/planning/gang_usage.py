"""What a gang's own pods hold on the nodes: nobody is told to free that for the gang's other pods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduler.model.request import GangRequest
from topology.cluster.snapshot import Amount2D, Snapshot
from topology.resources import readable_request


def held_by_gang(gang: GangRequest, snapshot: Snapshot, places: Mapping[str, int] | None = None) -> Amount2D:
    """What partners hold, and members on the nodes (indices) that they are planned on: (N, R), columns of the table.

    A released partner counts where it is assumed to be; one of which nobody knows what it asks for counts nothing.
    """
    table = snapshot.table
    own = np.zeros_like(table.allocatable)
    for partner in gang.partners:
        if (assumed := snapshot.assumed.get(partner.uid)) is not None:
            node, amounts = assumed.node, assumed.amounts
        elif partner.bound and partner.spec is not None:
            node, amounts = partner.nodes[0], readable_request(partner.spec)[0]
        else:
            continue
        if (at := table.index.get(node)) is not None:
            own[at] += table.vector(amounts)[0]
    for member in gang.members:
        if places is not None and (planned := places.get(member.uid)) is not None:
            own[planned] += table.vector(member.amounts)[0]
    own.setflags(write=False)
    return own
