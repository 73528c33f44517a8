"""What a pod asks for, read once for all that ask the same: never anything but what the readers say of it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from topology.gpus.forms import CARD_ANNOTATIONS
from topology.gpus.pod_asks import PodAsks
from topology.gpus.request import asks_for_cards, readable_gpus
from topology.objects import Pod
from topology.resources import readable_request

names = st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpumem", "volcano.sh/vgpu-number", "pods"])
values = st.sampled_from(["1", "2", "500m", "0", 1, 3, "8Gi", "-1", "none", "1500m"])
resources = st.dictionaries(st.sampled_from(["limits", "requests"]), st.dictionaries(names, values, max_size=3))
containers = st.lists(st.fixed_dictionaries({"name": st.sampled_from("ab"), "resources": resources}), max_size=2)
notes = st.dictionaries(
    st.sampled_from([*sorted(CARD_ANNOTATIONS), "isochrone.dev/placement"]),
    st.sampled_from(["1", "0.5", "20Gi", "8192", "x"]),
    max_size=2,
)
pods = st.builds(
    lambda own, init, over, said: msgspec.convert(
        {
            "metadata": {"name": "p", "uid": "u", "annotations": said},
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
    asks = PodAsks()
    for pod in many + many[::-1]:
        spec, said = pod.spec, pod.metadata.annotations
        (gpu, bad), (amounts, wrong) = readable_gpus(spec, said), readable_request(spec)
        told = (bad if asks_for_cards(spec, said) else None) or wrong
        ask = asks.of(pod)
        assert (ask.amounts, ask.gpu, ask.problem) == (amounts, gpu, str(told) if told is not None else "")


def test_pods_of_one_template_share_it() -> None:
    asks = PodAsks()

    def pod(name: str, node: str, **said: Any) -> Pod:
        container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        raw = {"metadata": {"name": name, "annotations": said}, "spec": {"containers": [container], "nodeName": node}}
        return msgspec.convert(raw, Pod)

    first = asks.of(pod("a", ""))
    assert first.amounts == {"nvidia.com/gpu": 2, "pods": 1}
    assert asks.of(pod("b", "n1", **{"isochrone.dev/placement": "said"})) is first


def test_it_remembers_only_so_many() -> None:
    asks = PodAsks()
    for i in range(3000):
        container = {"name": "main", "resources": {"limits": {"cpu": f"{i + 1}m"}}}
        assert asks.of(msgspec.convert({"spec": {"containers": [container]}}, Pod)).amounts == {"cpu": i + 1, "pods": 1}
    assert len(asks._known) <= 1024
