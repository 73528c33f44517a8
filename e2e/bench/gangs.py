"""`gangs`: what whole gangs cost with Isochrone and without, side by side in one run."""

import os
from dataclasses import dataclass, field

from e2e.bench.bed import Run, Side, bed
from e2e.bench.report import matrix
from e2e.stack.build import say


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; every value can be set by an environment variable of its name."""

    runs: int = 3
    nodes: tuple[int, ...] = (100, 1000)


def main() -> None:
    runs = int(os.environ.get("RUNS", "1"))
    nodes = int(os.environ.get("NODES", "100"))
    gangs = int(os.environ.get("GANGS", "100"))
    sides = [Side(x) for x in os.environ.get("SIDES", "plain,isochrone").split(",")]
    for index in range(runs):
        for side in sides:
            with bed(side, nodes) as mine:
                run = mine.bulk(gangs, 300)
            pods = gangs * 8
            t = run.timeline
            b = t.bound_s
            print(
                f"{side}: {t.rate:.1f} pods/s; created {t.created_s:.2f} first {b[0]:.2f} half {b[len(b) // 2]:.2f} last {b[-1]:.2f}; others {run.usage.others_share:.0%}"
            )
            print(
                {k: round(v / pods * 1e3, 2) for k, v in sorted(run.usage.by_process.items(), key=lambda e: -e[1])},
                "ms/pod",
                flush=True,
            )


if __name__ == "__main__":
    main()
