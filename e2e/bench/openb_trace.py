"""The openb trace of Weng et al. (USENIX ATC 2023): nodes, lists of pods, and the order of arrival that a seed makes.

The protocol is that of hkust-adsl/kubernetes-scheduler-simulator (experiments/): the pods of a list, sorted by name and
shuffled, then clones drawn from them until the next one would pass `ARRIVE` of the cluster's GPU; only that clone's
share of one GPU is added for this test. Of a list that asks for more than that, pods drawn at random are left out.
"""

import csv
import gzip
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from e2e.bench.report import NotHere
from e2e.stack.build import CHECKOUT
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI

ARRIVE: Final = 1.3
_NODES: Final = "openb_node_list_gpu_node.csv"
_PODS: Final = "openb_pod_list_"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster while it is empty, in the order of `names`; (N,) each. `model` counts into `models`."""

    names: tuple[str, ...]
    cpu_milli: Ints
    memory_mib: Ints
    gpus: Ints
    model: Ints
    models: tuple[str, ...]

    @property
    def capacity_milli(self) -> int:
        """All GPUs in thousandths."""
        return int(self.gpus.sum()) * WHOLE_MILLI

    def renamed(self, seed: int) -> "Nodes":
        """Every name behind a number of a seeded permutation, and the nodes in the order of these names."""
        numbers = list(range(len(self.names)))
        random.Random(f"nodes {seed}").shuffle(numbers)
        names = [f"{number}-{name}" for number, name in zip(numbers, self.names, strict=True)]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        cpu, memory, gpus, model = (a[order] for a in (self.cpu_milli, self.memory_mib, self.gpus, self.model))
        return Nodes(tuple(names[i] for i in order), cpu, memory, gpus, model, self.models)


@dataclass(frozen=True, slots=True)
class PodKind:
    """What tells pods apart: the shape, and the memory of the host that it takes."""

    shape: PodShape
    memory_mib: int

    @property
    def gpu_milli(self) -> int:
        """All that it asks for, on all its GPUs."""
        return self.shape.gpus * self.shape.milli


@dataclass(frozen=True, slots=True)
class Pods:
    """A list of pods, sorted by name: (name, kind)."""

    name: str
    pods: tuple[tuple[str, PodKind], ...]

    def arrivals(self, seed: int, capacity_milli: int, arrive: float = ARRIVE) -> list[tuple[str, PodKind]]:
        """The pods in their order of arrival."""
        chance = random.Random(seed)
        order = list(self.pods)
        chance.shuffle(order)
        limit = arrive * capacity_milli
        asked = sum(kind.gpu_milli for _, kind in order)
        while asked > limit:
            asked -= order.pop(chance.randrange(len(order)))[1].gpu_milli
        while len(order) >= len(self.pods):
            name, kind = self.pods[chance.randrange(len(self.pods))]
            if asked + kind.shape.milli > limit:
                break
            order.append((f"{name}-{len(order)}", kind))
            asked += kind.gpu_milli
        return order


def folder() -> Path:
    """Where the traces lie; NotHere if they do not."""
    data = Path(os.environ.get("ISOCHRONE_DATA") or CHECKOUT.parent / "shared" / "data")
    found = data / "traces-placement"
    if not (found / _NODES).is_file():
        raise NotHere(f"no {_NODES} in {found}; ISOCHRONE_DATA names the folder of the reference data")
    return found


def list_names(where: Path) -> list[str]:
    """The lists there are, the default one first."""
    names = {path.name.removeprefix(_PODS).split(".")[0] for path in where.glob(f"{_PODS}*.csv*")}
    return sorted(names, key=lambda name: (name != "default", name))


def read_nodes(where: Path) -> Nodes:
    """The GPU nodes."""
    rows = _rows(where / _NODES)
    models = tuple(sorted({row["model"] for row in rows}))
    cpu, memory, gpus = (np.array([int(row[key]) for row in rows]) for key in ("cpu_milli", "memory_mib", "gpu"))
    model = np.array([models.index(row["model"]) for row in rows])
    return Nodes(tuple(row["sn"] for row in rows), cpu, memory, gpus, model, models)


def read_pods(where: Path, name: str) -> Pods:
    """One list, plain or zipped."""
    plain = where / f"{_PODS}{name}.csv"
    rows = _rows(plain if plain.is_file() else plain.with_suffix(".csv.gz"))
    return Pods(name, tuple(sorted((row["name"], _kind(row)) for row in rows)))


def _kind(row: dict[str, str]) -> PodKind:
    gpus = int(row["num_gpu"])
    shape = PodShape(
        cpu_milli=int(row["cpu_milli"]),
        gpus=gpus,
        milli=int(row["gpu_milli"]) if gpus else 0,
        models=tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|")))) if gpus else (),
    )
    return PodKind(shape, int(row["memory_mib"]))


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))
