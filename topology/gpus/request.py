"""What one pod asks of GPUs, whichever form it is written in: one reader, one value.

Rules of this file. (1) Amounts are per GPU, rounded up. A sharing plugin serves container by container, and two of them
may have parts of one card: they are kept apart. (2) A pod asks in one form; our own memory annotations may stand beside
any. (3) What cannot be read is refused with form, key and value in one sentence, and costs only that pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topology.bad_input import BadInput
from topology.gpus.amounts import read_count, read_fraction, read_percent, read_size_mib, read_units_mib
from topology.gpus.forms import (
    GPU_ANNOTATIONS,
    GPU_RESOURCES,
    HAMI,
    KAI,
    MIG,
    MIG_PREFIX,
    OURS,
    QGPU,
    VOLCANO_NUMBER,
    VOLCANO_SHARE,
    VOLCANO_VGPU,
    WHOLE,
    Form,
)
from topology.gpus.gpu_request import GpuRequest, whole_gpus
from topology.gpus.mig_profiles import known_profile, profile_mib
from topology.labels import GPU_MEMORY, GPU_MEMORY_PEAK, NVIDIA_GPU
from topology.objects import PodSpec

Found = dict[str, list[tuple[str, object, bool]]]  # key to (where, value, is an init step)

_PLAIN: Final = frozenset((NVIDIA_GPU,))


def requests_gpus(spec: PodSpec, annotations: Mapping[str, str] | None = None) -> bool:
    """Whether a pod may ask for more than plain whole GPUs: a look at names alone, for streams of thousands of pods."""
    if annotations and not GPU_ANNOTATIONS.isdisjoint(annotations):
        return True
    for container in (*spec.containers, *(spec.init_containers or ())):
        for names in (container.resources.limits, container.resources.requests):
            for name in names or ():
                if name in GPU_RESOURCES or name.startswith(MIG_PREFIX):
                    return True
    return False


def gpu_request(spec: PodSpec, annotations: Mapping[str, str] | None = None) -> GpuRequest | None:
    """What the pod asks of GPUs, or None for a pod that asks for none.

    Raises BadInput naming form, key and value: no quantity, out of range, a size without its unit, a MIG profile that
    no card has, forms that contradict each other.
    """
    found = _found(spec)
    notes = {k: v for k, v in (annotations or {}).items() if k in GPU_ANNOTATIONS}
    if not found and not notes:
        return None
    if not notes and found.keys() == _PLAIN:  # nearly every pod
        count = _count(WHOLE, found, NVIDIA_GPU)
        return whole_gpus(count) if count else None
    forms = _forms(found, notes)
    if len(forms) > 1:
        (_, first, _), (form, key, value) = forms[0], forms[1]
        raise BadInput(f"{form.name}: {key}", value, f"a pod asks in one form, and this one asks for {first} too")
    if forms:
        request = _by_container(forms[0][0], found, notes) or _READERS[forms[0][0].name](found, notes)
    elif GPU_MEMORY in notes or GPU_MEMORY_PEAK in notes:
        request = GpuRequest(form=OURS.name)
    else:
        return None
    return _with_ours(request, notes) if request is not None else None


def _found(spec: PodSpec) -> Found:
    """Every resource of the pod that is about GPUs."""
    found: Found = {}
    steps = [(c, f"containers[{i}]", False) for i, c in enumerate(spec.containers)]
    for i, c in enumerate(spec.init_containers or ()):
        steps.append((c, f"initContainers[{i}]", c.restart_policy != "Always"))
    for container, where, step in steps:
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        for key in {**limits, **requests}:
            if key == NVIDIA_GPU or key in GPU_RESOURCES or key.startswith(MIG_PREFIX):
                kind, value = ("requests", requests[key]) if key in requests else ("limits", limits[key])
                found.setdefault(key, []).append((f"{where}.resources.{kind}[{key}]", value, step))
    return found


# complexity: one case a form of GPU request
def _forms(found: Found, notes: Mapping[str, str]) -> list[tuple[Form, str, object]]:
    """The forms the pod uses, each with the key and value that shows it."""
    hami = [k for k in HAMI.keys if k in found and k != NVIDIA_GPU]
    used: list[tuple[Form, str, object]] = []
    if hami:
        used.append((HAMI, hami[0], found[hami[0]][0][1]))
    elif NVIDIA_GPU in found and _count(WHOLE, found, NVIDIA_GPU):
        used.append((WHOLE, NVIDIA_GPU, found[NVIDIA_GPU][0][1]))
    for key in sorted(k for k in found if k.startswith(MIG_PREFIX)):
        if _count(MIG, found, key):
            used.append((MIG, key, found[key][0][1]))
            break
    for form in (VOLCANO_VGPU, VOLCANO_SHARE, VOLCANO_NUMBER, QGPU):
        keys = [k for k in form.keys if k in found]
        if keys and not (keys == [form.count] and not _count(form, found, form.count)):
            used.append((form, keys[0], found[keys[0]][0][1]))
    keys = [k for k in KAI.keys if k in notes]
    if keys:
        used.append((KAI, keys[0], notes[keys[0]]))
    return used


# --- one number --------------------------------------------------------------------------------


def _count(form: Form, found: Found, key: str) -> int:
    """Devices of a key: containers and sidecars together, or the largest init step."""
    running, steps = 0, 0
    for where, value, step in found.get(key, ()):
        number = read_count(value, f"{form.name}: {where}")
        running, steps = (running, max(steps, number)) if step else (running + number, steps)
    return max(running, steps)


def _memory(form: Form, found: Found) -> tuple[int, int]:
    """Memory per card: MiB and thousandths of the card, at most one of them more than 0. Containers that say both are
    contradictory."""
    mib = [
        read_units_mib(value, f"{form.name}: {where}", form.unit_mib) for where, value, _ in found.get(form.memory, ())
    ]
    milli = [read_percent(value, f"{form.name}: {where}") for where, value, _ in found.get(form.percent, ())]
    if mib and milli:
        where, value, _ = found[form.percent][0]
        raise BadInput(f"{form.name}: {where}", value, f"use it or {form.memory}, not both")
    return max(mib, default=0), max(milli, default=0)


def _compute(form: Form, found: Found) -> int:
    return max(
        (read_percent(v, f"{form.name}: {where}", least=0) for where, v, _ in found.get(form.compute, ())), default=0
    )


# complexity: comprehensions alone, over the containers of one pod
def _by_container(form: Form, found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    """The request of a pod of which several containers ask a sharing plugin for cards; None for any other.

    Each container's cards are chosen by themselves, one container after the other (volcano-sh/volcano vgpu/utils.go,
    checkNodeGPUSharingPredicateAndScore; HAMi does the same, and so does qGPU, tkestack/elastic-gpu-scheduler).
    """
    if form not in (VOLCANO_VGPU, HAMI, QGPU):
        return None
    by_container: dict[str, Found] = {}
    for key in form.keys:
        for where, value, step in found.get(key, ()):
            if not step:
                mine = by_container.setdefault(where.split(".")[0], {})
                mine.setdefault(key, []).append((where, value, step))
    asking = [f for _, f in sorted(by_container.items()) if form.count not in f or _count(form, f, form.count)]
    if len(asking) < 2:
        return None
    parts = tuple(part for f in asking if (part := _READERS[form.name](f, notes)) is not None)
    # With our own annotations, which speak of every GPU of the pod, the largest amounts count for all.
    return GpuRequest(
        form=form.name,
        count=max(sum(part.count for part in parts), _count(form, found, form.count)),
        memory_mib=max(part.memory_mib for part in parts),
        memory_milli=max(part.memory_milli for part in parts),
        compute_milli=max(part.compute_milli for part in parts),
        whole=any(part.whole for part in parts),
        pinned=parts[0].pinned,
        parts=parts,
    )


# --- one form each -----------------------------------------------------------------------------


def _whole(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    return whole_gpus(_count(WHOLE, found, NVIDIA_GPU))


def _virtual(form: Form, found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    """HAMi and Volcano vGPU: cards by number (one where only an amount is given), all of a card's memory by default."""
    count = _count(form, found, form.count) if form.count in found else 1
    mib, milli = _memory(form, found)
    compute = _compute(form, found)
    pinned = tuple(uuid.strip() for uuid in notes.get(form.pins, "").split(",") if uuid.strip())
    return GpuRequest(
        form=form.name,
        count=max(count, 1),
        memory_mib=mib,
        memory_milli=milli,
        compute_milli=compute,
        whole=not mib and not milli,
        pinned=pinned,
    )


def _hami(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    return _virtual(HAMI, found, notes)


def _vgpu(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    return _virtual(VOLCANO_VGPU, found, notes)


def _mig(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    profiles = []
    for key in sorted(k for k in found if k.startswith(MIG_PREFIX)):
        if not (count := _count(MIG, found, key)):
            continue
        if known_profile(key.removeprefix(MIG_PREFIX)) is None:
            where, value, _ = found[key][0]
            raise BadInput(f"{MIG.name}: {where}", value, f"no card has a MIG profile {key.removeprefix(MIG_PREFIX)}")
        profiles.append((key.removeprefix(MIG_PREFIX), count))
    return GpuRequest(form=MIG.name, count=sum(n for _, n in profiles), profiles=tuple(profiles))


def _share(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    """One card with the sum of the containers, or with the largest init step (volcano-sh/volcano gpushare/share.go,
    getGPUMemoryOfPod)."""
    running, steps = 0, 0
    for where, value, step in found.get(VOLCANO_SHARE.memory, ()):
        mib = read_units_mib(value, f"{VOLCANO_SHARE.name}: {where}", VOLCANO_SHARE.unit_mib)
        running, steps = (running, max(steps, mib)) if step else (running + mib, steps)
    return GpuRequest(form=VOLCANO_SHARE.name, memory_mib=max(running, steps))


def _number(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    return GpuRequest(form=VOLCANO_NUMBER.name, count=_count(VOLCANO_NUMBER, found, VOLCANO_NUMBER.count), whole=True)


def _qgpu(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    """qGPU: core up to 100 is a share of one card, multiples of 100 above it are whole cards."""
    core = 0
    for where, value, _ in found.get(QGPU.compute, ()):
        field = f"{QGPU.name}: {where}"
        number = read_count(value, field, most=100_000)
        if not number or number % (5 if number <= 100 else 100):
            raise BadInput(field, value, "use 5 to 100 in steps of 5, or a multiple of 100 for whole cards")
        core = max(core, number)
    mib, _ = _memory(QGPU, found)
    if core > 100 and mib:
        where, value, _ = found[QGPU.memory][0]
        raise BadInput(
            f"{QGPU.name}: {where}", value, f"{QGPU.compute} {core} asks for whole cards, with all their memory"
        )
    return GpuRequest(
        form=QGPU.name,
        count=max(core // 100, 1),
        memory_mib=mib,
        memory_milli=0 if mib or core >= 100 else core * 10,  # no memory said: as large a part as of the cores
        compute_milli=min(core, 100) * 10,
        whole=not mib and core >= 100,
    )


def _kai(found: Found, notes: Mapping[str, str]) -> GpuRequest | None:
    present = {key: notes[key] for key in KAI.keys if key in notes}
    if KAI.memory in present and KAI.percent in present:
        raise BadInput(f"{KAI.name}: {KAI.memory}", present[KAI.memory], f"use it or {KAI.percent}, not both")
    if KAI.memory not in present and KAI.percent not in present:
        raise BadInput(f"{KAI.name}: {KAI.count}", present[KAI.count], f"state {KAI.percent} or {KAI.memory} with it")
    count = read_count(present.get(KAI.count, "1"), f"{KAI.name}: {KAI.count}")
    if count == 0:
        raise BadInput(f"{KAI.name}: {KAI.count}", present[KAI.count], "use a whole number of 1 or more")
    milli = read_fraction(present[KAI.percent], f"{KAI.name}: {KAI.percent}") if KAI.percent in present else 0
    mib = read_units_mib(present[KAI.memory], f"{KAI.name}: {KAI.memory}") if KAI.memory in present else 0
    return GpuRequest(form=KAI.name, count=count, memory_mib=mib, memory_milli=milli, compute_milli=milli)


_READERS: Final = {
    WHOLE.name: _whole,
    HAMI.name: _hami,
    MIG.name: _mig,
    VOLCANO_VGPU.name: _vgpu,
    VOLCANO_SHARE.name: _share,
    VOLCANO_NUMBER.name: _number,
    QGPU.name: _qgpu,
    KAI.name: _kai,
}


# --- our annotations ---------------------------------------------------------------------------


# complexity: one case an annotation of ours
def _with_ours(request: GpuRequest, notes: Mapping[str, str]) -> GpuRequest:
    """The request with our own annotations laid over it: what one GPU will hold, and its peak."""
    if GPU_MEMORY not in notes and GPU_MEMORY_PEAK not in notes:
        return request
    ours = read_size_mib(notes[GPU_MEMORY], f"{OURS.name}: {GPU_MEMORY}") if GPU_MEMORY in notes else 0
    peak = read_size_mib(notes[GPU_MEMORY_PEAK], f"{OURS.name}: {GPU_MEMORY_PEAK}") if GPU_MEMORY_PEAK in notes else 0
    given = request.memory_mib or min((profile_mib(name) for name, _ in request.profiles), default=0)
    if given and ours > given:
        present = f"{request.form} gives the pod {given} MiB of each card"
        raise BadInput(f"{OURS.name}: {GPU_MEMORY}", notes[GPU_MEMORY], f"{present}; ask for no more than that")
    if request.profiles and peak > given:
        raise BadInput(
            f"{OURS.name}: {GPU_MEMORY_PEAK}",
            notes[GPU_MEMORY_PEAK],
            f"a MIG instance of the pod has {given} MiB in all",
        )
    # What the device's owner sets aside counts, even where the pod means to use less of it.
    memory = request.memory_mib or ours
    if request.form == OURS.name and not memory:
        raise BadInput(f"{OURS.name}: {GPU_MEMORY_PEAK}", notes[GPU_MEMORY_PEAK], f"state {GPU_MEMORY} with it")
    if peak and peak < max(ours, request.memory_mib):
        raise BadInput(
            f"{OURS.name}: {GPU_MEMORY_PEAK}", notes[GPU_MEMORY_PEAK], f"a peak is at least the request of {memory} MiB"
        )
    return GpuRequest(
        form=request.form,
        count=request.count,
        memory_mib=memory if not request.memory_milli else request.memory_mib,
        memory_milli=request.memory_milli,
        compute_milli=request.compute_milli,
        peak_mib=peak,
        profiles=request.profiles,
        whole=request.whole,
        pinned=request.pinned,
    )


def readable_gpus(
    spec: PodSpec, annotations: Mapping[str, str] | None = None
) -> tuple[GpuRequest | None, BadInput | None]:
    """`gpu_request`, or nothing and the reason, for callers that must go on with the others."""
    try:
        return gpu_request(spec, annotations), None
    except BadInput as bad:
        return None, bad
