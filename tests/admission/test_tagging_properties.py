"""What holds for every pod: the patch applies, takes nothing away, does nothing twice, and holds nobody unasked."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from admission.recognition.gang_identity import podgroup_name
from admission.webhook.tagging import Entry, tag
from tests.admission.pods import CONSUMER, NAMESPACE, PRODUCER, Raw, decoded, tagged

FORGED = ("isochrone.dev/decision", "isochrone.dev/placement")
GROUP, GATE = "scheduling.k8s.io/group-name", {"name": "isochrone.dev/reach"}

quantities = st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu", "isochrone.dev/pair"]), st.just("0"), max_size=3)
resources = st.fixed_dictionaries(
    {},
    optional={"requests": quantities, "limits": quantities, "claims": st.just([{"name": "gpu"}])},
)
label_maps = st.dictionaries(
    st.sampled_from(
        [
            "isochrone.dev/phase",
            "isochrone.dev/gang",
            "isochrone.dev/enabled",
            "modelserving.volcano.sh/role",
            "modelserving.volcano.sh/group-name",
            "llm-d.ai/role",
            "role",
            "leaderworkerset.sigs.k8s.io/name",
            "kueue.x-k8s.io/queue-name",
            "volcano.sh/task-spec",
            "app.kubernetes.io/part-of",
            "a~b/c",
        ]
    ),
    st.sampled_from(["prefill", "decode", "decoder", "router", "chat", "Chat", "false", ""]),
)
annotation_maps = st.dictionaries(
    st.sampled_from(
        [
            "isochrone.dev/reach",
            "isochrone.dev/reach-mode",
            "isochrone.dev/min-decode",
            GROUP,
            "pod-group-name",
            "volcano.sh/task-spec",
            "kubernetes.io/config.mirror",
            *FORGED,
        ]
    ),
    st.sampled_from(["1ms", "required", "preferred", "2", "theirs", ""]),
)
gates = st.lists(
    st.sampled_from([GATE, {"name": "kueue.x-k8s.io/topology"}, {"name": "x/y"}]), max_size=2, unique_by=str
)
arguments = st.sampled_from([PRODUCER, CONSUMER, ["--disaggregation-mode", "decode"], ["--port", "1"]])


@st.composite
def pods(draw: st.DrawFn) -> Raw:
    containers = draw(
        st.lists(
            st.fixed_dictionaries({"name": st.just("c")}, optional={"resources": resources, "args": arguments}),
            max_size=3,
        )
    )
    metadata = draw(st.fixed_dictionaries({}, optional={"labels": label_maps, "annotations": annotation_maps}))
    spec = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "schedulerName": st.sampled_from(["default-scheduler", "volcano", "other", ""]),
                "schedulingGates": gates,
                "nodeName": st.sampled_from(["", "", "n1"]),
            },
        )
    )
    return {"metadata": metadata, "spec": {**spec, "containers": containers}}


entries = st.sampled_from(Entry)


def retained(before: Any, after: Any) -> bool:
    """Everything that was there is there, unchanged."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and retained(value, after[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) <= len(after) and all(retained(*pair) for pair in zip(before, after, strict=False))
    return bool(before == after)


@given(pods(), entries)
def test_the_patch_applies_and_takes_nothing_away(raw: Raw, entry: Entry) -> None:
    tagging, pod = tagged(raw, entry)
    scheduler = raw["spec"].get("schedulerName", "")
    if scheduler in ("default-scheduler", ""):
        raw["spec"]["schedulerName"] = pod["spec"].get("schedulerName", "")
        pod["spec"].setdefault("schedulerName", "")
    if tagging.phase:  # what only the controller writes is the one thing that goes
        for key in FORGED:
            raw["metadata"].get("annotations", {}).pop(key, None)
            assert key not in pod["metadata"]["annotations"]
    assert retained(raw, pod)
    assert all(len(warning) <= 256 for warning in tagging.warnings)
    assert not (tagging.denied and tagging.ops)


@given(pods(), entries, entries)
def test_tagging_what_is_tagged_does_nothing(raw: Raw, first: Entry, second: Entry) -> None:
    tagging, pod = tagged(raw, first)
    again, _ = tagged(pod, first)
    assert again.ops == ()
    if tagging.ops and (first, second) != (Entry.RECOGNISE, Entry.NAMESPACE):
        # The chart keeps that one pair apart: enabled namespaces are not also recognised.
        assert tagged(pod, second)[0].ops == ()


@given(pods(), entries)
def test_gate_and_group_come_together(raw: Raw, entry: Entry) -> None:
    tagging, pod = tagged(raw, entry)
    had = GATE in raw["spec"].get("schedulingGates", [])
    has = GATE in pod["spec"].get("schedulingGates", [])
    group = pod["metadata"].get("annotations", {}).get(GROUP)
    if has and not had:
        assert group
        assert tagging.mode == "required"
        assert pod["spec"]["schedulerName"] == "volcano"
    if group and group != raw["metadata"].get("annotations", {}).get(GROUP):
        assert has
        assert group == podgroup_name(tagging.gang or "")


@given(pods())
def test_pods_that_did_not_ask_are_not_touched_by_the_first_entry(raw: Raw) -> None:
    for key in ("isochrone.dev/phase", "isochrone.dev/gang"):
        raw["metadata"].get("labels", {}).pop(key, None)
    tagging, _ = tagged(raw, Entry.LABELLED)
    assert (tagging.ops, tagging.warnings, tagging.denied) == ((), (), None)


@given(pods())
def test_recognition_neither_refuses_nor_moves_nor_holds(raw: Raw) -> None:
    for key in ("isochrone.dev/phase", "isochrone.dev/gang"):
        raw["metadata"].get("labels", {}).pop(key, None)
    tagging, pod = tagged(raw, Entry.RECOGNISE)
    assert tagging.denied is None
    assert tagging.mode in (None, "preferred")
    assert pod["spec"].get("schedulerName") == raw["spec"].get("schedulerName")
    assert pod["spec"].get("schedulingGates") == raw["spec"].get("schedulingGates")


@given(pods(), entries)
def test_the_same_pod_gives_the_same_answer(raw: Raw, entry: Entry) -> None:
    assert tag(decoded(raw), NAMESPACE, entry) == tag(decoded(raw), NAMESPACE, entry)
