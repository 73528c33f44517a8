"""Random gangs that come in waves and go again, on a cluster with or without Isochrone; what was seen is judged."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from e2e.checks import PairSeen, PodSeen, below_minimum, live_pods, node_labels, pairs
from e2e.stack.client import path_of
from e2e.stack.cluster import Cluster
from e2e.stack.processes import LIMIT_S
from e2e.workloads import DECODE, ENABLED, GROUP_NAME, PREFILL, Object, phased, pod_group

BOUNDS = ("1ms", "100us", "15us")
GANGS_PER_LEAVING = 4
"""Every fourth gang is deleted once its wave has settled."""
QUIET_S = 1.6
"""Nothing changed for so long: one of Volcano's sessions and the controller's quiet time."""
LOOKS = 12
"""So many looks saw no change, however long they took: a machine that stands still is quiet too."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What one random gang asks for."""

    name: str
    prefill: int
    decode: int
    gpus: int
    reach: str
    minimum: Mapping[str, int]
    leaves: bool
    """Whether it is deleted once its wave has settled."""

    @property
    def pods(self) -> int:
        """How many it wants."""
        return self.prefill + self.decode

    def manifests(self, alone: bool) -> list[Object]:
        """Its two Deployments; `alone`: for a Volcano without Isochrone, with a plain PodGroup of the same minimum."""
        annotations = {f"isochrone.dev/min-{phase}": str(count) for phase, count in self.minimum.items()}
        if alone:
            annotations[GROUP_NAME] = self.name
        items = [
            phased(
                phase,
                self.name,
                replicas=replicas,
                gpus=self.gpus,
                reach=self.reach,
                annotations=annotations,
                scheduler="volcano" if alone else "",
            )
            for phase, replicas in ((PREFILL, self.prefill), (DECODE, self.decode))
        ]
        if not alone:
            return items
        for item in items:
            item["spec"]["template"]["metadata"]["labels"][ENABLED] = "false"
        return [pod_group(self.name, sum(self.minimum.values())), *items]


def random_waves(seed: int, waves: int, gangs_a_wave: int) -> list[list[Gang]]:
    """Waves of gangs: 1 to 3 prefill, 1 to 4 decode pods, 1 to 8 GPUs; the same for the same seed."""
    rng = random.Random(seed)
    made = []
    for wave in range(waves):
        gangs = []
        for index in range(gangs_a_wave):
            prefill, decode = rng.randint(1, 3), rng.randint(1, 4)
            minimum = {"prefill": rng.randint(1, prefill), "decode": rng.randint(1, decode)}
            gpus = rng.choice((1, 1, 2, 2, 3, 4, 8))
            leaves = index % GANGS_PER_LEAVING == 0
            name = f"g{wave}-{index}"
            gangs.append(Gang(name, prefill, decode, gpus, rng.choice(BOUNDS), minimum, leaves))
        made.append(gangs)
    return made


@dataclass(slots=True)
class Seen:
    """What was found when each wave had settled; a gang counts as placed or beyond if it ever was."""

    placed: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    beyond: dict[str, PairSeen] = field(default_factory=dict)
    below: set[str] = field(default_factory=set)
    pairs: int = 0

    def read(self, pods: list[PodSeen], gangs: list[Gang], cluster: Cluster) -> None:
        """Judges every gang that lives now."""
        self.placed |= {pod.gang for pod in pods if pod.node}
        self.held |= {pod.gang for pod in pods if pod.held}
        found = pairs(pods, node_labels(cluster))
        self.pairs += len(found)
        self.beyond |= {pair.prefill.gang: pair for pair in found if pair.beyond}
        self.below |= {gang.name for gang in gangs if below_minimum(pods, gang.name, gang.minimum)}


def run_waves(
    cluster: Cluster,
    namespace: str,
    waves: list[list[Gang]],
    alone: bool = False,
    disturb: Callable[[], None] = lambda: None,
) -> Seen:
    """All waves, one after the other; in each some gangs leave again. `disturb` is called whenever something moves."""
    result = Seen()
    living: list[Gang] = []
    for wave in waves:
        for gang in wave:
            for item in gang.manifests(alone):
                cluster.create(item, namespace)
        living += wave
        disturb()
        wanted = sum(gang.pods for gang in living)
        result.read(settled(cluster, namespace, wanted, alone), living, cluster)
        for gang in [gang for gang in wave if gang.leaves]:
            delete(cluster, namespace, gang, alone)
            living.remove(gang)
        disturb()
        wanted = sum(gang.pods for gang in living)
        # Room appeared: who was held may come now, and only inside its bound.
        result.read(settled(cluster, namespace, wanted, alone), living, cluster)
    return result


def settled(cluster: Cluster, namespace: str, wanted: int, alone: bool) -> list[PodSeen]:
    """The pods once all are there, nothing moves, and everyone whom Isochrone let go is bound."""
    until = time.monotonic() + LIMIT_S + wanted
    before: list[PodSeen] = []
    since, inspections = time.monotonic(), 0
    while True:
        cluster.check()
        now = sorted(live_pods(cluster, namespace), key=lambda pod: pod.uid)
        under_way = [] if alone else [pod for pod in now if not pod.held and not pod.node]
        if now != before or len(now) != wanted or under_way:
            before, since, inspections = now, time.monotonic(), 0
        elif time.monotonic() - since > QUIET_S and inspections > LOOKS:
            return now
        inspections += 1
        assert time.monotonic() < until, (
            f"not settled: {len(now)} of {wanted} pods; neither held nor bound: {under_way}"
        )
        time.sleep(0.1)


def delete(cluster: Cluster, namespace: str, gang: Gang, alone: bool) -> None:
    """Deletes a gang's owners; the garbage collector takes its pods along."""
    for item in gang.manifests(alone):
        cluster.api("DELETE", f"{path_of(item, namespace)}/{item['metadata']['name']}?propagationPolicy=Background")
