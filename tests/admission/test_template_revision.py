"""A template is replaced while its gang is held: who counts, whose settings hold, and what is said."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_view import GangView, complete, view_of
from admission.gangs.template_revision import Template
from tests.admission.controllers import (
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    reasons,
    released,
)
from tests.admission.held_pods import CHAT, NAMESPACE, bound, held, stored
from tests.admission.held_pods import released as let_go
from tests.admission.pods import Raw
from tests.admission.test_reconciler_later import deployment, replica_set
from tests.topology.list_watch_server import until
from topology.labels import MIN_DECODE, REACH
from topology.objects import Pod

SIX, TWO = {MIN_DECODE: "6"}, {MIN_DECODE: "2"}


def rolled(*pods: Raw, **revisions: int) -> GangView:
    """The gang's view; pods whose name starts with a keyword are of that revision of one Deployment."""

    def template_of(pod: Pod) -> Template | None:
        return next((Template("d", r) for name, r in revisions.items() if pod.metadata.name.startswith(name)), None)

    return view_of(CHAT, [stored(pod) for pod in pods], template_of)


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.name for pod in pods]


# --- who counts, and whose settings hold --------------------------------------------------------


def test_held_pods_of_an_older_template_have_no_say_and_do_not_count_beyond_the_minimum() -> None:
    seen = rolled(
        held("p0"), held("old", annotations={REACH: "15us"}), held("new", annotations={REACH: "80us"}), old=1, new=2
    )
    assert names(seen.held) == ["new", "p0"]
    assert names(seen.replaced) == ["old"]
    assert seen.settings.reach_us == 80.0


def test_they_fill_up_to_the_minimum_of_the_newest_template_newest_first() -> None:
    three = {MIN_DECODE: "3"}
    pods = [held(n, annotations=SIX) for n in ("a0", "a1", "b0")] + [held("c0", annotations=three), held("p0")]
    seen = rolled(*pods, a=1, b=2, c=3)
    assert names(seen.fill) == ["b0", "a0"]
    assert names(seen.members) == ["a0", "b0", "c0", "p0"]
    assert names(seen.replaced) == ["a1"]
    assert (seen.settings.min_prefill, seen.settings.min_decode) == (1, 3)
    assert not complete(seen, {})  # their Deployment may be about to remove them: a quiet moment first


def test_an_older_pod_that_somebody_else_holds_too_fills_nothing() -> None:
    seen = rolled(held("a0", gates_before=("another",)), held("a1"), held("c0", annotations=TWO), held("p0"), a=1, c=2)
    assert names(seen.fill) == ["a1"]
    assert names(seen.replaced) == ["a0"]


@pytest.mark.parametrize("went", [lambda pod: bound(pod, "n1"), let_go])
def test_pods_of_an_older_template_that_went_count_and_have_no_say(went: object) -> None:
    """Else the PodGroup would ask for a minimum that the Deployment does not make any more."""
    assert callable(went)
    pods = [went(held(n, annotations=SIX)) for n in ("a0", "a1")]
    seen = rolled(*pods, held("a2", annotations=SIX), held("c0", annotations=TWO), held("p0"), a=1, c=2)
    assert names(seen.released + seen.bound) == ["a0", "a1"]
    assert seen.fill == ()
    assert names(seen.replaced) == ["a2"]
    assert seen.settings.min_decode == 2


def test_as_long_as_the_new_template_has_no_pod_the_old_one_holds() -> None:
    seen = rolled(held("a0", annotations=SIX), held("p0"), a=1)
    assert names(seen.members) == ["a0", "p0"]
    assert seen.settings.min_decode == 6


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["held", "released", "bound"])), min_size=1, max_size=9),
    st.integers(1, 6),
)
def test_what_fills_is_exactly_what_the_minimum_lacks(pods: list[tuple[int, str]], minimum: int) -> None:
    """Nobody is lost or counted twice, and what the newest template says holds whatever older ones say."""
    newest = max(revision for revision, _ in pods)
    raw = []
    for i, (revision, state) in enumerate(pods):
        value = {MIN_DECODE: str(minimum if revision == newest else 9)}
        pod = held(f"{'abc'[revision - 1]}{i}", annotations=value)
        raw.append({"held": pod, "released": let_go(pod)}.get(state) or bound(pod, "n1"))
    seen = rolled(*raw, a=1, b=2, c=3)
    assert seen.settings.min_decode == minimum
    counted = names(seen.held + seen.released + seen.bound)
    assert sorted(counted + names(seen.replaced)) == sorted(p["metadata"]["name"] for p in raw)
    without = sum(1 for revision, state in pods if revision == newest or state != "held")
    old_held = len(pods) - without
    assert len(seen.fill) == min(old_held, max(0, minimum - without))
    left = [n[0] for n in names(seen.replaced)]
    assert all(old[0] >= max(left) for old in names(seen.fill)) if left else True


def test_held_pods_that_their_owner_may_keep_all_count_and_have_no_say() -> None:
    """A StatefulSet with a partition, or one that replaces pods from the last on: nobody else comes in their place."""

    def template_of(pod: Pod) -> Template | None:
        name = pod.metadata.name
        return Template("d", int(name == "d3"), retained=True) if name.startswith("d") else None

    pods = [held("p0"), *(held(f"d{i}", annotations=SIX) for i in range(3)), held("d3", annotations=TWO)]
    seen = view_of(CHAT, [stored(pod) for pod in pods], template_of)
    assert names(seen.members) == ["d0", "d1", "d2", "d3", "p0"]
    assert (seen.fill, seen.replaced, seen.settings.min_decode) == ((), (), 2)


# --- with a controller --------------------------------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster([{"name": n, "zone": "a", "leaf": "l", "gpus": 4} for n in ("n1", "n2")]) as made:
        yield made


def rollout(cluster: FileCluster, *, old_gpus: int = 2, new_gpus: int = 2) -> Raw:
    """A gang that is held, as a Deployment of 2 replicas leaves it: one pod of the new template, two of the old."""
    top = deployment(cluster, "decode")
    old, new = replica_set(cluster, "decode-1", 1, 2, top), replica_set(cluster, "decode-2", 2, 1, top)
    create(cluster, held("p0"), held("p1"))
    create(cluster, *(held(f"d-old-{i}", gpus=old_gpus, owner=old, annotations=SIX) for i in range(2)))
    create(cluster, held("d-new-0", gpus=new_gpus, owner=new, annotations=TWO))
    return new


@pytest.mark.parametrize("before_the_start", [False, True])
async def test_a_rollout_of_a_held_gang_goes_on(cluster: FileCluster, tmp_path: Path, before_the_start: bool) -> None:
    """Its minimum is lowered from 6 to 2. The Deployment makes one pod more and removes none before that one runs."""
    new: Raw = rollout(cluster) if before_the_start else {}
    async with controlling(cluster, tmp_path):
        new = new or rollout(cluster)
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert released(cluster).keys() == {"p0", "p1", "d-new-0", "d-old-0"}
        assert gated(cluster) == {"d-old-1"}
        assert groups(cluster)["isochrone-chat"]["spec"]["minTaskMember"] == {"prefill": 1, "decode": 2}
        await until(lambda: reasons(cluster, "d-old-1") == ["WaitingForGang"])
        assert events(cluster, "d-old-1")[0][1].startswith("Its pod template was replaced")
        assert len(bind_released(cluster)) == 4
        cluster.delete("pods", NAMESPACE, "d-old-1")
        create(cluster, held("d-new-1", gpus=2, owner=new, annotations=TWO))
        await until(lambda: not gated(cluster))
        bind_released(cluster)
        cluster.delete("pods", NAMESPACE, "d-old-0")
        await until(lambda: reasons(cluster, "d-new-1") == ["Placed"])
        assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3


async def test_an_older_pod_without_room_is_named_with_a_way_out(cluster: FileCluster, tmp_path: Path) -> None:
    """The old template asked for more than a node has, which the new one mends; what is advised ends it."""
    async with controlling(cluster, tmp_path):
        new = rollout(cluster, old_gpus=9)
        everybody = ("p0", "p1", "d-new-0", "d-old-0")
        for name in everybody:
            await until(lambda: reasons(cluster, name) == ["InsufficientGPU"])  # noqa: B023
        text = events(cluster, "d-new-0")[0][1]
        assert text == (
            "A rollout is under way: the minimum needs 1 held pod of an older template (d-old-0), for which there is "
            "no room; with pods of the new template instead there is. The Deployment does not remove old ones before "
            "the new ones run: delete ReplicaSet decode-1, none of whose pods runs, or set the maxUnavailable of the "
            "Deployment's strategy to 100%"
        )
        assert gated(cluster) == {*everybody, "d-old-1"}
        for i in range(2):
            cluster.delete("pods", NAMESPACE, f"d-old-{i}")
        cluster.delete("replicasets", NAMESPACE, "decode-1")
        create(cluster, held("d-new-1", gpus=2, owner=new, annotations=TWO))
        await until(lambda: not gated(cluster))


async def test_where_new_pods_have_no_room_either_the_room_is_what_is_told(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path):
        rollout(cluster, old_gpus=9, new_gpus=9)
        await until(lambda: reasons(cluster, "d-new-0") == ["InsufficientGPU"])
        assert "rollout" not in events(cluster, "d-new-0")[0][1]
