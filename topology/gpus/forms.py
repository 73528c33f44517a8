"""The ways people ask for GPUs and GPU memory: one table, a row a form.

Rules of this file. (1) It knows names, units and who decides, and reads nothing: `topology.gpus.request` turns a pod
into one request by these rows. (2) A row names its public source. (3) `picks` is the rule by which the owner of the
form takes a card; it makes a prediction, never a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topology.labels import GPU_MEMORY, GPU_MEMORY_PEAK, NVIDIA_GPU

LOWEST: Final = "lowest"  # the fitting card with the lowest index
HIGHEST: Final = "highest"  # the fitting card with the highest index
EMPTIEST: Final = "emptiest"  # the fitting card with the most memory left
TIGHTEST: Final = "tightest"  # the fitting card with the least memory left

MIG_PREFIX: Final = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask. Keys are resource names, or annotation names where `annotations` is set; empty means there is
    none. `memory` is counted in units of `unit_mib`, `percent` and `compute` in percent of a card."""

    name: str
    count: str
    source: str
    memory: str = ""
    percent: str = ""
    compute: str = ""
    unit_mib: int = 1
    annotations: bool = False
    isolates: bool = False
    picks: str = TIGHTEST
    pins: str = ""
    """Annotation that names the cards by UUID, so that the card can be chosen and not only the node."""
    allocated: tuple[str, ...] = ()
    """Pod annotations that say which cards were given, the final one first."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key of the form, count first."""
        return tuple(key for key in (self.count, self.memory, self.percent, self.compute) if key)


WHOLE: Final = Form(
    name="whole GPU",
    count=NVIDIA_GPU,
    isolates=True,
    picks=LOWEST,
    source="NVIDIA/k8s-device-plugin README: nvidia.com/gpu counts whole GPUs, or replicas where GPUs are shared",
)
HAMI: Final = Form(
    name="HAMi",
    count=NVIDIA_GPU,
    memory="nvidia.com/gpumem",
    percent="nvidia.com/gpumem-percentage",
    compute="nvidia.com/gpucores",
    isolates=True,
    picks=EMPTIEST,
    pins="nvidia.com/use-gpuuuid",
    allocated=("hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"),
    source="Project-HAMi/HAMi docs/config.md (names, units) and docs/develop/protocol.md (annotations)",
)
MIG: Final = Form(
    name="MIG",
    count=MIG_PREFIX,
    isolates=True,
    picks=LOWEST,
    source="NVIDIA/k8s-device-plugin README: mixed strategy, nvidia.com/mig-<slices>g.<memory>gb",
)
VOLCANO_VGPU: Final = Form(
    name="Volcano vGPU",
    count="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    percent="volcano.sh/vgpu-memory-percentage",
    compute="volcano.sh/vgpu-cores",
    isolates=True,
    picks=HIGHEST,
    pins="volcano.sh/vgpu-use-gpuuuid",
    allocated=("volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate"),
    source="volcano-sh/volcano pkg/scheduler/api/devices/nvidia/vgpu: type.go, utils.go (the last card first)",
)
VOLCANO_SHARE: Final = Form(
    name="Volcano GPU sharing",
    count="",
    memory="volcano.sh/gpu-memory",
    picks=LOWEST,
    allocated=("volcano.sh/gpu-index",),
    source="volcano-sh/volcano docs/user-guide/how_to_use_gpu_sharing.md: MiB of one card, not enforced",
)
VOLCANO_NUMBER: Final = Form(
    name="Volcano GPU number",
    count="volcano.sh/gpu-number",
    isolates=True,
    picks=LOWEST,
    allocated=("volcano.sh/gpu-index",),
    source="volcano-sh/volcano docs/user-guide/how_to_use_gpu_number.md: whole cards",
)
QGPU: Final = Form(
    name="qGPU",
    count="",
    memory="tke.cloud.tencent.com/qgpu-memory",
    compute="tke.cloud.tencent.com/qgpu-core",
    unit_mib=1024,
    isolates=True,
    source="Tencent Cloud TKE documentation 457/65734: memory in GiB, core 5 to 100 in steps of 5, or whole cards",
)
KAI: Final = Form(
    name="KAI fraction",
    count="gpu-fraction-num-devices",
    memory="gpu-memory",
    percent="gpu-fraction",
    annotations=True,
    source="kai-scheduler/KAI-Scheduler docs/gpu-sharing: memory is not enforced",
)
OURS: Final = Form(
    name="Isochrone memory",
    count="",
    memory=GPU_MEMORY,
    annotations=True,
    source="docs/contracts.md of this project: what one GPU of the pod will hold, and its peak",
)

FORMS: Final = (WHOLE, HAMI, MIG, VOLCANO_VGPU, VOLCANO_SHARE, VOLCANO_NUMBER, QGPU, KAI, OURS)
"""Every form; `WHOLE` and `HAMI` share the count, `OURS` goes beside any other."""

GPU_ANNOTATIONS: Final = frozenset(
    {key for form in FORMS if form.annotations for key in form.keys}
    | {GPU_MEMORY_PEAK}
    | {form.pins for form in FORMS if form.pins}
)
"""Pod annotations that change what is asked of a card."""

GPU_PARTS: Final = frozenset(
    key for form in FORMS if not form.annotations for key in (form.memory, form.percent, form.compute) if key
)
"""Resources that name a part of each card: judged card by card, never against a node's total (which HAMi does not even
publish)."""

GPU_RESOURCES: Final = frozenset(
    key for form in FORMS if not form.annotations for key in form.keys if key not in (NVIDIA_GPU, MIG_PREFIX)
)
"""Resources that ask for a part of a card, or for cards under another name than nvidia.com/gpu."""
