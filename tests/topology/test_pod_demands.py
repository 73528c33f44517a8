"""What a pod asks for, read once for all that ask the same: never anything but what the readers say of it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from topology.gpus.forms import GPU_ANNOTATIONS
from topology.gpus.pod_demands import InternedDemands
from topology.gpus.request import readable_gpus, requests_gpus
from topology.objects import Pod
from topology.resources import readable_request

names = st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpumem", "volcano.sh/vgpu-number", "pods"])
values = st.sampled_from(["1", "2", "500m", "0", 1, 3, "8Gi", "-1", "none", "1500m"])
resources = st.dictionaries(st.sampled_from(["limits", "requests"]), st.dictionaries(names, values, max_size=3))
containers = st.lists(st.fixed_dictionaries({"name": st.sampled_from("ab"), "resources": resources}), max_size=2)
notes = st.dictionaries(
    st.sampled_from([*sorted(GPU_ANNOTATIONS), "isochrone.dev/placement"]),
    st.sampled_from(["1", "0.5", "20Gi", "8192", "x"]),
    max_size=2,
)
pods = st.builds(
    lambda own, init, over, value: msgspec.convert(
        {
            "metadata": {"name": "p", "uid": "u", "annotations": value},
            "spec": {"containers": own, "initContainers": init, "overhead": over},
        },
        Pod,
    ),
    containers,
    containers,
    st.dictionaries(st.just("cpu"), values, max_size=1),
    notes,
)


@given(st.lists(pods, min_size=1, max_size=8))
def test_it_says_what_the_readers_say(many: list[Pod]) -> None:
    requests = InternedDemands()
    for pod in many + many[::-1]:
        spec, value = pod.spec, pod.metadata.annotations
        (gpu, bad), (amounts, wrong) = readable_gpus(spec, value), readable_request(spec)
        reported = (bad if requests_gpus(spec, value) else None) or wrong
        ask = requests.of(pod)
        assert (ask.amounts, ask.gpu, ask.problem) == (amounts, gpu, str(reported) if reported is not None else "")


def test_pods_of_one_template_share_it() -> None:
    requests = InternedDemands()

    def pod(name: str, node: str, **value: Any) -> Pod:
        container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        raw = {"metadata": {"name": name, "annotations": value}, "spec": {"containers": [container], "nodeName": node}}
        return msgspec.convert(raw, Pod)

    first = requests.of(pod("a", ""))
    assert first.amounts == {"nvidia.com/gpu": 2, "pods": 1}
    assert requests.of(pod("b", "n1", **{"isochrone.dev/placement": "said"})) is first


def test_it_remembers_only_so_many() -> None:
    requests = InternedDemands()
    for i in range(3000):
        container = {"name": "main", "resources": {"limits": {"cpu": f"{i + 1}m"}}}
        assert requests.of(msgspec.convert({"spec": {"containers": [container]}}, Pod)).amounts == {
            "cpu": i + 1,
            "pods": 1,
        }
    assert len(requests._known) <= 1024
