"""Plans, decisions and rankings as plain data for the behaviour record: our own keys, numbers, names of objects.

Every field of the project's values that the record reads is read here, once each, so that a renamed field is renamed in
one place and the record stays equal. No sentence for people goes in, no id, no age.
"""

from enum import Enum
from typing import Any

from scheduler.extender.decide import Ranking
from scheduler.model.decision import Candidate, Decision, PairReach, Plan, Shortfall, TooLarge
from scheduler.model.reason import reason_of
from scheduler.model.verdict import GPU_BYTES, GPUS, Verdict
from topology.cluster.isochrone_sets import NodeSet
from topology.cluster.snapshot import Snapshot
from topology.reach.model import Reach

Data = Any
"""What JSON can say."""

_UNITS = {GPUS: "devices", GPU_BYTES: "device-bytes"}


def public(value: object) -> str | None:
    """A phrase of a closed set that people see, whether it is a string or a member of an enum; None stays."""
    return None if value is None else str(value.value if isinstance(value, Enum) else value)


def plan_data(made: Plan) -> Data:
    """A plan whole: places, sets, terms and cost, or what is short, and the decision of every pod by its name."""
    names = {member.uid: member.name for member in made.request.members}
    terms = made.terms
    return {
        "outcome": public(made.outcome),
        "reason": public(reason_of(made)),
        "bound_us": float(made.request.bound.us),
        "places": {names[uid]: node for uid, node in made.places.items()},
        "sets": {names[uid]: _set(found) for uid, found in made.sets.items()},
        "worst": _pair(made.worst),
        "cost": float(made.cost),
        "terms": None
        if terms is None
        else {
            "worst_us": float(terms.worst_us),
            "mean_us": float(terms.mean_us),
            "gpus_lost": float(terms.lost_gpus),
            "set_nodes": int(terms.nodes),
            "across_roots": float(terms.split_groups),
            "off_rails": float(terms.off_rail),
        },
        "short": _short(made.shortfall),
        "pods": {
            each.request.name: {"reason": public(reason_of(made, each)), **decision_data(each)}
            for each in made.decisions.values()
        },
    }


def ranking_data(ranking: Ranking) -> Data:
    """The decision of one pod and the score of every node asked about."""
    scores = {node: float(score) for node, score in ranking.scores.items()}
    return {"scores": scores, **decision_data(ranking.decision)}


def decision_data(decision: Decision) -> Data:
    """One pod: nodes by verdict (its number), the nearest miss of each, the best nodes, the choice, its GPUs."""
    pick = decision.pick
    return {
        "nodes": decision.node_count,
        "eligible": decision.eligible,
        "out": {str(int(code)): int(count) for code, count in decision.ruled_out.items()},
        "nearest": {str(int(code)): _verdict(miss) for code, miss in decision.nearest.items()},
        "ranked": [_candidate(each) for each in decision.ranked],
        "chosen": decision.chosen,
        "pair": _pair(decision.partner),
        "gpus": None if pick is None else [list(pick.gpus), pick.predicted, pick.joined, bool(pick.better)],
        "too_large": _too_large(decision.too_large),
    }


def used_data(snapshot: Snapshot) -> Data:
    """What is taken of every node, by node and resource; nothing for what is free."""
    columns = snapshot.table.column
    return {
        name: {resource: int(snapshot.used[at, column]) for resource, column in columns.items()}
        for at, name in enumerate(snapshot.table.names)
    }


def card_data(snapshot: Snapshot) -> Data:
    """What is left of every card of a cluster, by node in the order of the table."""
    gpus = snapshot.gpus
    return {
        "left_mib": gpus.left_mib.tolist(),
        "left_milli": gpus.left_milli.tolist(),
        "memory_mib": gpus.memory_mib.tolist(),
        "overcommitted": gpus.overcommitted.tolist(),
        "partly_unknown": {snapshot.table.names[node]: len(why) for node, why in gpus.doubts.items()},
    }


def _candidate(candidate: Candidate) -> Data:
    return {
        "node": candidate.node,
        "score_nano": int(candidate.score_nano),
        "parts": [[part.name, int(part.points_nano), float(part.of)] for part in candidate.parts],
        "reach": _reach(candidate.reach),
        "within": bool(candidate.within),
        "roots": None if candidate.roots is None else list(candidate.roots),
    }


def _verdict(miss: Verdict) -> Data:
    return {
        "node": miss.node,
        "need": float(miss.need),
        "have": float(miss.have),
        "unit": _unit(miss.unit),
        "suffices": bool(miss.suffices),
        "mixed": bool(miss.mixed),
        "partner": miss.partner,
        "reach": _reach(miss.reach),
    }


def _short(short: Shortfall | None) -> Data:
    if short is None:
        return None
    return {
        "needed_gpus": short.needed_gpus,
        "closest": _pair(short.closest),
        "best_gpus": short.best_gpus,
        "best_where": short.best_where,
        "cluster_gpus": short.cluster_gpus,
        "own_gpus": short.held_gpus,
        "beyond_cluster": short.beyond_cluster,
        "remedies": [[float(each.amount), _unit(each.unit), each.node] for each in short.remedies],
    }


def _too_large(large: TooLarge | None) -> Data:
    return None if large is None else [int(large.need), int(large.largest), _unit(large.unit), bool(large.anywhere)]


def _pair(pair: PairReach | None) -> Data:
    return None if pair is None else [pair.prefill, pair.decode, _reach(pair.reach)]


def _reach(reach: Reach | None) -> Data:
    return None if reach is None else float(reach.us)


def _set(nodes: NodeSet) -> Data:
    return [nodes.key, list(nodes.values), nodes.nodes]


def _unit(unit: object) -> str:
    text = str(public(unit))
    # Of what no node has, the verdict may carry a phrase in place of a resource's name.
    return "a phrase" if " " in text else _UNITS.get(text, text)
