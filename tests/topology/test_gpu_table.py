"""Cards of nodes as tables: capacity from labels, resources and annotations, and what pods hold of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from topology.bad_input import BadInput
from topology.cluster.snapshot import Assumed, snapshot_of
from topology.cluster.state import ClusterState
from topology.gpus.allocations import GpuAllocation, allocation_of
from topology.gpus.capacity import GPU_COUNT, GPU_MEMORY, GPU_REPLICAS, MIG_CONFIG, MIG_CONFIG_STATE, node_gpus
from topology.gpus.devices import HAMI_REGISTER, VOLCANO_REGISTER, Device, Share, node_devices, pod_shares
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.table import gpu_table
from topology.labels import GANG, GPU_PRODUCT, PHASE, PREFILL
from topology.objects import Container, Metadata, Node, NodeCondition, NodeStatus, Pod, PodSpec, Resources

H100 = {GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3", GPU_MEMORY: "81559", GPU_COUNT: "8"}
TWO_CARDS = "GPU-a,10,16380,NVIDIA-NVIDIA T4,true,hami-core:GPU-b,10,16380,NVIDIA-NVIDIA T4,true,hami-core:"


def node(
    name: str = "n1",
    *,
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    have: Mapping[str, str | int] | None = None,
) -> Node:
    return Node(
        metadata=Metadata(name=name, labels=dict(labels or {}), annotations=dict(notes) if notes else None),
        status=NodeStatus(
            allocatable={"cpu": 96, "pods": 110, **(have or {})},
            conditions=(NodeCondition(type="Ready", status="True"),),
        ),
    )


def gpus(count: int, labels: Mapping[str, str] | None = None) -> Node:
    return node(labels=H100 | dict(labels or {}), have={"nvidia.com/gpu": count})


def pod(uid: str, limits: Mapping[str, str | int], notes: Mapping[str, str] | None = None, where: str = "n1") -> Pod:
    return Pod(
        metadata=Metadata(name=uid, namespace="prod", uid=uid, labels={}, annotations=dict(notes or {})),
        spec=PodSpec(node_name=where, containers=(Container(resources=Resources(limits=dict(limits))),)),
    )


# --- what a node says --------------------------------------------------------------------------


def test_whole_gpus_take_the_lowest_index_and_are_predicted() -> None:
    table = snapshot_of([gpus(8)], [("n1", {"nvidia.com/gpu": 3})]).gpus
    assert table.memory_mib.tolist() == [[81559] * 8]
    assert table.left_milli.tolist() == [[0, 0, 0, 1000, 1000, 1000, 1000, 1000]]
    assert table.left_mib.tolist() == [[0, 0, 0, 81559, 81559, 81559, 81559, 81559]]
    assert table.model.tolist() == ["NVIDIA-H100-80GB-HBM3"]
    assert table.predicted.tolist() == [True]
    assert not table.prefill_peak_mib.any()


def test_nodes_of_different_width_share_one_table() -> None:
    bare = node("n0")
    single = node("n2", labels={GPU_PRODUCT: "NVIDIA-L40S"}, have={"nvidia.com/gpu": 1})
    table = snapshot_of([gpus(4), bare, single]).gpus
    assert table.left_milli.tolist() == [[0, 0, 0, 0], [1000, 1000, 1000, 1000], [1000, 0, 0, 0]]


def test_a_card_that_is_gone_is_no_room() -> None:
    # Allocatable fell to 6 of 8 while 8 are held: nothing is left, nothing is negative, and the node says so.
    table = snapshot_of([gpus(6)], [("n1", {"nvidia.com/gpu": 8})]).gpus
    assert table.left_milli.tolist() == [[0] * 6]
    assert table.left_mib.min() == 0
    assert table.overcommitted.tolist() == [True]


def test_replicas_spread_over_cards() -> None:
    # Two cards, each offered four times; three units are held: 2 on card 0, 1 on card 1 (fewest taken first).
    shared = snapshot_of([gpus(8, labels={GPU_REPLICAS: "4"})], [("n1", {"nvidia.com/gpu": 3})]).gpus
    assert shared.memory_mib.tolist() == [[81559, 81559]]
    assert shared.left_milli.tolist() == [[500, 750]]
    assert shared.isolates.tolist() == [False]


def test_qgpu_and_old_sharing_count_their_cards() -> None:
    devices = node_gpus(node(have={"tke.cloud.tencent.com/qgpu-core": 200, "tke.cloud.tencent.com/qgpu-memory": 96}))
    assert (devices.memory_mib, devices.isolates) == ((49152, 49152), True)
    devices = node_gpus(node(have={"volcano.sh/gpu-number": 2, "volcano.sh/gpu-memory": 30000}))
    assert (devices.memory_mib, devices.isolates) == ((15000, 15000), False)


def test_memory_without_a_label() -> None:
    assert node_gpus(node(labels={GPU_PRODUCT: "A100-SXM4-40GB"}, have={"nvidia.com/gpu": 1})).memory_mib == (40960,)
    assert node_gpus(node(labels={GPU_PRODUCT: "NVIDIA-L40S"}, have={"nvidia.com/gpu": 1})).memory_mib == (46068,)
    assert node_gpus(node(labels={GPU_PRODUCT: "NVIDIA-X1"}, have={"nvidia.com/gpu": 1})).memory_mib == (0,)
    assert node_gpus(node(labels={GPU_MEMORY: "-5"}, have={"nvidia.com/gpu": 1})).memory_mib == (0,)


def test_whole_gpus_that_mig_has_taken_are_none() -> None:
    labels = H100 | {MIG_CONFIG: "all-1g.10gb", MIG_CONFIG_STATE: "success"}
    stale = node(labels=labels, have={"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 6})
    snapshot = snapshot_of([stale])
    assert snapshot.table.allocatable[0, snapshot.table.column["nvidia.com/gpu"]] == 0
    assert snapshot.table.allocatable[0, snapshot.table.column["nvidia.com/mig-1g.10gb"]] == 6
    assert snapshot.gpus.left_milli.sum() == 0
    balanced = node(labels=H100 | {MIG_CONFIG: "custom"}, have={"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 6})
    assert snapshot_of([balanced]).gpus.left_milli.tolist() == [[1000, 1000]]


# --- device lists in annotations ---------------------------------------------------------------


def test_device_lists_of_both_generations() -> None:
    older = {VOLCANO_REGISTER: "GPU-a,1,1126,GTX,true:GPU-b,1,1126,GTX,false:"}
    assert node_devices(older)[0] == (
        Device("GPU-a", 1, 1126, "GTX", True, False),
        Device("GPU-b", 1, 1126, "GTX", False, False),
    )
    hami = {HAMI_REGISTER: "GPU-a,10,32768,100,V100,0,true,0,hami-core:GPU-b,10,32768,100,V100,0,true,1,mig:"}
    assert [d.mig for d in node_devices(hami)[0]] == [False, True]
    as_json = {HAMI_REGISTER: '[{"id":"GPU-a","count":10,"devmem":32768,"devcore":100,"type":"V100","health":true}]'}
    assert node_devices(as_json)[0] == (Device("GPU-a", 10, 32768, "V100", True, False),)
    assert node_devices({}) == ((), "")


@pytest.mark.parametrize(
    "text", ["GPU-a,1,2", "GPU-a,x,1126,GTX,true:", "GPU-a,1,-5,GTX,true:", ",1,1,G,true:", "[{]", "[1]"]
)
def test_a_broken_device_list_costs_the_node_its_cards_only(text: str) -> None:
    key = HAMI_REGISTER if text.startswith("[") else VOLCANO_REGISTER
    with pytest.raises(BadInput, match=f"^{re.escape(key)} is "):
        node_devices({key: text})
    devices = node_gpus(node(notes={key: text}))
    assert devices.memory_mib == ()
    assert key in devices.problem


def test_allocations_of_pods() -> None:
    assert pod_shares({"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,3000,0:;GPU-a,NVIDIA,5000,30:;"}) == (
        Share("GPU-a", 3000, 0),
        Share("GPU-a", 5000, 30),
    )
    assert pod_shares({"volcano.sh/gpu-index": "0,1"}) == (Share("0", 0, 0), Share("1", 0, 0))
    assert pod_shares({"other": "x"}) is None
    for broken in ("GPU-1,;;", "GPU-1,NVIDIA,x,0:", ",NVIDIA,1,0:", "GPU-1,NVIDIA,1,500:"):
        with pytest.raises(BadInput, match=r"^volcano\.sh/vgpu-ids-new is "):
            pod_shares({"volcano.sh/vgpu-ids-new": broken})
    with pytest.raises(BadInput, match=r"^volcano\.sh/gpu-index is 'one'"):
        pod_shares({"volcano.sh/gpu-index": "one"})


def vgpu_state(*pods: Pod) -> ClusterState:
    state = ClusterState()
    state.apply_nodes([(None, node(notes={VOLCANO_REGISTER: TWO_CARDS}, have={"volcano.sh/vgpu-number": 20}))])
    state.apply_pods([(None, p) for p in pods])
    return state


def test_what_a_vgpu_pod_was_given_counts_on_its_card() -> None:
    asked = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4000, "volcano.sh/vgpu-cores": 25}
    known = pod("p1", asked, {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,4000,25:"})
    table = vgpu_state(known).snapshot(0, 0).gpus
    assert table.left_mib.tolist() == [[12380, 16380]]
    assert table.left_milli.tolist() == [[750, 1000]]  # the lesser of 750 cores and 12380/16380 = 755
    assert table.predicted.tolist() == [False]
    # Without an annotation it is predicted by Volcano's own rule, the last card first.
    assert vgpu_state(pod("p1", asked)).snapshot(0, 0).gpus.left_mib.tolist() == [[16380, 12380]]


def test_an_allocation_that_cannot_be_read_counts_what_was_asked() -> None:
    asked = {"volcano.sh/vgpu-number": 2}
    state = vgpu_state(broken := pod("p1", asked, {"volcano.sh/vgpu-ids-new": "GPU-1,;;"}))
    table = state.snapshot(0, 0).gpus
    assert table.left_milli.tolist() == [[0, 0]]  # two whole cards, the safe side
    (doubt,) = table.doubts[0]
    assert doubt.startswith(
        "prod/p1: volcano.sh/vgpu-ids-new is 'GPU-1,'; a share is a device, its type, MiB of memory"
    )
    repaired = pod("p1", asked, {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,1000,0:"})
    state.apply_pods([(broken, repaired)])
    table = state.snapshot(0, 0).gpus
    assert not table.doubts
    assert table.left_mib.tolist() == [[15380, 16380]]
    state.apply_pods([(repaired, None)])
    assert state.snapshot(0, 0).gpus.left_mib.tolist() == [[16380, 16380]]


def test_a_pod_counts_once_however_often_it_is_told() -> None:
    asked = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1000}
    request = GpuRequest("Volcano vGPU", memory_mib=1000)
    state = vgpu_state()
    state.assume("p1", "n1", {"volcano.sh/vgpu-number": 1}, GpuAllocation(request))
    assert state.snapshot(0, 0).gpus.left_mib.sum() == 2 * 16380 - 1000
    seen = pod("p1", asked)
    state.apply_pods([(None, seen), (seen, seen)])
    assert state.snapshot(0, 0).gpus.left_mib.sum() == 2 * 16380 - 1000
    state.apply_pods([(seen, None)])
    assert state.snapshot(0, 0).gpus.left_mib.sum() == 2 * 16380


def test_an_unhealthy_card_holds_nothing() -> None:
    sick = TWO_CARDS.replace("NVIDIA-NVIDIA T4,true,hami-core:GPU-b", "NVIDIA-NVIDIA T4,false,hami-core:GPU-b")
    table = snapshot_of([node(notes={VOLCANO_REGISTER: sick})]).gpus
    assert table.memory_mib.tolist() == [[0, 16380]]
    assert table.left_milli.tolist() == [[0, 1000]]


def test_plain_gpus_on_a_hami_node_take_whole_cards_beside_shares() -> None:
    have = "GPU-a,10,32768,100,V100,0,true:GPU-b,10,32768,100,V100,0,true:"
    state = ClusterState()
    state.apply_nodes([(None, node(notes={HAMI_REGISTER: have}, have={"nvidia.com/gpu": 20}))])
    share = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}
    given = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,8000,0:;"}
    state.apply_pods([(None, pod("a", share, given)), (None, pod("b", {"nvidia.com/gpu": 1}))])
    table = state.snapshot(0, 0).gpus
    assert table.left_mib.tolist() == [[24768, 0]]


def test_prefill_peaks_share_their_room_on_a_card() -> None:
    request = GpuRequest("Volcano vGPU", memory_mib=2000, peak_mib=5000)
    other = GpuRequest("Volcano vGPU", memory_mib=1000, peak_mib=2000)
    holds = [("n1", "p1", GpuAllocation(request, PREFILL)), ("n1", "p2", GpuAllocation(other, PREFILL))]
    table = snapshot_of([node(notes={VOLCANO_REGISTER: TWO_CARDS})], holds=holds).gpus
    assert table.left_mib.tolist() == [[16380, 13380]]
    assert table.prefill_peak_mib.tolist() == [[0, 3000]]  # the larger burst, once
    decode = [("n1", "d1", GpuAllocation(request, "decode"))]
    table = snapshot_of([node(notes={VOLCANO_REGISTER: TWO_CARDS})], holds=decode).gpus
    assert table.left_mib.tolist() == [[16380, 11380]]  # decode counts with its peak
    assert not table.prefill_peak_mib.any()


def test_assumed_and_released_is_as_before() -> None:
    before = snapshot_of([node(notes={VOLCANO_REGISTER: TWO_CARDS})])
    hold = GpuAllocation(GpuRequest("Volcano vGPU", memory_mib=2000), "decode")
    during = before.with_assumed({"u1": Assumed("n1", {"pods": 1}, hold)})
    assert during.gpus.left_mib.tolist() == [[16380, 14380]]
    moved = during.with_assumed({"u1": Assumed("n1", {"pods": 1})})
    for after in (moved, during.without_assumed(["u1", "nobody"])):
        assert after.gpus.left_mib.tolist() == before.gpus.left_mib.tolist()
        assert np.array_equal(after.gpus.left_milli, before.gpus.left_milli)
    assert not during.without_assumed(["u1"]).holds


def test_plain_pods_keep_no_hold() -> None:
    assert allocation_of(pod("p", {"nvidia.com/gpu": 8})) is None
    assert allocation_of(pod("p", {"nvidia.com/mig-1g.10gb": 1})) is None
    assert allocation_of(pod("p", {"cpu": 1})) is None
    assert allocation_of(pod("p", {"volcano.sh/vgpu-memory": "-1"})) is None


def test_a_pod_of_ours_whose_form_cannot_be_read_is_named() -> None:
    state = vgpu_state()
    bad = pod("p1", {"volcano.sh/vgpu-memory": "-1"})
    labelled = Pod(metadata=Metadata(name="p1", uid="p1", labels={GANG: "g", PHASE: PREFILL}), spec=bad.spec)
    state.apply_pods([(None, labelled)])
    assert state.unreadable_pods["p1"].startswith(
        "Volcano vGPU: containers[0].resources.limits[volcano.sh/vgpu-memory]"
    )
    assert state.snapshot(0, 0).gpus.left_mib.sum() == 2 * 16380  # the others go on


# --- real samples ------------------------------------------------------------------------------


def sample(name: str) -> str:
    folder = os.environ.get("ISOCHRONE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(folder) / "k8s-samples" / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set ISOCHRONE_DATA to the folder that holds k8s-samples/")
    return path.read_text()


def test_real_labels_of_an_h100_node() -> None:
    labels = dict(line.split("=", 1) for line in sample("gfd-labels-h100-migcapable.txt").split())
    devices = node_gpus(node(labels=labels, have={"nvidia.com/gpu": 8}))
    assert (devices.model, devices.memory_mib) == ("NVIDIA-H100-80GB-HBM3", (81559,) * 8)
    older = yaml.safe_load(sample("gfd-labels-dgx2h-a100.yaml"))["labels"]
    assert node_gpus(node(labels=older, have={"nvidia.com/gpu": 1})).memory_mib == (39538,)


def test_real_device_lists() -> None:
    volcano = yaml.safe_load(sample("volcano-vgpu-node-annotations.yaml"))
    assert node_gpus(node(notes=volcano["older"])).memory_mib == (1126, 1126)
    assert node_gpus(node(notes=volcano["newer"])).memory_mib == (16380,)
    hami = yaml.safe_load(sample("hami-node-annotations.yaml"))["annotations"]
    devices = node_gpus(node(notes=hami))
    assert (devices.memory_mib, devices.replicas) == ((32768, 32768), 10)
    given = yaml.safe_load(sample("hami-pod-annotations.yaml"))["annotations"]
    shares = pod_shares(given)
    assert shares is not None
    assert [s.memory_mib for s in shares] == [3000, 5000]
    assert {s.gpu for s in shares} == {devices.uuids[1]}


def test_real_mig_and_qgpu_resources() -> None:
    mig = dict(line.split(": ") for line in sample("node-allocatable-h100-mig-mixed.txt").splitlines() if line.strip())
    amounts = {k.strip(): v.strip() for k, v in mig.items()}
    made = Node(metadata=Metadata(name="n1"), status=NodeStatus(allocatable={**amounts}))
    snapshot = snapshot_of([made])
    assert snapshot.table.allocatable[0, snapshot.table.column["nvidia.com/mig-2g.24gb"]] == 1
    assert snapshot.gpus.memory_mib.shape == (1, 0)
    qgpu = yaml.safe_load(sample("qgpu-resources.yaml"))
    assert node_gpus(Node(status=NodeStatus(allocatable=qgpu["allocatable"]))).memory_mib == (49152,)


def test_a_table_from_the_one_before_is_the_table_made_anew() -> None:
    """Snapshots one after the other, each from the last that was looked at: the same as reading every card again."""
    state = ClusterState()
    made = [node(f"n{i}", notes={VOLCANO_REGISTER: TWO_CARDS}, have={"volcano.sh/vgpu-number": 20}) for i in range(3)]
    state.apply_nodes([(None, n) for n in (*made, gpus(4))])
    asked = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4000}
    steps = [
        (None, pod("a", asked, where="n0")),
        (None, pod("b", {"nvidia.com/gpu": 2}, where="n1")),
        (None, pod("c", {"volcano.sh/vgpu-number": 2}, {"volcano.sh/vgpu-ids-new": "broken"}, where="n2")),
        (pod("a", asked, where="n0"), None),
        (None, pod("d", {"nvidia.com/gpu": 9}, where="n1")),
    ]
    for read, change in enumerate(steps):
        state.apply_pods([change])
        if read == 2:
            continue  # a change that nobody looked at is not lost
        snapshot = state.snapshot(0, 0)
        planned = snapshot.with_assumed(
            {"x": Assumed("n2", {"pods": 1}, GpuAllocation(GpuRequest("Volcano vGPU", memory_mib=9)))}
        )
        emptied = replace(snapshot, used=np.zeros_like(snapshot.used), holds={})
        for now in (planned, snapshot, planned.without_assumed(["x"]), emptied):
            table, column = now.table, now.table.column["nvidia.com/gpu"]
            held = {table.index[name]: holds for name, holds in now.holds.items()}
            anew = gpu_table(table.gpus, now.used[:, column], held)
            for name in ("left_milli", "left_mib", "left_compute", "users", "overcommitted"):
                assert getattr(now.gpus, name).tolist() == getattr(anew, name).tolist()
            assert now.gpus.doubts == anew.doubts
            assert [now.gpus.row(i) for i in range(len(table))] == [anew.row(i) for i in range(len(table))]
