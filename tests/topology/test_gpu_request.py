"""Every form of asking for GPUs, as one request value: amounts by hand, bad input by its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from topology.bad_input import BadInput
from topology.gpus.forms import FORMS
from topology.gpus.gpu_request import BY_NAME, GpuRequest
from topology.gpus.request import gpu_request, readable_gpus
from topology.labels import GPU_MEMORY, GPU_MEMORY_PEAK
from topology.objects import Container, PodSpec, Resources

VGPU = "volcano.sh/vgpu-"
QGPU = "tke.cloud.tencent.com/qgpu-"


def spec(*limits: Mapping[str, str | int | float], init: Mapping[str, str] | None = None) -> PodSpec:
    boxes = tuple(Container(resources=Resources(limits=dict(given))) for given in limits)
    steps = (Container(resources=Resources(limits=dict(init))),) if init else None
    return PodSpec(containers=boxes, init_containers=steps)


READ: list[tuple[str, Mapping[str, str | int | float], Mapping[str, str], GpuRequest]] = [
    ("whole", {"nvidia.com/gpu": 2}, {}, GpuRequest("whole GPU", count=2, whole=True)),
    ("one as milli", {"nvidia.com/gpu": "1000m"}, {}, GpuRequest("whole GPU", whole=True)),
    (
        "whole with its memory",
        {"nvidia.com/gpu": 1},
        {GPU_MEMORY: "60Gi", GPU_MEMORY_PEAK: "68G"},  # 68e9 / 2^20 = 64849.85, rounded up
        GpuRequest("whole GPU", whole=True, memory_mib=61440, peak_mib=64850),
    ),
    (
        "two MIG profiles",
        {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb": "1", "nvidia.com/gpu": 0},
        {},
        GpuRequest("MIG", count=3, profiles=(("1g.10gb", 2), ("3g.40gb", 1))),
    ),
    ("MIG with media", {"nvidia.com/mig-1g.10gb.me": 1}, {}, GpuRequest("MIG", profiles=(("1g.10gb.me", 1),))),
    ("vGPU", {f"{VGPU}number": 2}, {}, GpuRequest("Volcano vGPU", count=2, whole=True)),
    (
        "vGPU in MiB and cores",
        {f"{VGPU}number": 1, f"{VGPU}memory": "3000", f"{VGPU}cores": 50},
        {},
        GpuRequest("Volcano vGPU", memory_mib=3000, compute_milli=500),
    ),
    (
        "vGPU in percent, and pinned",
        {f"{VGPU}number": 1, f"{VGPU}memory-percentage": "12.5"},
        {f"{VGPU}use-gpuuuid": "GPU-a, GPU-b"},
        GpuRequest("Volcano vGPU", memory_milli=125, pinned=("GPU-a", "GPU-b")),
    ),
    ("vGPU memory alone is one card", {f"{VGPU}memory": 1}, {}, GpuRequest("Volcano vGPU", memory_mib=1)),
    ("old sharing", {"volcano.sh/gpu-memory": 1024}, {}, GpuRequest("Volcano GPU sharing", memory_mib=1024)),
    ("old number", {"volcano.sh/gpu-number": 4}, {}, GpuRequest("Volcano GPU number", count=4, whole=True)),
    (
        "HAMi",
        {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": 30},
        {},
        GpuRequest("HAMi", count=2, memory_mib=10240, compute_milli=300),
    ),
    ("HAMi percent", {"nvidia.com/gpumem-percentage": 25}, {}, GpuRequest("HAMi", memory_milli=250)),
    ("qGPU", {f"{QGPU}core": 20, f"{QGPU}memory": 8}, {}, GpuRequest("qGPU", memory_mib=8192, compute_milli=200)),
    ("qGPU memory alone", {f"{QGPU}memory": 8}, {}, GpuRequest("qGPU", memory_mib=8192)),
    ("qGPU cores alone", {f"{QGPU}core": 20}, {}, GpuRequest("qGPU", memory_milli=200, compute_milli=200)),
    ("qGPU whole cards", {f"{QGPU}core": 200}, {}, GpuRequest("qGPU", count=2, compute_milli=1000, whole=True)),
    ("KAI", {}, {"gpu-fraction": "0.5"}, GpuRequest("KAI fraction", memory_milli=500, compute_milli=500)),
    (
        "KAI on several cards",
        {},
        {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"},
        GpuRequest("KAI fraction", count=2, memory_mib=2000),
    ),
    ("our memory alone", {}, {GPU_MEMORY: "20Gi"}, GpuRequest("Isochrone memory", memory_mib=20480)),
    (
        "our peak beside a vGPU",
        {f"{VGPU}number": 1, f"{VGPU}memory": 20480},
        {GPU_MEMORY_PEAK: "30Gi"},
        GpuRequest("Volcano vGPU", memory_mib=20480, peak_mib=30720),
    ),
]


@pytest.mark.parametrize(("limits", "notes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in READ])
def test_a_form(limits: Mapping[str, str], notes: Mapping[str, str], expected: GpuRequest) -> None:
    assert gpu_request(spec(limits), notes) == expected


def test_no_gpu_is_no_request() -> None:
    assert gpu_request(spec({"cpu": "4"}), {"team": "a"}) is None
    assert gpu_request(spec({"nvidia.com/gpu": 0, f"{VGPU}number": 0})) is None
    assert gpu_request(PodSpec()) is None


def test_containers_count_together_and_init_steps_by_themselves() -> None:
    both = spec({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1}, init={"nvidia.com/gpu": "4"})
    assert gpu_request(both) == GpuRequest("whole GPU", count=4, whole=True)
    # Two containers with vGPUs of 3,000 and 5,000 MiB: each its own, on two cards or on one.
    two = spec({f"{VGPU}number": 1, f"{VGPU}memory": 3000}, {f"{VGPU}number": 1, f"{VGPU}memory": 5000})
    parts = tuple(GpuRequest("Volcano vGPU", memory_mib=mib) for mib in (3000, 5000))
    assert gpu_request(two) == GpuRequest("Volcano vGPU", count=2, memory_mib=5000, parts=parts)
    # Our own annotation speaks of every GPU of the pod: two cards, the larger amount for each.
    with_peak = gpu_request(two, {"isochrone.dev/gpu-memory-peak": "8Gi"})
    assert with_peak == GpuRequest("Volcano vGPU", count=2, memory_mib=5000, peak_mib=8192)
    # A container that asks for memory alone has one card, one without either is served nothing.
    mixed = spec({f"{VGPU}memory": 3000}, {f"{VGPU}memory-percentage": 50, f"{VGPU}number": 2}, {"cpu": "1"})
    read = gpu_request(mixed)
    assert read is not None
    assert [(part.count, part.memory_mib, part.memory_milli) for part in read.parts] == [(1, 3000, 0), (2, 0, 500)]


def test_the_older_sharing_adds_containers_up() -> None:
    # volcano.sh/gpu-memory: one card with 2,000 + 3,000 MiB, or with the largest init step.
    memory = "volcano.sh/gpu-memory"
    assert gpu_request(spec({memory: 2000}, {memory: 3000})) == GpuRequest("Volcano GPU sharing", memory_mib=5000)
    stepped = spec({memory: 2000}, {memory: 3000}, init={memory: "6000"})
    assert gpu_request(stepped) == GpuRequest("Volcano GPU sharing", memory_mib=6000)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_row_has_a_source_and_a_key(form: Any) -> None:
    assert form.source
    assert form.keys
    assert BY_NAME[form.name] is form


def test_only_walls_isolate() -> None:
    open_forms = {form.name for form in FORMS if not form.isolates}
    assert open_forms == {"Volcano GPU sharing", "KAI fraction", "Isochrone memory"}


BAD: list[tuple[Mapping[str, Any], Mapping[str, str], str]] = [
    (
        {f"{VGPU}memory": "-5"},
        {},
        r"^Volcano vGPU: containers\[0\]\.resources\.limits\[volcano\.sh/vgpu-memory\] is '-5'",
    ),
    (
        {f"{VGPU}memory": "60Gi"},
        {},
        r"vgpu-memory\] is '60Gi'; use a whole number in units of 1 MiB, from 1 to 16777216$",
    ),
    ({f"{VGPU}memory": float("nan")}, {}, r"^Volcano vGPU: .*vgpu-memory\] is nan;"),
    ({f"{VGPU}memory": 0}, {}, r"^Volcano vGPU: .*vgpu-memory\] is 0;"),
    ({f"{VGPU}number": "1.5"}, {}, r"^Volcano vGPU: .*vgpu-number\] is '1.5'; use a whole number from 0 to 1024$"),
    ({f"{VGPU}cores": 101}, {}, r"^Volcano vGPU: .*vgpu-cores\] is 101; use a percentage of a card, 0 to 100$"),
    ({f"{VGPU}memory-percentage": "0"}, {}, r"^Volcano vGPU: .*percentage\] is '0'; use a percentage of a card from 1"),
    (
        {f"{VGPU}memory": 1, f"{VGPU}memory-percentage": 1},
        {},
        r"percentage\] is 1; use it or volcano.sh/vgpu-memory, not",
    ),
    ({"nvidia.com/gpu": "1e99"}, {}, r"^whole GPU: .*\[nvidia.com/gpu\] is '1e99'; use a whole number from 0 to 1024$"),
    ({"nvidia.com/gpu": "NaN"}, {}, r"^whole GPU: .*\[nvidia.com/gpu\] is 'NaN';"),
    ({"nvidia.com/mig-5g.50gb": 1}, {}, r"^MIG: .*mig-5g.50gb\] is 1; no card has a MIG profile 5g.50gb$"),
    ({"nvidia.com/gpumem": "1", "nvidia.com/gpumem-percentage": "1"}, {}, r"^HAMi: .* not both$"),
    ({f"{QGPU}core": 7}, {}, r"^qGPU: .*qgpu-core\] is 7; use 5 to 100 in steps of 5, or a multiple of 100"),
    ({f"{QGPU}core": 250}, {}, r"^qGPU: .*qgpu-core\] is 250;"),
    ({f"{QGPU}core": 200, f"{QGPU}memory": 4}, {}, r"^qGPU: .*qgpu-memory\] is 4; .*asks for whole cards"),
    ({}, {"gpu-fraction": "1.5"}, r"^KAI fraction: gpu-fraction is '1.5'; use a fraction of a card above 0"),
    ({}, {"gpu-fraction": "0"}, r"^KAI fraction: gpu-fraction is '0';"),
    ({}, {"gpu-fraction": "0.5", "gpu-memory": "100"}, r"^KAI fraction: gpu-memory is '100'; use it or gpu-fraction"),
    ({}, {"gpu-fraction-num-devices": "2"}, r"^KAI fraction: gpu-fraction-num-devices is '2'; state gpu-fraction or"),
    (
        {"nvidia.com/gpu": 1},
        {GPU_MEMORY: "60"},
        r"^Isochrone memory: isochrone.dev/gpu-memory is '60'; use a size with its",
    ),
    ({"nvidia.com/gpu": 1}, {GPU_MEMORY: "-1Gi"}, r"^Isochrone memory: isochrone.dev/gpu-memory is '-1Gi';"),
    ({"nvidia.com/gpu": 1}, {GPU_MEMORY: "NaN"}, r"^Isochrone memory: isochrone.dev/gpu-memory is 'NaN';"),
    ({"nvidia.com/gpu": 1}, {GPU_MEMORY: "900Pi"}, r"^Isochrone memory: isochrone.dev/gpu-memory is '900Pi';"),
    ({"nvidia.com/gpu": 1}, {GPU_MEMORY: "500m"}, r"^Isochrone memory: isochrone.dev/gpu-memory is '500m';"),
    (
        {"nvidia.com/gpu": 1},
        {GPU_MEMORY: "4Gi", GPU_MEMORY_PEAK: "3Gi"},
        r"gpu-memory-peak is '3Gi'; a peak is at least the request of 40",
    ),
    (
        {},
        {GPU_MEMORY_PEAK: "3Gi"},
        r"^Isochrone memory: isochrone.dev/gpu-memory-peak is '3Gi'; state isochrone.dev/gpu-memory with",
    ),
    (
        {f"{VGPU}memory": 100},
        {GPU_MEMORY: "1Gi"},
        r"gpu-memory is '1Gi'; Volcano vGPU gives the pod 100 MiB of each card;",
    ),
    (
        {"nvidia.com/mig-1g.10gb": 1},
        {GPU_MEMORY: "11Gi"},
        r"gpu-memory is '11Gi'; MIG gives the pod 10240 MiB of each card;",
    ),
    (
        {"nvidia.com/mig-1g.10gb": 1},
        {GPU_MEMORY_PEAK: "11Gi"},
        r"gpu-memory-peak is '11Gi'; a MIG instance of the pod has 10240 MiB",
    ),
    (
        {"nvidia.com/gpu": 1, f"{VGPU}number": 1},
        {},
        r"^Volcano vGPU: volcano.sh/vgpu-number is 1; a pod asks in one form, ",
    ),
    ({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1}, {}, r"^MIG: .* this one asks for nvidia.com/gpu too$"),
    (
        {"nvidia.com/gpu": 1},
        {"gpu-fraction": "0.5"},
        r"^KAI fraction: gpu-fraction is '0.5'; .* asks for nvidia.com/gpu too",
    ),
    ({f"{QGPU}memory": 1, "volcano.sh/gpu-memory": 1}, {}, r"^qGPU: .* this one asks for volcano.sh/gpu-memory too$"),
]


@pytest.mark.parametrize(("limits", "notes", "value"), BAD)
def test_bad_input_names_form_key_and_value(limits: Mapping[str, Any], notes: Mapping[str, str], value: str) -> None:
    with pytest.raises(BadInput, match=value):
        gpu_request(spec(limits), notes)
    request, bad = readable_gpus(spec(limits), notes)
    assert request is None
    assert bad is not None


def test_only_the_node_can_be_chosen_unless_cards_are_pinned() -> None:
    loose, pinned = (
        gpu_request(spec({f"{VGPU}number": 1})),
        gpu_request(spec({f"{VGPU}number": 1}), {f"{VGPU}use-gpuuuid": "GPU-a"}),
    )
    assert loose is not None
    assert pinned is not None
    assert (loose.predicted, pinned.predicted) == (True, False)
