"""Facts of made-up nodes, written by hand, and a strategy that makes any."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from topology.facts import report as f

GPU0, GPU1 = "GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111"


def state(**given: object) -> f.NodeState:
    """A node whose NVML answers."""
    base = f.NodeState(collected_at_s=1000.0, topology_generation=1, nvml=f.NvmlState.OK, nvml_good_at_s=1000.0)
    return dataclasses.replace(base, **given)  # type: ignore[arg-type]


def two_gpus() -> f.NodeFacts:
    """Two GPUs with one link each to a switch, one NIC near the first, one pod on the second."""
    gpus = tuple(
        f.Gpu(
            uuid=uuid,
            index=index,
            name="NVIDIA A100-SXM4-80GB",
            bus_id=f"0000:0{index + 7}:00.0",
            numa_node=0,
            pci_path=("pci0000:00", f"0000:0{index + 7}:00.0"),
            nvlinks=(
                f.NvLink(
                    link=0,
                    active=True,
                    version="3.0",
                    speed_mbps=200_000,
                    remote=f.Remote.SWITCH,
                    remote_bus_id="0000:c4:00.0",
                ),
            ),
            mig=f.Mig(enabled=False, enabled_after_reset=False),
            refused=(("fabric", "not_supported"),),
        )
        for index, uuid in enumerate((GPU0, GPU1))
    )
    gib = 2**30
    return f.NodeFacts(
        state=state(),
        gpus=gpus,
        memory=tuple(
            f.Memory(uuid=uuid, total_bytes=80 * gib, reserved_bytes=gib, used_bytes=0, free_bytes=79 * gib)
            for uuid in (GPU0, GPU1)
        ),
        pairs=(f.GpuPair(a=GPU0, b=GPU1, distance=f.Distance.PXB),),
        nics=(
            f.Nic(
                name="mlx5_0",
                rdma=True,
                interfaces=("eth2",),
                bus_id="0000:0c:00.0",
                ports=(f.NicPort(port=1, active=True, rate_mbps=200_000, link_layer="InfiniBand"),),
                gpus=((GPU0, f.Distance.PIX), (GPU1, f.Distance.PXB)),
            ),
        ),
        pods=f.PodDevices(
            collected_at_s=1000.0,
            holdings=(
                f.Holding(namespace="ml", pod="d-0", container="c", resource="nvidia.com/gpu", device_ids=(GPU1,)),
            ),
            allocatable=(("nvidia.com/gpu", (GPU0, GPU1)),),
        ),
    )


def _some(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


_WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
_COUNT = st.integers(0, 2**31 - 1)
_BYTES = st.integers(0, 2**63)
_TIME = st.floats(0, 2e9)


def _kw(cls: type, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.builds(cls, **fields)


def any_facts() -> st.SearchStrategy[f.NodeFacts]:
    """Facts with any field known or not."""
    links = _kw(
        f.NvLink,
        link=_COUNT,
        active=st.booleans(),
        version=_some(_WORD),
        speed_mbps=_some(_BYTES),
        remote=_some(st.sampled_from(f.Remote)),
        remote_bus_id=_some(_WORD),
    )
    fabric = _kw(
        f.Fabric,
        state=st.sampled_from(f.FabricState),
        cluster_uuid=_some(_WORD),
        clique_id=_some(_COUNT),
        status=_some(_COUNT),
        health_mask=_some(_COUNT),
        health=_some(_WORD),
    )
    instance = _kw(f.MigInstance, gpu_instance_id=_COUNT, uuid=_some(_WORD), start_slice=_some(_COUNT))
    places = st.lists(st.tuples(_COUNT, _COUNT), max_size=3).map(tuple)
    profile = _kw(f.MigProfile, id=_COUNT, name=_some(_WORD), remaining=_some(_COUNT), placements=places)
    mig = _kw(
        f.Mig,
        enabled=st.booleans(),
        enabled_after_reset=_some(st.booleans()),
        instances=st.lists(instance, max_size=2).map(tuple),
        profiles=st.lists(profile, max_size=2).map(tuple),
    )
    gpu = _kw(
        f.Gpu,
        uuid=_WORD,
        index=_some(_COUNT),
        name=_some(_WORD),
        health=st.sampled_from(f.Health),
        numa_node=_some(st.integers(-1, 7)),
        nvlinks=st.lists(links, max_size=2).map(tuple),
        fabric=_some(fabric),
        mig=_some(mig),
        xids=st.lists(_kw(f.Xid, code=_COUNT, at_s=_TIME, count=_COUNT), max_size=2).map(tuple),
        refused=st.lists(st.tuples(_WORD, _WORD), max_size=2).map(tuple),
    )
    memory = _kw(
        f.Memory,
        uuid=_WORD,
        kind=st.sampled_from(f.MemoryKind),
        total_bytes=_some(_BYTES),
        reserved_bytes=_some(_BYTES),
        used_bytes=_some(_BYTES),
    )
    port = _kw(f.NicPort, port=_COUNT, active=_some(st.booleans()), rate_mbps=_some(_BYTES), link_layer=_some(_WORD))
    nic = _kw(
        f.Nic,
        name=_WORD,
        rdma=st.booleans(),
        ports=st.lists(port, max_size=2).map(tuple),
        gpus=st.lists(st.tuples(_WORD, st.sampled_from(f.Distance)), max_size=2).map(tuple),
    )
    pods = _kw(f.PodDevices, collected_at_s=_TIME, allocatable=st.just((("nvidia.com/gpu", ("a", "b")),)))
    node = _kw(
        f.NodeState,
        collected_at_s=_TIME,
        topology_generation=_COUNT,
        nvml=st.sampled_from(f.NvmlState),
        nvml_problem=_some(_WORD),
        dma_buf=_some(st.booleans()),
        nvml_good_at_s=_some(_TIME),
    )

    def keyed(values: st.SearchStrategy[object], key: str) -> st.SearchStrategy[object]:
        found = st.lists(values, max_size=3, unique_by=lambda value: getattr(value, key))
        return found.map(lambda each: tuple(sorted(each, key=lambda value: str(getattr(value, key)))))

    return _kw(  # type: ignore[return-value]
        f.NodeFacts,
        state=node,
        gpus=keyed(gpu, "uuid"),
        memory=keyed(memory, "uuid"),
        nics=keyed(nic, "name"),
        pods=_some(pods),
    )


def eight_gpus(switch: str = "0000:c4:00.0", *, nic_up: bool = True, nic: str = "mlx5_{}") -> f.NodeFacts:
    """Eight GPUs behind an NVSwitch (PCIe only with no `switch`), four to a NUMA node, each beside a network card."""
    links = (f.NvLink(link=0, active=True, version="4.0", remote=f.Remote.SWITCH, remote_bus_id=switch),)
    gpus = tuple(
        f.Gpu(uuid=f"GPU-{i}", index=i, bus_id=f"0000:{i:02}:00.0", numa_node=i // 4, nvlinks=links if switch else ())
        for i in range(8)
    )

    def far(a: int, b: int) -> f.Distance:
        return f.Distance.PIX if a == b else f.Distance.NODE if a // 4 == b // 4 else f.Distance.SYS

    return f.NodeFacts(
        state=state(),
        gpus=gpus,
        pairs=tuple(
            f.GpuPair(a=f"GPU-{a}", b=f"GPU-{b}", distance=far(a, b)) for a in range(8) for b in range(a + 1, 8)
        ),
        nics=tuple(
            f.Nic(
                name=nic.format(i),
                rdma=True,
                numa_node=i // 4,
                ports=(f.NicPort(port=1, active=nic_up),),
                gpus=tuple((f"GPU-{gpu}", far(i, gpu)) for gpu in range(8)),
            )
            for i in range(8)
        ),
    )
