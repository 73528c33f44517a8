"""The words that every explanation is put together from: counts, gaps, scores and names, each in one way only.

Rules of this file. (1) It turns values into words and decides nothing. (2) Whatever it returns is one line, and `clip`
keeps it within a limit. (3) Lists are sorted by count, then text, and name three at most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from scheduler.model.decision import NANO, Candidate, Decision, PairReach, Plan, Remedy, Shortfall, TooLarge
from scheduler.model.request import GangRequest
from scheduler.model.verdict import GPU_BYTES, GPUS, Verdict, VerdictCode
from topology.cluster.isochrone_sets import NodeSet
from topology.facts.age import AgentAge, FactPart, age_text
from topology.labels import DECODE, MIN_DECODE, MIN_PREFILL, PHASES, PREFILL, REACH
from topology.reach.model import Reach
from topology.units import show_age, show_bytes, show_us

EVENT_BYTES: Final = 1000
"""The API server refuses a note above 1,024 bytes; the rest is for whoever prefixes it."""

LINE_CHARS: Final = 130
"""kubectl cuts each line of a described annotation at 138 characters, its indent included."""

NAMES_SHOWN: Final = 3
NAME_CHARS: Final = 63
"""Names longer than a DNS label are cut in the middle: both ends say which one it is."""

_CAPACITY: Final = (VerdictCode.INSUFFICIENT_GPU, VerdictCode.INSUFFICIENT_MEMORY, VerdictCode.INSUFFICIENT_OTHER)

PHRASES: Final[dict[VerdictCode, str]] = {
    VerdictCode.ELIGIBLE: "eligible",
    VerdictCode.NODE_NOT_ACCEPTED: "not open to the pod",
    VerdictCode.RESOURCE_MISSING: "without a resource the pod asks for",
    VerdictCode.INSUFFICIENT_GPU: "without enough free GPUs",
    VerdictCode.INSUFFICIENT_MEMORY: "without enough free memory",
    VerdictCode.INSUFFICIENT_OTHER: "short of another resource",
    VerdictCode.REACH_EXCEEDED: "beyond reach",
    VerdictCode.GANG_TOO_LARGE: "with room for one pod but not for all within reach",
}
"""One phrase per verdict, to follow a count of nodes; `counts` makes it exact where the numbers are known."""

_GPU_MEMORY: Final = "without enough free GPU memory"

_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def clip(text: str, limit: int, *, count_bytes: bool = False) -> str:
    """One line of at most `limit` characters, or bytes; what is cut is marked, and no character is cut in two."""
    line = _BREAKS.sub(" ", text).strip()
    size = len(line.encode()) if count_bytes else len(line)
    if size <= limit:
        return line
    if count_bytes:
        return line.encode()[: limit - 3].decode(errors="ignore").rstrip() + "..."
    return line[: limit - 3].rstrip() + "..."


def name_of(name: str) -> str:
    """A name of an object; a long one is cut in the middle."""
    if len(name) <= NAME_CHARS:
        return name
    half = (NAME_CHARS - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def names_of(names: Iterable[str], separator: str = ", ") -> str:
    """Up to three names, then a count of the rest."""
    every = list(names)
    shown = separator.join(name_of(n) for n in every[:NAMES_SHOWN])
    more = len(every) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def plural(count: int, thing: str) -> str:
    """`1 node`, `16 nodes`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def amount(value: float, unit: str, adjective: str = "") -> str:
    """A quantity in the unit of a verdict or remedy: `4 GPUs`, `64.0 GiB`, `2.5 cores`, `1 pod slot`."""
    given = f"{adjective} " if adjective else ""
    match unit:
        case "us":
            return show_us(value)
        case "gpus":
            return plural(int(value), f"{given}GPU")
        case "bytes":
            return f"{show_bytes(value)} of {given}memory" if given else f"{show_bytes(value)} of memory"
        case "gpu-bytes":
            return f"{show_bytes(value)} of {given}GPU memory"
        case "cards":
            return plural(int(value), f"{given}GPU")
        case "millicores":
            return f"{value / 1000:.3g} {given}{'core' if value == 1000 else 'cores'}"
        case "pods":
            return plural(int(value), f"{given}pod slot")
        case _:
            return f"{int(value)} {given}{unit}"


def counts(decision: Decision, *, decided: bool = True) -> str:
    """`16 nodes checked, 8 beyond reach, 8 without 4 free GPUs`: every node that was looked at, none twice.

    `decided` is False where the search ended early: then nobody knows whether the gang fits around a node.
    """
    parts = [(n, _phrase(code, decision, decided=decided)) for code, n in decision.ruled_out.items()]
    if decision.eligible:
        parts.append((decision.eligible, PHRASES[VerdictCode.ELIGIBLE]))
    return ", ".join([f"{plural(decision.node_count, 'node')} checked", *_listed(parts)])


def ruled_out(decision: Decision) -> str:
    """`13 of 16: 9 beyond reach, 4 without 4 free GPUs`; empty where every node is eligible."""
    parts = [(n, _phrase(code, decision)) for code, n in decision.ruled_out.items()]
    out = decision.node_count - decision.eligible
    return f"{out} of {decision.node_count}: {', '.join(_listed(parts))}" if parts else ""


def _listed(parts: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{n} {phrase}" for n, phrase in sorted(parts, key=lambda p: (-p[0], p[1]))]


# complexity: one case a verdict code
def _phrase(code: VerdictCode, decision: Decision, *, decided: bool = True) -> str:
    """The phrase of a code, with the pod's own need in it where that need is the same for every node counted."""
    gpus, memory = decision.request.gpus, decision.request.amounts.get("memory", 0)
    nearest = decision.nearest.get(code)
    if nearest is not None and nearest.mixed:
        return PHRASES[code]
    if nearest is not None and nearest.unit in (GPU_BYTES, GPUS):
        shared = nearest.unit == GPU_BYTES and not (decision.request.gpu and decision.request.gpu.memory_milli)
        exact = shared or nearest.unit == GPUS
        given = f"without {amount(nearest.need, nearest.unit, 'free')}" if exact else _GPU_MEMORY
        # Memory is asked of every GPU alike: what two cards have together does not count.
        gpu = decision.request.gpu
        many = gpu.count if gpu is not None and not gpu.parts else 1
        return f"{given} on each of {many} GPUs" if nearest.unit == GPU_BYTES and many > 1 else given
    if code is VerdictCode.RESOURCE_MISSING and decision.request.problem:
        return f"not looked at, since {decision.request.problem}"
    if code is VerdictCode.INSUFFICIENT_GPU and gpus:
        return f"without {amount(gpus, 'gpus', 'free')}"
    if code is VerdictCode.INSUFFICIENT_MEMORY and memory:
        return f"without {amount(memory, 'bytes', 'free')}"
    if code is VerdictCode.RESOURCE_MISSING and nearest is not None and nearest.unit:
        return f"without any {nearest.unit}"
    if code is VerdictCode.GANG_TOO_LARGE and not decided:
        return "with room for one pod"
    return PHRASES[code]


def path_of(reach: Reach) -> str:
    """How the path runs and how the number is known: `same leaf, TCP, modelled`, `other zone, not measured`."""
    return reach.path if "not measured" in reach.path else f"{reach.path}, {reach.basis}"


def hops_of(pair: PairReach) -> str:
    """`GPU0 -> PIX -> mlx5_0 -> leaf a1 -> mlx5_0 -> PIX -> GPU3`; empty where no graph knows the way."""
    return " -> ".join(map(name_of, pair.hops))


def gap_of(miss: Verdict) -> str:
    """What is missing on the node that came closest: `2 short`, `7.0 GiB short`."""
    gap = miss.need - miss.have
    given = {"bytes": show_bytes(gap), GPU_BYTES: show_bytes(gap), "millicores": f"{gap / 1000:.3g}"}
    return f"{given.get(miss.unit, str(int(gap)))} short"


def over(us: float, bound_us: float) -> str:
    """`1.00 ms over the bound of 1.00 ms`."""
    return f"{show_us(us - bound_us)} over the bound of {show_us(bound_us)}"


def reach_setting(us: float) -> str:
    """A value for isochrone.dev/reach that is no smaller than `us`: two digits, rounded up (`2ms`, `160us`)."""
    step = max(10.0 ** (math.floor(math.log10(max(us, 1.0))) - 1), 1.0)
    rounded = math.ceil(us / step) * step
    return f"{rounded / 1000:g}ms" if rounded >= 1000 else f"{rounded:g}us"


def helps(remedies: Sequence[Remedy]) -> str:
    """What was tried and works, or nothing: `free 2 GPUs on n2, or set isochrone.dev/reach to 2ms on all its pods`."""
    given = [
        f"free {amount(r.amount, r.unit)} on {name_of(r.node)}"
        if r.node
        else f"set {REACH} to {reach_setting(r.amount)} on all its pods"
        for r in remedies
    ]
    return ", or ".join(given)


def helps_gang(plan: Plan, blocked: Decision) -> str:
    """What helps a held gang of which `blocked` shows the obstacle: less of what is too large, else what was tried."""
    if blocked.too_large is not None:
        return request_less(blocked.too_large, blocked.request.phase)
    if plan.shortfall is None:
        return ""
    return lower_minimum(plan.request) if plan.shortfall.beyond_cluster else helps(plan.shortfall.remedies)


def no_score(decision: Decision) -> str:
    """Why a node has no score in a decision, which keeps those of the best few that were eligible."""
    if decision.eligible <= len(decision.ranked):
        return "without a score: it was ruled out when the pod was decided"
    return f"without a score: only those of the {len(decision.ranked)} best nodes are kept"


def nearest_capacity(decision: Decision) -> Verdict | None:
    """The closest miss for want of room: one whose gap alone is in the way first, then the scarcest resource."""
    misses = [decision.nearest[code] for code in _CAPACITY if code in decision.nearest]
    return min(misses, key=lambda m: (not m.suffices, m.code), default=None)


def larger_than_all(large: TooLarge) -> str:
    """`no node of the cluster has 16 GPUs (largest: 8)`."""
    which = "open to the pod" if large.anywhere else "of the cluster"
    if large.unit == GPU_BYTES:
        return f"no GPU {which} can give {show_bytes(large.need)} (largest: {show_bytes(large.largest)})"
    return f"no node {which} has {amount(large.need, large.unit)} (largest: {_bare(large.largest, large.unit)})"


def request_less(large: TooLarge, phase: str) -> str:
    """`ask for at most 8 GPUs a prefill pod`."""
    most = large.largest if large.unit == "gpus" else large.largest // 2**30 * 2**30 or large.largest
    return f"ask for at most {amount(most, large.unit)} a {phase} pod"


def _bare(value: int, unit: str) -> str:
    return str(value) if unit == "gpus" else show_bytes(value)


def larger_than_cluster(short: Shortfall) -> str:
    """`the minimum needs 336 GPUs, nodes open to its pods have 128 in all`, free or not."""
    held = f" beside the {short.held_gpus} that its placed pods hold" if short.held_gpus else ""
    needs = f"the minimum needs {amount(short.needed_gpus, 'gpus')}{held}"
    return f"{needs}, nodes open to its pods have {short.cluster_gpus} in all"


def lower_minimum(gang: GangRequest) -> str:
    """What helps a gang whose minimum is more than the cluster."""
    least = ((MIN_PREFILL, gang.min_prefill), (MIN_DECODE, gang.min_decode))
    keys = [key for key, pods in least if pods > 1]
    fewer = "ask for fewer GPUs a pod, or add nodes"
    return f"lower {' or '.join(keys)}, {fewer}" if keys else fewer


def helps_one(decision: Decision) -> str:
    """What would let this one pod in, by its nearest misses: true for a pod whose partners have their places."""
    if decision.too_large is not None:
        return request_less(decision.too_large, decision.request.phase)
    miss, far = nearest_capacity(decision), decision.nearest.get(VerdictCode.REACH_EXCEEDED)
    remedies = [Remedy(miss.need - miss.have, miss.unit, miss.node)] if miss is not None and miss.suffices else []
    if far is not None and far.suffices:
        remedies.append(Remedy(far.have, "us"))
    return helps(remedies)


def whole_points(candidate: Candidate) -> tuple[int, tuple[tuple[str, int, int], ...]]:
    """The score and its parts (name, points, of) in whole points; the parts shown add up to the score shown.

    Largest remainder: all are rounded down, and the points that are then missing go to those that lost most. A part
    that is worth less than half a point altogether (the order of names) decides ties and is not a row of its own.
    """
    score = (candidate.score_nano + NANO // 2) // NANO
    rows = [part for part in candidate.parts if part.of >= 0.5]
    points = [part.points_nano // NANO for part in rows]
    lost = sorted(range(len(rows)), key=lambda i: (-(rows[i].points_nano % NANO), i))
    for i in range(score - sum(points)):
        points[lost[i % len(lost)]] += 1
    return score, tuple((part.name, got, round(part.of)) for part, got in zip(rows, points, strict=True))


def split_roots(candidate: Candidate) -> str:
    """`1 of 2 prefill-decode groups has room under one PCI root; ...`; empty where all have, or nobody knows."""
    fit, wanted = candidate.roots or (0, 0)
    if fit >= wanted:
        return ""
    have = "has" if fit == 1 else "have"
    return f"{fit} of {plural(wanted, 'prefill-decode group')} {have} room under one PCI root; the plugin picks, not we"


def set_of(nodes: NodeSet) -> str:
    """`topology.kubernetes.io/zone in (z1), 8 nodes`."""
    return f"{nodes.show()}, {plural(nodes.nodes, 'node')}"


def facts_of(facts_age_s: float) -> str:
    """`facts 0.4s old`."""
    return f"facts {show_age(facts_age_s)} old"


_PART_NAMES: Final = {
    FactPart.GPUS: ("GPUs", "cards, NVLinks, NVLink domain"),
    FactPart.NETWORK: ("network cards", "network cards, rails, GPUDirect"),
    FactPart.PODS: ("devices in use", "which pod has which card"),
}
"""What a part of an agent's facts is called, and what is in it."""


def agents_of(ages: Sequence[AgentAge]) -> str:
    """`agent of gpu-003 2m5s old, stale`, or, where only one of its sources is silent, `GPUs of gpu-003 2m5s old,
    stale`; of several the oldest is named."""
    if not ages:
        return ""
    oldest = max(ages, key=lambda age: age.age_s)
    more = f" (and {len(ages) - 1} more)" if len(ages) > 1 else ""
    what = "agent" if oldest.whole else " and ".join(_PART_NAMES[part][0] for part in oldest.parts)
    return f"{what} of {name_of(oldest.node)} {age_text(oldest.age_s, oldest.freshness)}{more}"


def silent_agents(ages: Sequence[AgentAge]) -> str:
    """What it means for a decision or a pod that facts expired, for an Event."""
    nodes = sorted({age.node for age in ages})
    silent = show_age(max(age.age_s for age in ages))
    parts = [part for part in _PART_NAMES if any(part in age.parts for age in ages) and part is not FactPart.PODS]
    what = "facts"
    if len(parts) == 1:
        what = {FactPart.GPUS: "word of GPUs", FactPart.NETWORK: "word of the network"}[parts[0]]
    which = "agent" if len(nodes) == 1 else "agents"
    seen = ", ".join(_PART_NAMES[part][1] for part in parts)
    return (
        f"No {what} from the {which} of {names_of(nodes)} for {silent}: what was seen there ({seen}) "
        f"no longer counts, node labels and the model do"
    )


def phase_counts(prefill: int, decode: int) -> str:
    """`1 prefill, 2 decode`; a phase with nobody is left out."""
    return ", ".join(f"{n} {phase}" for n, phase in zip((prefill, decode), PHASES, strict=True) if n)


def gang_of(gang: GangRequest) -> str:
    """Which pods have to come together: `the gang chat (1 prefill, 1 decode)`, or its minimum where more are there."""
    present = [sum(1 for m in gang.members if m.phase == phase) for phase in PHASES]
    needed = [gang.still_needed(phase) for phase in PHASES]
    if present == needed:
        return f"the gang {name_of(gang.name)} ({phase_counts(*present)})"
    return f"the minimum of the gang {name_of(gang.name)} ({phase_counts(*needed)} of {phase_counts(*present)})"


def here_and_missing(gang: GangRequest) -> tuple[tuple[int, int], tuple[int, int]]:
    """Pods of each phase (prefill, decode) that exist, placed or not, and those that the minimum still lacks."""
    phases = [m.phase for m in gang.members] + [p.phase for p in gang.partners]
    prefill, decode = phases.count(PREFILL), phases.count(DECODE)
    return (prefill, decode), (max(0, gang.min_prefill - prefill), max(0, gang.min_decode - decode))
