"""`openb`: how much of a cluster's GPUs can be handed out, and how much of the rest is of no use, on a real trace.

Our scorer against FGD on the same arrivals. On the default list the published protocol (ten seeds) and its published
values; on every other list the difference. Pure computation: the figures depend on the seeds alone, not on the machine.

`SEEDS=42,43` chooses the seeds (for all lists), `LISTS=default,gpuspec33` the lists.
"""

import csv
import gzip
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

from e2e.bench.openb_run import Curve, run, scorer_for
from e2e.bench.openb_trace import Nodes, PodKind, Pods, folder, list_names, read_nodes, read_pods
from e2e.bench.report import FOLDER, Figure, Goal
from e2e.stack.build import say
from topology.fragmentation.pod_mix import Mix

DEFAULT: Final = "default"
POLICIES: Final = ("fgd", "isochrone")
SEEDS: Final = tuple(range(42, 52))
SEEDS_OF_OTHERS: Final = SEEDS[:3]
FULL, END = 100, 130
CURVES: Final = FOLDER / "openb-curves"
PUBLISHED: Final = "FGD as published: 95.39 allocated, 4.73 fragmented"

GOALS: Final[Mapping[str, Goal]] = {
    "isochrone allocated": Goal(">=", 96.3),
    "isochrone fragmented": Goal("<=", 3.75),
}


def measure() -> Iterator[list[Figure]]:
    """The figures, list by list."""
    where = folder()
    nodes = read_nodes(where)
    names = list_names(where)
    chosen = _texts("LISTS") or names
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"LISTS: no list {unknown[0]}; there are {', '.join(names)}")
    given = [_seed(text) for text in _texts("SEEDS")]
    for name in chosen:
        seeds = given or list(SEEDS if name == DEFAULT else SEEDS_OF_OTHERS)
        found: dict[str, list[Curve]] = {policy: [] for policy in POLICIES}
        pods = read_pods(where, name)
        for seed in seeds:
            _both(nodes, pods, seed, found)
        yield _figures(name, found, f"mean of {len(seeds)} seeds {seeds[0]}..{seeds[-1]}")


def _both(nodes: Nodes, pods: Pods, seed: int, found: dict[str, list[Curve]]) -> None:
    known = Mix(Counter(kind.shape for _, kind in pods.pods).items())
    cluster, arrivals = nodes.renamed(seed), pods.arrivals(seed, nodes.capacity_milli)
    line = []
    for policy in POLICIES:
        begun = time.process_time()
        curve = run(cluster, arrivals, scorer_for(policy, cluster, known), known)
        found[policy].append(curve)
        write_curve(curve, f"{pods.name}-{policy}-{seed}", cluster, arrivals)
        at = curve.allocated_percent()
        fragmented = curve.fragmented_percent()[FULL]
        line.append(f"{policy} {at[END]:.2f} ({at[FULL]:.2f} at 100, {fragmented:.2f} fragmented)")
        line[-1] += f" in {time.process_time() - begun:.1f} s"
    say(f"openb {pods.name} seed {seed}: {'; '.join(line)}")


def _figures(name: str, found: Mapping[str, list[Curve]], source: str) -> list[Figure]:
    allocated = {p: {at: fmean(c.allocated_percent()[at] for c in found[p]) for at in (FULL, END)} for p in POLICIES}
    if name != DEFAULT:
        goals = {END: Goal(">=", 0.5), FULL: Goal(">=", 0.0)}
        return [
            Figure(
                f"{name} gain at {at}",
                allocated["isochrone"][at] - allocated["fgd"][at],
                "points of GPU allocated",
                goals[at],
                f"FGD {allocated['fgd'][at]:.2f}",
                source,
            )
            for at in (END, FULL)
        ]
    fragmented = {p: fmean(c.fragmented_percent()[FULL] for c in found[p]) for p in POLICIES}
    values = {
        "fgd allocated": allocated["fgd"][END],
        "isochrone allocated": allocated["isochrone"][END],
        "fgd fragmented": fragmented["fgd"],
        "isochrone fragmented": fragmented["isochrone"],
    }
    return [
        Figure(
            figure,
            value,
            f"% of the cluster's GPU at {END if 'allocated' in figure else FULL} % arrived",
            GOALS.get(figure),
            PUBLISHED,
            source,
        )
        for figure, value in values.items()
    ]


def write_curve(
    curve: Curve, name: str, nodes: Nodes, arrivals: list[tuple[str, PodKind]], folder: Path = CURVES
) -> None:
    """`NAME.csv`: by whole percent arrived, allocated and fragmented in percent of the cluster: what the figures use;
    `NAME-places.csv.gz`: every arrival in order and where it went, from which the curve follows."""
    folder.mkdir(parents=True, exist_ok=True)
    allocated, fragmented = curve.allocated_percent(), curve.fragmented_percent()
    with (folder / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arrived_percent", "allocated_percent", "fragmented_percent"))
        rows.writerows((at, f"{allocated[at]:.6f}", f"{fragmented[at]:.6f}") for at in allocated)
    with gzip.open(folder / f"{name}-places.csv.gz", "wt", newline="", compresslevel=3) as file:
        rows = csv.writer(file)
        rows.writerow(("pod", "arrived_milli", "allocated_milli", "node", "gpu"))
        for (pod, _), arrived, given, node, gpu in zip(
            arrivals,
            curve.arrived_milli.tolist(),
            curve.allocated_milli.tolist(),
            curve.node.tolist(),
            curve.gpu.tolist(),
            strict=True,
        ):
            where = nodes.names[node] if node >= 0 else ""
            rows.writerow((pod, arrived, given, where, gpu if gpu >= 0 else ""))


def _texts(variable: str) -> list[str]:
    return [part for part in os.environ.get(variable, "").split(",") if part]


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"SEEDS={text}: use numbers with commas between")
    return int(text)
