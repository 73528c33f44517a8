"""Weights and limits of a decision, one block, each with its unit and reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weight:
    """A part of the score that begins at `start` points: `per_gpu` points down for every GPU lost per GPU asked for, up
    for every one mended, cut at 0 and at `of`."""

    per_gpu: float
    of: float
    start: float


@dataclass(frozen=True, slots=True)
class CapacityWeights:
    """How a placement is judged by the room it leaves (scheduler/evaluate/placement_cost.py), 40 points in all.

    The ratios within one block decide between nodes that are equally near. They were chosen on the openb trace, on
    orders of arrival other than those that `python -m e2e.bench openb` reports; any one halved or doubled moves its
    default list by less than 0.02 points. The scale decides against reach: a GPU lost for a pod of one GPU is worth 8
    points, as much as two and a half times the reach.
    """

    remainder: Weight
    """GPU left over that the mix cannot turn into service."""

    fragmentation: Weight
    """The FGD measure."""

    balance: Weight
    """GPUs that no CPU is left for, or CPU that no GPU is left for, in GPUs, by what the mix asks for."""

    scarcity: Weight
    """GPUs of a model that other pods cannot do without, times how scarce it is. Never mended, so it starts full."""

    width: Weight
    """GPUs that the host has less than 8: on a wide host many GPUs share the CPU that a remainder needs. It is the host
    that it is, so it starts full; only a pod that shares a GPU has it."""

    mig: Weight
    """Memory of MIG cards that no instance of the mix can use for want of a place, in cards; only a pod that asks for
    MIG profiles has it."""

    order: float
    """A fixed order of the nodes, by name: filling them in order leaves whole ones whole. Never 0: scores stay
    distinct, since Volcano breaks ties at random and an explanation could then not be repeated."""


_NONE = Weight(per_gpu=0.0, of=0.0, start=0.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults that ship. Points add up to 100, so a score means something without a manual."""

    reach_points: float = 60.0
    """Closeness to the partners; first, because latency is what the user asked for."""

    sharing: CapacityWeights = CapacityWeights(
        remainder=Weight(per_gpu=40.0, of=26.0, start=10.0),
        fragmentation=Weight(per_gpu=0.6, of=2.0, start=1.0),
        balance=Weight(per_gpu=1.8, of=5.0, start=3.0),
        scarcity=Weight(per_gpu=4.6, of=5.0, start=5.0),
        width=Weight(per_gpu=0.3, of=1.8, start=1.8),
        mig=_NONE,
        order=0.2,
    )
    """A pod that takes a share of one GPU: what remains of that GPU is by far the most; the rest breaks its ties."""

    whole: CapacityWeights = CapacityWeights(
        remainder=_NONE,
        fragmentation=Weight(per_gpu=8.0, of=24.0, start=16.0),
        balance=Weight(per_gpu=2.4, of=10.0, start=6.0),
        scarcity=Weight(per_gpu=3.0, of=5.0, start=5.0),
        width=_NONE,
        mig=_NONE,
        order=1.0,
    )
    """A pod that takes whole GPUs leaves no remainder: fragmentation first, then balance."""

    without_gpu: CapacityWeights = CapacityWeights(
        remainder=_NONE,
        fragmentation=Weight(per_gpu=8.0, of=28.0, start=20.0),
        balance=Weight(per_gpu=1.8, of=11.0, start=5.5),
        scarcity=_NONE,
        width=_NONE,
        mig=_NONE,
        order=1.0,
    )
    """A pod without GPUs harms by the CPU that it takes away from GPUs, and mends where CPU is over."""

    instances: CapacityWeights = CapacityWeights(
        remainder=_NONE,
        fragmentation=_NONE,
        balance=_NONE,
        scarcity=_NONE,
        width=_NONE,
        mig=Weight(per_gpu=19.5, of=39.0, start=19.5),
        order=1.0,
    )
    """A pod that asks for MIG instances takes no part of a whole card, so the places of the others are all that it can
    harm. One instance is on one card: the worst there is takes the whole card from the mix, the best gives it back."""

    volcano_weight: float = 10.0
    """Score points are multiplied by this for Volcano, which adds the scores of all plugins unweighted: its own ones
    differ by tens between nodes of a usual cluster (0 to 100 each), ours by up to 1,000."""

    search_budget: int = 5_000
    """Placements a plan may try before it answers `undecided`. A count, not a time, so a plan can be repeated."""

    joint_pods: int = 128
    """Pods that are weighed against each other, every one against every one. A larger gang is placed domain by domain:
    weighing takes a tenth of a second for so many, and more than in proportion for more."""

    memory_reserve: float = 0.15
    """Share of each card that nothing is planned into. Drivers, contexts and allocators take what no request names, and
    a card that is promised to the last byte fails its pods one by one."""

    peak_limit: float = 0.85
    """Share of each card that requests and prefill peaks together may reach. All peaks of a card share one head-room,
    since each is given back; this is how far that may go. At most 1 less the reserve."""

    improve_budget: int = 1_200
    """Placements a plan may try after its first complete one, to find a better one; the best so far counts then."""

    reach_worst_points: float = 40.0
    """Cost of a plan whose farthest pair is at the bound. Latency is what the user asked for, and its worst is felt."""

    reach_mean_points: float = 20.0
    """Cost of a plan whose pairs are at the bound on average: half of the worst's, since most requests see it."""

    lost_points: float = 12.0
    """Cost of a plan that takes a GPU from the expected pods for every GPU it uses. Small beside the reach: room
    decides between places that are about as near, and a gang is not torn from its node for it."""

    rail_points: float = 1.0
    """Points of the reach that go to network rails where agents tell them, and the cost of a plan whose GPUs are all
    off their partners' rails: pages then take one tier of switches more, worth half a point of reach over RDMA."""

    root_points: float = 8.0
    """Cost of a plan on nodes whose PCI roots have room for no prefill pod beside its decode pods. Less than what it
    costs to leave the node for its neighbour under the leaf, over TCP: a gang is not torn from its node for it."""

    set_points: float = 10.0
    """Cost of a plan whose isochrone set is one node, a tenth of it for ten: a pod with one node to go to is stuck when
    that node fails before it is bound."""
