"""EDGE: all GPUs of the node through NVML, with what was known of those that do not answer.

Decides what one bad GPU costs (itself), when NVML as a whole is lost (no GPU answers), and which errors make a GPU
unfit. A call may take long: run it in a thread, never on the event loop. It must never know who wants the facts.

Public sources: NVML API reference; for Xid errors that applications cause, NVIDIA/k8s-device-plugin
`internal/rm/health.go`.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass, replace
from typing import Any, Final

from topology.agent.nvml_gpu import read_gpu
from topology.agent.nvml_mig import MigChanging
from topology.agent.nvml_session import TIMEOUT, GpuGone, NvmlGone, NvmlQuery, Session, reason
from topology.clock import monotonic_s
from topology.facts.report import Distance, Gpu, GpuPair, Health, Memory, NvmlState, Remote, Xid

log = logging.getLogger(__name__)

PER_GPU_S: Final = 2.0  # what one GPU may cost a collection; its remaining fields are then "timeout"
_LEVELS: Final = {
    0: Distance.SAME,
    10: Distance.PIX,
    20: Distance.PXB,
    30: Distance.PHB,
    40: Distance.NODE,
    50: Distance.SYS,
}
_XID: Final = 0x8  # nvmlEventTypeXidCriticalError
_HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})  # an application's fault: the GPU goes on
_MOST_XIDS: Final = 32
_MOST_SKIPPED: Final = 3
"""Looks in a row that a MIG layout may be changing; beyond, the driver will not tell, which costs those fields only."""
_MOST_EVENTS: Final = 256  # taken in one collection


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """One look. `skipped`: a reason why this look is worth nothing and the one before it stays."""

    state: NvmlState
    problem: str | None = None
    gpus: tuple[Gpu, ...] = ()
    memory: tuple[Memory, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: int | None = None
    problems: tuple[str, ...] = ()
    skipped: str = ""


class NvmlReader:
    """For one thread."""

    def __init__(self, session: Session | None = None, *, per_gpu_s: float = PER_GPU_S) -> None:
        self.session = session or Session()
        self._per_gpu_s = per_gpu_s
        self._known: dict[str, Gpu] = {}  # by uuid: the last that was read of each
        self._xids: dict[str, dict[int, Xid]] = {}
        self._events: Any = None
        self._listening: frozenset[str] = frozenset()  # GPUs whose errors go to it
        self._skipped = 0  # looks in a row that were worth nothing
        self._logged: set[tuple[str, str]] = set()

    def read(self, now_s: float) -> NvmlReading:
        """One look; never raises. `now_s`: the wall time, for errors that the driver reports."""
        if not self.session.start():
            state = NvmlState.LOST if self.session.was_up else NvmlState.ABSENT
            return NvmlReading(state=state, problem=self.session.problem)
        try:
            reading = self._read_all(now_s)
        except MigChanging:
            self._skipped += 1
            return NvmlReading(state=NvmlState.OK, skipped="the MIG layout is being changed")
        except NvmlGone as gone:
            self._events = None
            self._xids.clear()  # whatever comes back was started anew
            self.session.lost(gone.code)
            return NvmlReading(state=NvmlState.LOST, problem=self.session.problem)
        if not any(field == "mig.instances" for gpu in reading.gpus for field, _ in gpu.refused):
            self._skipped = 0
        return reading

    def close(self) -> None:
        """At the end."""
        self._events = None
        self.session.stop()

    def _read_all(self, now_s: float) -> NvmlReading:
        nvml = self.session.nvml
        node = NvmlQuery(nvml, monotonic_s() + self._per_gpu_s)
        code, count = node.answer("nvmlDeviceGetCount")
        if code:
            raise NvmlGone(code)
        found, memory, problems = self._gpus(nvml, count)
        found = _with_far_ends(found)
        self._take_events(nvml, found, now_s)
        for uuid in found:
            if (before := self._known.get(uuid)) is not None and before.health is Health.LOST:
                self._xids.pop(uuid, None)  # it was reset
        gpus = [self._with_xids(gpu) for gpu, _ in found.values()]
        lost = [_lost(gpu) for uuid, gpu in self._known.items() if uuid not in found]
        self._known = {gpu.uuid: gpu for gpu in (*gpus, *lost)}
        return NvmlReading(
            state=NvmlState.OK,
            gpus=tuple(sorted((*gpus, *lost), key=lambda gpu: gpu.uuid)),
            memory=tuple(sorted({reading.uuid: reading for reading in memory}.values(), key=lambda m: m.uuid)),
            pairs=self._pairs(nvml, found),
            driver_version=node.demand("driver_version", "nvmlSystemGetDriverVersion"),
            cuda_driver_version=node.demand("cuda_driver_version", "nvmlSystemGetCudaDriverVersion_v2"),
            problems=tuple(problems),
        )

    def _gpus(self, nvml: Any, count: int) -> tuple[dict[str, tuple[Gpu, Any]], list[Memory], list[str]]:
        """GPUs that answer, by uuid with their handles; their memory; and what was never seen. Raises NvmlGone if no
        GPU answers although none fell off the bus."""
        found: dict[str, tuple[Gpu, Any]] = {}
        memory: list[Memory] = []
        problems: list[str] = []
        last_code, gone = 0, 0
        for index in range(count):
            try:
                code, gpu, handle, readings = self._gpu(nvml, index)
                if gpu is not None:
                    found[gpu.uuid] = gpu, handle
                    memory += readings
                    continue
                last_code, why = code, reason(code)
            except GpuGone:
                gone, why = gone + 1, "it fell off the bus"
            if not any(gpu.index == index for gpu in self._known.values()):
                problems.append(f"GPU {index} does not answer and was never seen: {why}")
        if count and not found and not gone:
            raise NvmlGone(last_code)
        return found, memory, problems

    def _gpu(self, nvml: Any, index: int) -> tuple[int, Gpu | None, Any, list[Memory]]:
        """NVML's code, and if that is 0 the GPU, its handle and its memory. Raises GpuGone."""
        query = NvmlQuery(nvml, monotonic_s() + self._per_gpu_s)
        code, handle = query.answer("nvmlDeviceGetHandleByIndex", index)
        code, uuid = (code, "") if code else query.answer("nvmlDeviceGetUUID", handle)
        if code:
            return code, None, None, []
        gpu, readings = read_gpu(query, handle, index, str(uuid), patient=self._skipped < _MOST_SKIPPED)
        gpu = self._in_time(gpu)
        if query.reset_required:
            gpu = replace(gpu, health=Health.UNHEALTHY, health_why="the driver wants it to be reset")
        self._report(gpu)
        return 0, gpu, handle, readings

    def _pairs(self, nvml: Any, found: dict[str, tuple[Gpu, Any]]) -> tuple[GpuPair, ...]:
        """PCIe between every two GPUs that answer; a pair that is refused is left out."""
        query = NvmlQuery(nvml, monotonic_s() + self._per_gpu_s)
        pairs, uuids = [], sorted(found)
        for number, a in enumerate(uuids):
            for b in uuids[number + 1 :]:
                try:
                    code, level = query.answer("nvmlDeviceGetTopologyCommonAncestor", found[a][1], found[b][1])
                except GpuGone:
                    continue
                if not code and level in _LEVELS:
                    pairs.append(GpuPair(a=a, b=b, distance=_LEVELS[level]))
        return tuple(pairs)

    def _in_time(self, gpu: Gpu) -> Gpu:
        """With what was known before of parts for which the time ran out: a slow driver changes no hardware."""
        before = self._known.get(gpu.uuid)
        late = {field for field, why in gpu.refused if why == "timeout"}
        if before is None or before.health is Health.LOST or not late:
            return gpu
        earlier = {name: getattr(before, name) for name in ("nvlinks", "fabric", "mig") if name in late}
        if any(field.startswith("mig.") for field in late):
            earlier["mig"] = before.mig
        return replace(gpu, **earlier)

    def _with_xids(self, gpu: Gpu) -> Gpu:
        """With the errors seen so far, and unfit because of them if they are the GPU's own."""
        xids = tuple(sorted(self._xids.get(gpu.uuid, {}).values(), key=lambda xid: (xid.at_s, xid.code)))[-_MOST_XIDS:]
        bad = [xid.code for xid in xids if xid.code not in _HARMLESS_XIDS]
        if not bad or gpu.health is Health.UNHEALTHY:
            return replace(gpu, xids=xids) if xids else gpu
        return replace(gpu, xids=xids, health=Health.UNHEALTHY, health_why=f"the driver reported Xid {bad[-1]}")

    # --- errors the driver reports -------------------------------------------------------------------

    def _take_events(self, nvml: Any, found: dict[str, tuple[Gpu, Any]], now_s: float) -> None:
        """Takes what was queued since the last look; the driver queues, so no thread has to wait for it."""
        query = NvmlQuery(nvml, monotonic_s() + self._per_gpu_s)
        try:
            if self._events is None or self._listening != frozenset(found):
                self._stop_listening(nvml)  # a GPU that came back is another one to the driver
                self._events, self._listening = self._listen(query, found), frozenset(found)
            if self._events is None:
                return
            by_handle = {ctypes.cast(handle, ctypes.c_void_p).value: uuid for uuid, (_, handle) in found.items()}
            for _ in range(_MOST_EVENTS):
                code, event = query.answer("nvmlEventSetWait_v2", self._events, 0)
                if code:
                    if code != TIMEOUT:
                        self._stop_listening(nvml)  # made anew at the next look
                    return
                uuid = by_handle.get(ctypes.cast(event.device, ctypes.c_void_p).value)
                if uuid is None and event.device:
                    uuid = query.answer("nvmlDeviceGetUUID", event.device)[1]  # another handle of the same GPU
                if uuid in found and event.eventType == _XID:
                    self._note(uuid, int(event.eventData), now_s)
        except GpuGone:
            self._stop_listening(nvml)

    def _stop_listening(self, nvml: Any) -> None:
        events, self._events, self._listening = self._events, None, frozenset()
        if events is not None:
            try:
                nvml.nvmlEventSetFree(events)
            except nvml.NVMLError as error:
                log.debug("the set of events could not be freed: %s", reason(error.value))

    def _listen(self, query: NvmlQuery, found: dict[str, tuple[Gpu, Any]]) -> Any:
        code, events = query.answer("nvmlEventSetCreate")
        if code:
            return None
        for _, handle in found.values():
            code, supported = query.answer("nvmlDeviceGetSupportedEventTypes", handle)
            if not code and supported & _XID:
                query.answer("nvmlDeviceRegisterEvents", handle, _XID, events)
        return events

    def _note(self, uuid: str, code: int, now_s: float) -> None:
        seen = self._xids.setdefault(uuid, {})
        before = seen.get(code)
        if before is None:
            log.warning("GPU %s: Xid %d", uuid, code)
        if before is not None or len(seen) < _MOST_XIDS:
            seen[code] = Xid(code=code, at_s=now_s, count=before.count + 1 if before else 1)

    def _report(self, gpu: Gpu) -> None:
        """Each refusal once for each GPU and field."""
        for field, why in gpu.refused:
            if (gpu.uuid, field) not in self._logged:
                self._logged.add((gpu.uuid, field))
                log.info("GPU %s does not tell %s: %s", gpu.uuid, field, why)


def _with_far_ends(found: dict[str, tuple[Gpu, Any]]) -> dict[str, tuple[Gpu, Any]]:
    """Far ends of which the driver tells the address and not the kind: a GPU of this node by its address, else a switch
    (the rule of openucx/ucc, tl/cuda topology, for drivers that cannot tell the kind)."""
    gpus = {gpu.bus_id for gpu, _ in found.values()}
    done = {}
    for uuid, (gpu, handle) in found.items():
        links = tuple(
            replace(link, remote=Remote.GPU if link.remote_bus_id in gpus else Remote.SWITCH)
            if link.active and link.remote is None and link.remote_bus_id
            else link
            for link in gpu.nvlinks
        )
        done[uuid] = (gpu if links == gpu.nvlinks else replace(gpu, nvlinks=links)), handle
    return done


def _lost(gpu: Gpu) -> Gpu:
    """What stays of a GPU that answers no more: who it was and where it sat."""
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        bus_id=gpu.bus_id,
        health=Health.LOST,
        health_why="it does not answer any more",
        xids=gpu.xids,
    )
