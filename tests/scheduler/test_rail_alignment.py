"""Network rails: which nodes' GPUs are on the rails of a pod's partners, in the score and in plans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduler.evaluate.rail_alignment import Placed, gang_rails, off_rail
from scheduler.extender.decide import decide
from scheduler.model.decision import NANO
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node, partner
from topology.cluster.agent_gpus import AgentGpus
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.gpus.gpu_request import whole_gpus
from topology.gpus.rails import rail_capacity
from topology.gpus.sets import GpuLinks
from topology.gpus.table import GpuStatic
from topology.labels import DECODE, PHASES, PREFILL

GPU = "nvidia.com/gpu"


def cluster(taken: Mapping[str, Sequence[int]], rails: Mapping[str, Sequence[int | None]], gpus: int = 4) -> Snapshot:
    """Nodes of one leaf over RDMA with NVSwitch, with these GPUs taken; an agent tells the rails of some."""
    link_types = tuple(tuple("X" if a == b else "NV18" for b in range(gpus)) for a in range(gpus))
    seen = {
        name: AgentGpus(
            uuids=tuple(f"{name}-{i}" for i in range(gpus)),
            usable_mib=(81559,) * gpus,
            split=(False,) * gpus,
            healthy=(True,) * gpus,
            links=GpuLinks(link_types, (0,) * gpus, tuple(of), rails_known=True),
        )
        for name, of in rails.items()
    }
    nodes = [node(n, zone="z1", spine="s1", leaf="l1", rdma=True, nvswitch=True, gpus=gpus) for n in taken]
    table = NodeTable(nodes, devices=seen)
    used = np.zeros_like(table.allocatable)
    for name, busy in taken.items():
        used[table.index[name], table.column[GPU]] = len(busy)
    in_use = {name: tuple(f"{name}-{i}" for i in busy) for name, busy in taken.items()}
    return Snapshot("s1", 0.0, table, used, in_use=in_use)


FOUR = (0, 1, 2, 3)
THREE = {"n1": (0, 1), "n2": (2, 3), "n3": (0, 1)}


def pair(gpus: int = 2) -> GangRequest:
    made = gang(gpus=gpus)
    return replace(made, members=tuple(replace(m, gpu=whole_gpus(gpus)) for m in made.members))


def test_a_pair_goes_where_its_gpus_are_on_the_same_rails() -> None:
    # n1 and n3 have their GPUs 2 and 3 free, n2 its 0 and 1; all else is alike, and by name it would be n1 and n2.
    made = plan(pair(), cluster(THREE, dict.fromkeys(THREE, FOUR)))
    assert set(made.places.values()) == {"n1", "n3"}
    assert made.terms is not None
    assert made.terms.off_rail == 0.0
    # Where nobody tells the rails, names decide.
    assert set(plan(pair(), cluster(THREE, {})).places.values()) == {"n1", "n2"}


def test_the_rails_of_a_gang_by_hand() -> None:
    rails = gang_rails(cluster(THREE, dict.fromkeys(THREE, FOUR)), ((), ()))
    assert rails is not None
    apart = [Placed(False, 2, 0), Placed(True, 2, 1)]
    assert rails.off(apart) == 1.0  # 2 and 3 here, 0 and 1 there
    assert rails.off([Placed(False, 2, 0), Placed(True, 2, 2)]) == 0.0
    # One GPU of 2 and 3 against both: rail 2 has its partner, of the two GPUs one has not. 1 of 3.
    assert rails.off([Placed(False, 1, 0), Placed(True, 2, 2)]) == pytest.approx(1 / 3)
    assert rails.off([Placed(False, 1, 0), Placed(True, 1, 0)]) == 0.0  # on one node no network card matters
    # A partner on n2 has GPUs 2 and 3 in use: n1's are on its rails.
    there = gang_rails(cluster(THREE, dict.fromkeys(THREE, FOUR)), ((1,), ()))
    assert there is not None
    assert there.off([Placed(True, 2, 0)]) == 0.0


def test_rails_are_a_part_of_the_score() -> None:
    # The partner on n2 has GPUs 2 and 3. n1 offers 2 and 3, n3 has 0 and 1 free here, of n4 nobody tells.
    taken = {"n1": (0, 1), "n2": (2, 3), "n3": (2, 3), "n4": (0, 1)}
    snapshot = cluster(taken, dict.fromkeys(("n1", "n2", "n3"), FOUR))
    asked = pair().members[0]
    other = DECODE if asked.phase == PREFILL else PREFILL
    made = decide(asked, snapshot, snapshot.table.names, [partner("p", other, "n2")]).decision
    points = {c.node: {p.name: p.points_nano / NANO for p in c.parts} for c in made.ranked}
    assert {name: of["rails"] for name, of in points.items()} == {"n1": 1.0, "n2": 1.0, "n3": 0.0, "n4": 0.5}
    for candidate in made.ranked:
        assert sum(part.of for part in candidate.parts) == pytest.approx(100)
        assert sum(part.points_nano for part in candidate.parts) == candidate.score_nano
    # Where nobody tells the partner's rails there is no such part.
    blind = decide(asked, cluster(taken, {"n1": FOUR}), snapshot.table.names, [partner("p", other, "n2")]).decision
    assert [part.name for part in blind.ranked[0].parts][:1] == ["reach"]
    assert "rails" not in {part.name for part in blind.ranked[0].parts}
    assert off_rail(snapshot, 0, np.arange(4), {1}) is None


def off_by_hand(snapshot: Snapshot, asked: GangRequest, places: Mapping[str, str]) -> float:
    """The definition: every pod takes the lowest free GPUs of its node (they are all joined alike), prefill first, the
    wider first; a GPU is off where the other phase has no GPU on its rail on any other node, if it has any there."""
    taken: dict[str, set[int]] = {}
    got: list[tuple[str, str, list[int | None]]] = []
    for member in sorted(asked.members, key=lambda m: (PHASES.index(m.phase), -m.gpus, places[m.uid])):
        at = places[member.uid]
        links = snapshot.table.gpus_of(snapshot.table.index[at]).links
        if links is None:
            continue
        busy = taken.setdefault(at, {int(u.split("-")[1]) for u in snapshot.in_use[at]})
        mine = [i for i in range(len(links.link_types)) if i not in busy][: member.gpus]
        busy |= set(mine)
        got.append((member.phase, at, [links.rails[i] for i in mine]))
    off = 0
    for phase, at, rails in got:
        theirs = {r for p, n, others in got if p != phase and n != at for r in others if r is not None}
        off += sum(1 for rail in rails if rail not in theirs) if theirs else 0
    return off / sum(m.gpus for m in asked.members)


def test_plans_with_rails_cost_as_little_as_any() -> None:
    decided = 0
    for seed in range(40):
        random = Random(seed)
        names = ["n1", "n2", "n3"]
        taken = {name: sorted(random.sample(range(4), random.randint(1, 3))) for name in names}
        reported = {name: random.sample((0, 1, 2, None), 4) for name in names if random.random() < 0.85}
        snapshot, gpus = cluster(taken, reported), random.randint(1, 2)
        asked = gang(random.randint(1, 2), random.randint(1, 2), gpus=gpus)
        asked = replace(asked, min_prefill=len([m for m in asked.members if m.phase == PREFILL]))
        asked = replace(asked, min_decode=len(asked.members) - asked.min_prefill)
        table, span, best, plain = snapshot.table, math.log1p(asked.bound.us / 5), math.inf, math.inf
        for where in itertools.product(names, repeat=len(asked.members)):
            if any(where.count(name) * gpus > 4 - len(taken[name]) for name in names):
                continue
            places = {m.uid: at for m, at in zip(asked.members, where, strict=True)}
            of = {p: [places[m.uid] for m in asked.members if m.phase == p] for p in PHASES}
            us = [
                table.reach.between(table.index[a], table.index[b], asked.bound.size_bytes).us
                for a in of[PREFILL]
                for b in of[DECODE]
            ]
            cost = 40 * math.log1p(max(us) / 5) / span + 20 * math.log1p(sum(us) / len(us) / 5) / span + 10 / 3
            for name in names:
                free = 4 - len(taken[name])
                left = free - where.count(name) * gpus
                use = [f * sum(0.25 for k in (1, 2, 4, 8) if f >= k) for f in (free, left)]
                cost += 12 * (use[0] - use[1]) / (gpus * len(where))
            best = min(best, cost + off_by_hand(snapshot, asked, places))
            plain = min(plain, cost)
        made = plan(asked, snapshot, advise=False)
        assert bool(made.places) == math.isfinite(best)
        if made.places:
            assert made.terms is not None
            assert made.terms.off_rail == pytest.approx(off_by_hand(snapshot, asked, made.places))
            assert made.cost == pytest.approx(best)
            decided += best > plain + 1e-9
    assert decided > 3  # rails did matter


@pytest.mark.parametrize("reported", [False, True])
def test_free_gpus_by_rail_are_counted_anew_where_something_changed(reported: bool) -> None:
    random, names = Random(7), [f"n{i:02}" for i in range(20)]
    start = cluster(dict.fromkeys(names, ()), dict.fromkeys(names, FOUR))
    for _ in range(30):
        some = random.sample(names, random.choice((1, 3, 15)))
        used, in_use = start.used.copy(), dict(start.in_use) if reported else {}
        for name in some:
            busy = random.sample(range(4), random.randint(0, 4))
            used[start.table.index[name], start.table.column[GPU]] = len(busy)
            if reported:
                in_use[name] = tuple(f"{name}-{i}" for i in busy)
        start = replace(start, used=used, in_use=in_use)
        capacity, fresh = start.rail_capacity(), GpuStatic(start.table.gpus_of(i) for i in range(20))
        anew = rail_capacity(fresh, start.table.names, used[:, start.table.column[GPU]], in_use)
        assert (capacity.free.tolist(), capacity.taken.tolist()) == (anew.free.tolist(), anew.taken.tolist())
        by_hand = [sum(1 << i for i in range(4) if f"{n}-{i}" in in_use.get(n, ())) for n in names]
        assert not reported or capacity.taken.tolist() == by_hand
        assert (capacity.free + capacity.taken == 15).all()
