"""Two pods of one service get one gang; two services never share one."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from admission.recognition.existing_group import existing_group
from admission.recognition.gang_identity import gang_label_value, podgroup_name, read_gang
from tests.admission.pods import CONSUMER, PRODUCER, decoded, raw_pod

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
gangs = st.from_regex(LABEL_VALUE, fullmatch=True)


@pytest.mark.parametrize(
    ("labels", "gang", "signal"),
    [
        ({"isochrone.dev/gang": "chat"}, "chat", "label isochrone.dev/gang"),
        (
            {"isochrone.dev/gang": "chat", "modelserving.volcano.sh/group-name": "s-0"},
            "chat",
            "label isochrone.dev/gang",
        ),
        ({"modelserving.volcano.sh/group-name": "sample-0"}, "kthena-sample-0", "Kthena group sample-0"),
        (
            {"disaggregatedset.x-k8s.io/name": "ds", "disaggregatedset.x-k8s.io/slice": "1"},
            "ds-ds-1",
            "DisaggregatedSet ds slice 1",
        ),
        ({"grove.io/podgang": "pcs-0"}, "grove-pcs-0", "Grove podgang pcs-0"),
        (
            {"grove.io/podgang": "pcs-0-sg-1", "grove.io/base-podgang": "pcs-0"},
            "grove-pcs-0",
            "Grove podgang pcs-0",
        ),
        ({"rbg.workloads.x-k8s.io/group-name": "chat"}, "rbg-chat", "RBG group chat"),
        ({"rolebasedgroup.workloads.x-k8s.io/name": "chat"}, "rbg-chat", "RBG group chat"),
        ({"leaderworkerset.sigs.k8s.io/name": "prefill-lws"}, None, ""),
        ({"app.kubernetes.io/part-of": "chat"}, "app-chat", "application chat"),
    ],
)
def test_labels(labels: dict[str, str], gang: str | None, signal: str) -> None:
    reading = read_gang(decoded(raw_pod(labels)))
    assert (reading.gang, reading.signal) == (gang, signal)
    assert bool(reading.missing) is (gang is None)


@pytest.mark.parametrize(
    ("command", "args", "slug"),
    [
        (None, ["--model", "llama-3-70b"], "llama-3-70b"),
        (None, ["--model=llama-3.1"], "llama-3.1"),
        (None, ["--model-path", "llama"], "llama"),
        (["vllm", "serve", "llama", "--port", "1"], None, "llama"),
        (["/usr/bin/vllm", "serve"], ["llama"], "llama"),
        (None, ["serve", "llama"], "llama"),
        (None, ["llama", "--kv-transfer-config", "{}"], "llama"),
        (["sh", "-c", "exec vllm serve llama --port 1"], None, "llama"),
        (None, ["--served-model-name", "llama"], "llama"),
        (None, ["--served-model-name", "other", "--model", "llama"], "llama"),
        (None, ["--model", "$MODEL", "--served-model-name", "llama"], "llama"),
    ],
)
def test_the_model_is_found_wherever_it_is_said(command: list[str] | None, args: list[str] | None, slug: str) -> None:
    reading = read_gang(decoded(raw_pod(command=command, args=args)))
    assert (reading.gang, reading.signal) == (f"model-{slug}", f"model {slug}")


def test_what_is_cut_from_a_model_still_tells_models_apart() -> None:
    def gang(model: str) -> str:
        found = read_gang(decoded(raw_pod(args=["--model", model]))).gang
        assert found
        return found

    assert gang("meta/Llama-3") != gang("nvidia/Llama-3")
    assert gang("meta/Llama-3").startswith("model-llama-3-")
    assert gang("/models/Llama-3/") == gang("/models/Llama-3/")
    assert len(gang("x" * 500)) <= 63


def test_both_halves_of_a_service_agree_and_applications_differ() -> None:
    def gang(args: list[str], **labels: str) -> str | None:
        named = {f"app.kubernetes.io/{key.replace('_', '-')}": value for key, value in labels.items()}
        return read_gang(decoded(raw_pod(named, args=args))).gang

    assert gang(PRODUCER) == gang(CONSUMER) == "model-llama"
    assert gang(PRODUCER, part_of="chat") == gang(CONSUMER, part_of="chat", instance="other") == "app-chat.llama"
    assert gang(PRODUCER, instance="chat") == "app-chat.llama"
    assert gang(["--model", "b.c"], part_of="a") != gang(["--model", "c"], part_of="a.b")


def test_names_uids_and_hashes_do_not_matter() -> None:
    one, two = raw_pod({"pod-template-hash": "a"}, args=PRODUCER), raw_pod({"pod-template-hash": "b"}, args=CONSUMER)
    one["metadata"] |= {"name": "x", "uid": "1", "ownerReferences": [{"kind": "ReplicaSet", "name": "x-a", "uid": "2"}]}
    assert read_gang(decoded(one)) == read_gang(decoded(two))


def test_a_given_pod_group_is_the_last_resort() -> None:
    def gang(group: str) -> str | None:
        return read_gang(decoded(raw_pod(annotations={"scheduling.k8s.io/group-name": group}))).gang

    assert gang("mine") == "group-mine"
    assert gang("podgroup-0a1b") is None  # Volcano's own, one per ReplicaSet


@pytest.mark.parametrize(
    ("labels", "annotations", "gates", "system", "volcano"),
    [
        ({}, {"scheduling.k8s.io/group-name": "g"}, [], "Volcano", True),
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, [], "coscheduling", False),
        ({}, {"pod-group-name": "g"}, [], "KAI", False),
        ({"kai.scheduler/subgroup-name": "g"}, {}, [], "KAI", False),
        ({}, {"godel.bytedance.com/pod-group-name": "g"}, [], "Godel", False),
        ({}, {"gang.scheduling.koordinator.sh/name": "g"}, [], "Koordinator", False),
        ({"kueue.x-k8s.io/queue-name": "q"}, {}, [], "Kueue", False),
        ({}, {}, ["kueue.x-k8s.io/topology"], "Kueue", False),
        ({"grove.io/podgang": "g"}, {}, [], "Grove", False),
        ({}, {}, ["grove.io/podgang-pending-creation"], "Grove", False),
        ({"grove.io/podgang": "g"}, {"scheduling.k8s.io/group-name": "g"}, [], "Volcano", True),
    ],
)
def test_carriers_of_others(
    labels: dict[str, str], annotations: dict[str, str], gates: list[str], system: str, volcano: bool
) -> None:
    raw = raw_pod(labels, annotations, schedulingGates=[{"name": name} for name in gates])
    group = existing_group(decoded(raw))
    assert group is not None
    assert (group.system, group.volcano) == (system, volcano)


def test_no_carrier() -> None:
    assert existing_group(decoded(raw_pod(schedulingGates=[{"name": "isochrone.dev/reach"}]))) is None


@pytest.mark.parametrize(
    ("gang", "name"),
    [("chat", "isochrone-chat"), ("app-chat.llama-3.1", "isochrone-app-chat.llama-3.1"), ("a", "isochrone-a")],
)
def test_a_plain_gang_names_its_pod_group(gang: str, name: str) -> None:
    assert podgroup_name(gang) == name


@given(gangs)
def test_pod_group_names_are_dns_names(gang: str) -> None:
    name = podgroup_name(gang)
    assert DNS_NAME.fullmatch(name)
    assert len(name) <= 63
    assert name.startswith("isochrone-")


@given(gangs, gangs)
def test_two_gangs_never_share_a_pod_group(one: str, two: str) -> None:
    assume(one != two)
    assert podgroup_name(one) != podgroup_name(two)


@pytest.mark.parametrize(
    "pair", [("Chat", "chat"), ("a_b", "a-b"), ("a..b", "a.b"), ("a.-b", "a-b"), ("x" * 63, "x" * 62)]
)
def test_near_twins_are_told_apart(pair: tuple[str, str]) -> None:
    assert podgroup_name(pair[0]) != podgroup_name(pair[1])


def test_a_gang_cannot_take_another_ones_hashed_name() -> None:
    taken = podgroup_name("Chat").removeprefix("isochrone-")
    assert podgroup_name(taken) != podgroup_name("Chat")


@given(st.text(min_size=1))
def test_any_text_becomes_a_label_value(text: str) -> None:
    value = gang_label_value(text)
    assert LABEL_VALUE.fullmatch(value)
    assert (value == text) is bool(LABEL_VALUE.fullmatch(text))


# A life of pods of one service: what may differ between two of its pods, and must not matter.
IDENTITIES: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"modelserving.volcano.sh/group-name": "chat-0"}, {"modelserving.volcano.sh/role-template-hash": "5d9c"}),
    ({"disaggregatedset.x-k8s.io/name": "chat"}, {"disaggregatedset.x-k8s.io/revision": "7f"}),
    ({"nvidia.com/dynamo-graph-deployment-name": "chat"}, {"nvidia.com/dynamo-worker-hash": "db6b6891"}),
    ({"grove.io/podgang": "chat-0"}, {"grove.io/pod-template-hash": "x1"}),
    ({"rbg.workloads.x-k8s.io/group-name": "chat"}, {"rbg.workloads.x-k8s.io/group-uid": "a1"}),
    ({"llm-d.ai/model": "qwen3"}, {"pod-template-hash": "7459345bb"}),
    ({"storm-service-name": "chat", "roleset-name": "chat-1"}, {"role-template-hash": "66f"}),
    ({"app.kubernetes.io/part-of": "chat"}, {"controller-revision-hash": "chat-decode-6b8"}),
]
hashes = st.from_regex(r"[a-z0-9]{5,10}", fullmatch=True)


@given(st.sampled_from(IDENTITIES), hashes, hashes, st.sampled_from(["", "-prefill", "-decode"]))
def test_rollouts_restarts_and_owners_never_change_a_gang(
    identity: tuple[dict[str, str], dict[str, str]], one: str, other: str, suffix: str
) -> None:
    stable, changing = identity

    def gang(mark: str, args: list[str]) -> str | None:
        labels = stable | dict.fromkeys(changing, mark) | {"pod-template-hash": mark}
        raw = raw_pod(labels, args=args)
        raw["metadata"] |= {"name": f"chat{suffix}-{mark}", "uid": mark, "generateName": f"chat{suffix}-{mark}-"}
        raw["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": f"chat-{mark}", "uid": mark}]
        return read_gang(decoded(raw)).gang

    assert gang(one, PRODUCER) == gang(other, CONSUMER) is not None
