"""Facts through messages and back, changes, bounds, ages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from manifests.messages import ROOT, generate
from tests.topology.node_facts import GPU0, GPU1, any_facts, state, two_gpus
from topology.bad_input import BadInput
from topology.facts import age as facts_age
from topology.facts import agent_pb2 as wire
from topology.facts import delta as facts_delta
from topology.facts import report as f
from topology.facts import wire as facts_wire
from topology.facts.age import Aged, AgeLimits, FactPart, Freshness, ages_of


def test_the_message_code_is_what_the_protos_give(tmp_path: Path) -> None:
    made = generate(tmp_path)
    assert len(made) == 6
    for path in made:
        retained = ROOT / path.relative_to(tmp_path)
        assert retained.read_bytes() == path.read_bytes(), f"{retained}: run python -m manifests.messages"


def sent(facts: f.NodeFacts) -> f.NodeFacts:
    """Through the bytes of a full report."""
    return facts_wire.read_full(wire.Full.FromString(facts_wire.full_message(facts).SerializeToString()))


def test_two_gpus_arrive_as_they_were() -> None:
    assert sent(two_gpus()) == two_gpus()


@settings(max_examples=60, deadline=None)
@given(any_facts())
def test_any_facts_arrive_as_they_were(facts: f.NodeFacts) -> None:
    assert sent(facts) == facts


def test_what_is_not_known_is_not_zero() -> None:
    arrived = sent(f.NodeFacts(state=state(), gpus=(f.Gpu(uuid=GPU0),), memory=(f.Memory(uuid=GPU0),)))
    assert arrived.memory[0].total_bytes is None
    assert arrived.memory[0].used_bytes is None
    assert (arrived.gpus[0].index, arrived.gpus[0].numa_node, arrived.gpus[0].fabric) == (None, None, None)
    zero = sent(f.NodeFacts(state=state(), memory=(f.Memory(uuid=GPU0, used_bytes=0),)))
    assert zero.memory[0].used_bytes == 0


def test_a_change_carries_only_what_changed() -> None:
    old = two_gpus()
    fuller = replace(old.memory[0], used_bytes=5, free_bytes=79 * 2**30 - 5)
    new = replace(old, memory=(fuller, old.memory[1]), state=state(collected_at_s=1010.0, nvml_good_at_s=1010.0))
    delta = facts_delta.difference(old, new)
    assert delta is not None
    assert [reading.uuid for reading in delta.memory] == [GPU0]
    assert not delta.HasField("node")
    assert not delta.HasField("pods")
    assert len(delta.gpus) == len(delta.nics) == 0
    assert facts_delta.apply(old, delta) == new


def test_a_gpu_that_turns_bad_is_told_alone() -> None:
    old = two_gpus()
    bad = replace(old.gpus[1], health=f.Health.LOST, health_why="it fell off the bus", nvlinks=())
    new = replace(old, gpus=(old.gpus[0], bad))
    delta = facts_delta.difference(old, new)
    assert delta is not None
    assert [gpu.uuid for gpu in delta.gpus] == [GPU1]
    assert facts_delta.apply(old, delta) == new


def test_pods_that_left_are_gone_after_a_change() -> None:
    old = two_gpus()
    assert old.pods is not None
    new = replace(old, pods=replace(old.pods, holdings=()))
    delta = facts_delta.difference(old, new)
    assert delta is not None
    assert facts_delta.apply(old, delta) == new


@pytest.mark.parametrize(
    "new",
    [
        replace(two_gpus(), state=state(topology_generation=2)),
        replace(two_gpus(), gpus=two_gpus().gpus[:1]),
        replace(two_gpus(), nics=()),
        replace(two_gpus(), pairs=()),
        replace(two_gpus(), pods=None),
    ],
    ids=["generation", "gpu gone", "nic gone", "pairs", "kubelet silent"],
)
def test_what_went_away_needs_a_full_report(new: f.NodeFacts) -> None:
    assert facts_delta.difference(two_gpus(), new) is None


def test_a_change_of_another_topology_is_refused() -> None:
    """C103: readings of an old MIG layout are never mixed with a new one."""
    delta = wire.Delta(topology_generation=7, collected_at_s=1001.0)
    with pytest.raises(BadInput, match="topology_generation is 7; the last full report had 1"):
        facts_delta.apply(two_gpus(), delta)


@settings(max_examples=40, deadline=None)
@given(any_facts(), any_facts())
def test_a_change_leads_from_any_facts_to_any_other(old: f.NodeFacts, new: f.NodeFacts) -> None:
    new = replace(new, state=replace(new.state, topology_generation=old.state.topology_generation))
    delta = facts_delta.difference(old, new)
    if delta is None:
        return
    after = facts_delta.apply(old, delta)
    assert (after.gpus, after.memory, after.nics) == (new.gpus, new.memory, new.nics)
    assert after.state.collected_at_s == new.state.collected_at_s


def test_measurements_are_added_and_replaced_by_newer_ones() -> None:
    def sample(peer: str, p99_us: float, at_s: float) -> f.ReachSample:
        return f.ReachSample(
            peer=peer,
            size_bytes=65536,
            p50_us=10,
            p99_us=p99_us,
            p999_us=900,
            count=100,
            transport="tcp",
            measured_at_s=at_s,
        )

    old = replace(two_gpus(), reach=(sample("n2", 80, 1), sample("n3", 90, 1)))
    delta = facts_delta.difference(old, replace(old, reach=(sample("n2", 85, 2),)))
    assert delta is not None
    assert facts_delta.apply(old, delta).reach == (sample("n2", 85, 2), sample("n3", 90, 1))


@pytest.mark.parametrize(
    ("full", "value"),
    [
        (wire.Full(), "node is 'missing'"),
        (
            wire.Full(node=wire.Node(nvml=wire.NVML_OK), gpus=[wire.Gpu(uuid="a", health=wire.HEALTHY)] * 2),
            "each uuid may come once",
        ),
        (wire.Full(node=wire.Node(nvml=wire.NVML_OK), gpus=[wire.Gpu(health=wire.HEALTHY)]), "gpus.uuid is ''"),
        (wire.Full(node=wire.Node(nvml=wire.NVML_OK), gpus=[wire.Gpu(uuid="a")]), "health is 0; use one of 1, 2, 3"),
        (
            wire.Full(
                node=wire.Node(nvml=wire.NVML_OK), gpus=[wire.Gpu(uuid=str(i), health=wire.HEALTHY) for i in range(129)]
            ),
            "gpus is '129 entries'; at most 128 are taken",
        ),
        (wire.Full(node=wire.Node(nvml=wire.NVML_OK, problems=["x" * 513])), "at most 512 characters"),
        (
            wire.Full(
                node=wire.Node(nvml=wire.NVML_OK), reach=[wire.ReachSample(peer="b", size_bytes=1, count=1, p50_us=2)]
            ),
            "use 0 <= p50 <= p99",
        ),
        (
            wire.Full(
                node=wire.Node(nvml=wire.NVML_OK),
                reach=[wire.ReachSample(peer="b", size_bytes=1, count=1, p999_us=float("nan"))],
            ),
            "use 0 <= p50 <= p99",
        ),
    ],
)
def test_a_report_out_of_bounds_is_refused(full: wire.Full, value: str) -> None:
    with pytest.raises(BadInput, match=value):
        facts_wire.read_full(full)


def test_what_a_newer_agent_says_is_skipped_or_not_known() -> None:
    links = [wire.NvLink(link=3, state=wire.LINK_ACTIVE)]
    links[0].remote = 9  # type: ignore[assignment]  # an enum's value that this hub does not know
    full = wire.Full(node=wire.Node(nvml=wire.NVML_OK), gpus=[wire.Gpu(uuid="a", health=wire.HEALTHY, nvlinks=links)])
    sent_too = full.SerializeToString() + bytes([(99 << 3 | 2) & 0x7F | 0x80, 99 << 3 >> 7, 1, 65])  # field 99: "A"
    assert facts_wire.read_full(wire.Full.FromString(sent_too)).gpus[0].nvlinks == (f.NvLink(link=3, active=True),)


def test_a_message_that_is_there_and_empty_is_known() -> None:
    none = f.Holding(namespace="ml", pod="d-0", container="c", resource="nvidia.com/gpu", device_ids=())
    for pods in (f.PodDevices(collected_at_s=0.0), f.PodDevices(collected_at_s=0.0, holdings=(none,))):
        assert sent(f.NodeFacts(state=state(), pods=pods)).pods == pods


def test_links_of_many_nodes_are_one_object() -> None:
    first, second = sent(two_gpus()), sent(two_gpus())
    assert first.gpus[0].nvlinks[0] is second.gpus[1].nvlinks[0]


@pytest.mark.parametrize("at_s", [-1.0, 1e11, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(at_s: float) -> None:
    for full in (
        wire.Full(node=wire.Node(nvml=wire.NVML_OK, collected_at_s=at_s)),
        wire.Full(node=wire.Node(nvml=wire.NVML_OK, pods_good_at_s=at_s)),
    ):
        with pytest.raises(BadInput, match="use seconds since 1970"):
            facts_wire.read_full(full)


def test_a_change_is_bounded_as_a_full_report_is() -> None:
    twice = wire.Delta(topology_generation=1, gpus=[wire.Gpu(uuid=GPU0, health=wire.HEALTHY)] * 2)
    with pytest.raises(BadInput, match="each uuid may come once"):
        facts_delta.apply(two_gpus(), twice)


def test_every_repeated_field_has_a_bound() -> None:
    """A dataclass's tuple without one makes no codec."""

    @dataclass(frozen=True)
    class Unbounded:
        problems: tuple[str, ...] = ()

    with pytest.raises(ValueError, match="not enough values"):
        facts_wire._Codec(Unbounded, wire.Node.DESCRIPTOR)  # type: ignore[arg-type]  # what the stubs call it


# --- fabric and ages -----------------------------------------------------------------------------


def test_c074_the_key_of_a_domain_is_cluster_and_clique() -> None:
    def fabric(cluster: str) -> f.Fabric:
        return f.Fabric(state=f.FabricState.COMPLETED, status=0, cluster_uuid=cluster, clique_id=32766)

    n1, n2, n3 = fabric("6f4a"), fabric("2244"), fabric("6f4a")
    assert n1.domain == n3.domain == ("6f4a", 32766)
    assert n2.domain == ("2244", 32766)


@pytest.mark.parametrize(
    ("fabric", "why"),
    [
        (
            f.Fabric(state=f.FabricState.COMPLETED, status=15, clique_id=0, cluster_uuid="6f4a"),
            "ended with NVML status 15",
        ),
        (f.Fabric(state=f.FabricState.COMPLETED, clique_id=0, cluster_uuid="6f4a"), "NVML status unknown"),
        (f.Fabric(state=f.FabricState.IN_PROGRESS, clique_id=0, cluster_uuid="6f4a"), "is starting"),
        (f.Fabric(state=f.FabricState.NOT_STARTED), "is not started"),
        (
            f.Fabric(state=f.FabricState.COMPLETED, status=0, health="unhealthy", cluster_uuid="a", clique_id=1),
            "unhealthy",
        ),
        (f.Fabric(state=f.FabricState.COMPLETED, status=0, clique_id=0), ""),
        (f.Fabric(state=f.FabricState.NOT_SUPPORTED, cluster_uuid="a", clique_id=1), ""),
    ],
)
def test_c076_no_domain_unless_completed_successfully_with_a_cluster(fabric: f.Fabric, why: str) -> None:
    assert fabric.domain is None
    assert why in fabric.why_unusable
    assert bool(why) == bool(fabric.why_unusable)


def test_facts_age_from_fresh_through_stale_to_expired() -> None:
    limits = AgeLimits(stale_s=45, expired_s=300)
    ages = {0: Freshness.FRESH, 45: Freshness.FRESH, 46: Freshness.STALE, 299: Freshness.STALE, 300: Freshness.EXPIRED}
    assert {age: limits.freshness(age) for age in ages} == ages
    assert facts_age.age_text(42, Freshness.FRESH) == "42s old"
    assert facts_age.age_text(125, Freshness.STALE) == "2m5s old, stale"
    assert facts_age.age_text(720, Freshness.EXPIRED) == "12m0s old, expired: not used"
    with pytest.raises(BadInput, match="0 < stale < expired"):
        AgeLimits(stale_s=10, expired_s=10)


def test_c098_a_silent_source_costs_only_its_own_part_which_is_stale_at_once_and_expires() -> None:
    limits = AgeLimits(stale_s=45, expired_s=300)

    def ages(heard_ago_s: float = 0.0, **given: Any) -> dict[str, tuple[float, str]]:
        facts = replace(two_gpus(), state=state(collected_at_s=1001.0, **given))
        found = facts_age.part_ages(facts, 5.0, 5.0 + heard_ago_s, limits)
        return {part.value: (age.age_s, age.freshness.value) for part, age in found.items()}

    fresh = (0.0, "fresh")
    assert ages() == {"gpus": fresh, "network": fresh, "pods": fresh}
    lost: dict[str, Any] = {"nvml": f.NvmlState.LOST, "nvml_good_at_s": 1000.0}
    assert ages(**lost) == {"gpus": (1.0, "stale"), "network": fresh, "pods": fresh}
    # Each part from its own last good time: 1001 - 991, 1001 - 601.
    assert ages(network_good_at_s=991.0, pods_good_at_s=601.0) == {
        "gpus": fresh,
        "network": (10.0, "stale"),
        "pods": (400.0, "expired"),
    }
    # And then the agent is silent too, for 50 s.
    assert ages(50.0, **lost) == {"gpus": (51.0, "stale"), "network": (50.0, "stale"), "pods": (50.0, "stale")}


def test_parts_that_are_equally_old_are_said_together() -> None:
    aged = {
        FactPart.PODS: Aged(Freshness.STALE, 40.0),
        FactPart.GPUS: Aged(Freshness.STALE, 40.0),
        FactPart.NETWORK: Aged(Freshness.EXPIRED, 10.0),
    }
    older, younger = ages_of("n1", aged, 100.0)
    assert (older.age_s, older.parts, older.whole) == (90.0, (FactPart.NETWORK,), False)
    assert (younger.age_s, younger.parts) == (60.0, (FactPart.GPUS, FactPart.PODS))
    [silent] = ages_of("n1", dict.fromkeys(FactPart, Aged(Freshness.STALE, 40.0)), 100.0)
    assert silent.whole
