"""Why a node is out: a closed enum with numbers, never a sentence (those live in scheduler/explain).

*Filtered* means never as things stand on the node or the request; *exhausted* means later, when room comes.
The order of the members is the order of severity: a node gets the first that applies, so counts add up to the nodes
looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from topology.reach.model import Reach

GPU_BYTES: Final = "gpu-bytes"
"""Unit of a verdict: memory of one card, not of the host."""

GPUS: Final = "cards"
"""Unit of a verdict: cards that can take the pod, whole or in part."""


class VerdictCode(IntEnum):
    """One reason for one node. 0 is kept for nodes that are not ruled out."""

    ELIGIBLE = 0
    NODE_NOT_ACCEPTED = 1  # down, cordoned, tainted, or not selected by the pod itself
    RESOURCE_MISSING = 2  # the node has none of a resource that is asked for
    INSUFFICIENT_GPU = 3
    INSUFFICIENT_MEMORY = 4
    INSUFFICIENT_OTHER = 5  # cpu, pod count, any other resource
    REACH_EXCEEDED = 6  # room here, but a partner is, or would have to be, beyond the bound
    GANG_TOO_LARGE = 7  # room for this pod, not for all that must come with it, within the bound


@dataclass(frozen=True, slots=True)
class Verdict:
    """The nearest miss of one code: which node, what was needed, what it has, in which unit (`us`, `gpus`, ...).

    `suffices`: this gap is all that keeps one pod off the node, so "free 2 GPUs" would be true advice for it.
    `partner` and `reach`: from whom the node is too far, and how that is known, where a partner has a place.
    """

    code: VerdictCode
    node: str
    need: float
    have: float
    unit: str
    suffices: bool = False
    mixed: bool = False
    """Nodes counted under this code lack different things, of which this verdict names one."""
    partner: str = ""
    reach: Reach | None = None
