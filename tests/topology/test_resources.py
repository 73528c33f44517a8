"""What a pod takes from a node, by Kubernetes' rule for containers, sidecars and init steps."""

from __future__ import annotations

import pytest

from topology.bad_input import BadInput
from topology.objects import Container, PodSpec, Resources
from topology.resources import parse_amounts, pod_request, readable_request, sum_amounts

GIB = 2**30


def box(sidecar: bool = False, limits: dict[str, str] | None = None, **requests: str) -> Container:
    return Container(
        resources=Resources(requests=dict(requests) or None, limits=dict(limits) if limits else None),
        restart_policy="Always" if sidecar else None,
    )


def test_containers_add_up() -> None:
    spec = PodSpec(containers=(box(cpu="500m", memory="1Gi"), box(cpu="2", memory="512Mi")))
    assert pod_request(spec) == {"cpu": 2500, "memory": GIB + GIB // 2, "pods": 1}


def test_an_extended_resource_given_as_a_limit_is_requested() -> None:
    spec = PodSpec(containers=(box(limits={"nvidia.com/gpu": "4"}, cpu="1"),))
    assert pod_request(spec) == {"cpu": 1000, "nvidia.com/gpu": 4, "pods": 1}


def test_a_request_wins_over_its_limit() -> None:
    assert pod_request(PodSpec(containers=(box(limits={"cpu": "8"}, cpu="2"),))) == {"cpu": 2000, "pods": 1}


def test_the_largest_init_step_counts_if_it_is_more() -> None:
    spec = PodSpec(containers=(box(cpu="1", memory="4Gi"),), init_containers=(box(cpu="3", memory="1Gi"), box(cpu="2")))
    assert pod_request(spec) == {"cpu": 3000, "memory": 4 * GIB, "pods": 1}  # each resource by itself


def test_sidecars_run_beside_the_containers_and_later_init_steps() -> None:
    # Steps: sidecar 1 core; then the init step beside it, 1 + 3; the containers beside it, 1 + 2.
    spec = PodSpec(containers=(box(cpu="2"),), init_containers=(box(sidecar=True, cpu="1"), box(cpu="3")))
    assert pod_request(spec) == {"cpu": 4000, "pods": 1}
    # The step runs before the sidecar starts: 3 alone, then 1 + 2.
    spec = PodSpec(containers=(box(cpu="2"),), init_containers=(box(cpu="3"), box(sidecar=True, cpu="1")))
    assert pod_request(spec) == {"cpu": 3000, "pods": 1}


def test_overhead_comes_on_top() -> None:
    spec = PodSpec(containers=(box(cpu="1"),), init_containers=(box(cpu="2"),), overhead={"cpu": "250m"})
    assert pod_request(spec) == {"cpu": 2250, "pods": 1}


def test_nothing_asked_for_takes_a_pod_slot_and_the_marker_takes_nothing() -> None:
    marker = {"isochrone.dev/pair": "0"}
    assert pod_request(PodSpec(containers=(box(limits=marker),))) == {"pods": 1}


def test_a_quantity_that_is_none_is_named() -> None:
    spec = PodSpec(containers=(box(), box(memory="lots")))
    with pytest.raises(BadInput, match=r"^containers\[1\]\.resources\.requests\[memory\] is 'lots'"):
        pod_request(spec)
    amounts, bad = readable_request(spec)
    assert amounts == {"pods": 1}
    assert bad is not None
    assert bad.value == "lots"
    assert readable_request(PodSpec()) == ({"pods": 1}, None)


def test_amounts_add_up_by_resource() -> None:
    assert sum_amounts([{"cpu": 1, "pods": 1}, {"cpu": 2}, {}]) == {"cpu": 3, "pods": 1}
    assert parse_amounts(None, "status.allocatable") == {}
