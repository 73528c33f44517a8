"""Who is tagged with what, and who is told what."""

from __future__ import annotations

import pytest

from admission.webhook.tagging import Entry
from tests.admission.pods import CONSUMER, NAMESPACE, Raw, raw_pod, tagged

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}
GROUP, GATE = "scheduling.k8s.io/group-name", {"name": "isochrone.dev/reach"}
MARKER = {"isochrone.dev/pair": "0"}


def test_a_pod_that_asks_gets_everything() -> None:
    tagging, pod = tagged(raw_pod(dict(OURS)))
    assert pod == {
        "metadata": {
            "generateName": "engine-",
            "labels": OURS,
            "annotations": {
                "isochrone.dev/reach-mode": "required",
                "isochrone.dev/signal": "phase: label isochrone.dev/phase; gang: label isochrone.dev/gang",
                "volcano.sh/task-spec": "decode",
                GROUP: "isochrone-chat",
            },
        },
        "spec": {
            "containers": [
                {"name": "engine", "image": "engine:dev", "resources": {"requests": MARKER, "limits": MARKER}}
            ],
            "schedulerName": "volcano",
            "schedulingGates": [GATE],
        },
    }
    assert (tagging.phase, tagging.gang, tagging.mode, tagging.namespace) == ("decode", "chat", "required", NAMESPACE)
    assert tagging.warnings == ()
    assert tagging.denied is None


def test_an_enabled_namespace_asks_for_its_pods() -> None:
    tagging, pod = tagged(raw_pod(args=CONSUMER, schedulerName="default-scheduler"), Entry.NAMESPACE)
    assert pod["metadata"]["labels"] == {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "model-llama"}
    assert pod["metadata"]["annotations"][GROUP] == "isochrone-model-llama"
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["spec"]["schedulingGates"] == [GATE]
    assert tagging.signal == "phase: vLLM kv_role kv_consumer; gang: model llama"


@pytest.mark.parametrize(
    ("name", "more", "held"),
    [
        ("big-decode", {}, True),
        ("big-b", {}, False),
        ("big-b", {"llm-d.ai/role": "decode", "llm-d.ai/model": "llama"}, True),  # its workers have them too
        ("big-b", {"role": "decode"}, False),  # the workers' gang would be another one, for they name no model
    ],
)
def test_the_leader_of_ray_workers_is_held_only_where_its_workers_can_be_told(
    name: str, more: dict[str, str], held: bool
) -> None:
    lws = {"leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": "0", **more}
    pod = raw_pod(
        lws, {"leaderworkerset.sigs.k8s.io/size": "2"}, args=[*CONSUMER, "--distributed-executor-backend=ray"]
    )
    tagging, pod = tagged(pod, Entry.NAMESPACE)
    assert (tagging.phase, tagging.mode) == ("decode", "required" if held else "preferred")
    assert ("schedulingGates" in pod["spec"], bool(tagging.warnings)) == (held, not held)


def test_a_recognised_pod_is_never_held_nor_moved() -> None:
    tagging, pod = tagged(raw_pod(args=CONSUMER, schedulerName="default-scheduler"), Entry.RECOGNISE)
    assert tagging.mode == "preferred"
    assert pod["spec"] == {
        "containers": [{"name": "engine", "image": "engine:dev", "args": CONSUMER}],
        "schedulerName": "default-scheduler",
    }
    assert pod["metadata"]["annotations"] == {
        "isochrone.dev/reach-mode": "preferred",
        "isochrone.dev/signal": "phase: vLLM kv_role kv_consumer; gang: model llama",
    }


def test_a_recognised_pod_of_volcano_is_scored() -> None:
    _, pod = tagged(raw_pod(args=CONSUMER, schedulerName="volcano"), Entry.RECOGNISE)
    assert pod["spec"]["containers"][0]["resources"] == {"requests": MARKER, "limits": MARKER}
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == "decode"
    assert GROUP not in pod["metadata"]["annotations"]
    assert "schedulingGates" not in pod["spec"]


def test_a_recognised_pod_is_not_held_even_if_it_says_required() -> None:
    raw = raw_pod(args=CONSUMER, annotations={"isochrone.dev/reach-mode": "required"}, schedulerName="volcano")
    tagging, pod = tagged(raw, Entry.RECOGNISE)
    assert "schedulingGates" not in pod["spec"]
    assert GROUP not in pod["metadata"]["annotations"]
    assert tagging.warnings == (
        "isochrone.dev/reach-mode is required, but a pod is held only if it asks; "
        "set label isochrone.dev/phase to prefill or decode",
    )


@pytest.mark.parametrize("entry", [Entry.LABELLED, Entry.NAMESPACE])
def test_a_copy_of_a_released_pod_is_held_again(entry: Entry) -> None:
    raw = raw_pod(dict(OURS)) if entry is Entry.LABELLED else raw_pod(args=CONSUMER)
    _, copy = tagged(raw, entry)
    del copy["spec"]["schedulingGates"]
    _, again = tagged(copy, Entry.LABELLED)
    assert again["spec"]["schedulingGates"] == [GATE]


def test_preferred_pods_get_neither_gate_nor_group() -> None:
    _, pod = tagged(raw_pod(dict(OURS), {"isochrone.dev/reach-mode": "preferred"}))
    assert GROUP not in pod["metadata"]["annotations"]
    assert "schedulingGates" not in pod["spec"]
    assert pod["spec"]["schedulerName"] == "volcano"


def test_an_existing_pod_group_is_kept_and_the_gate_still_set() -> None:
    _, pod = tagged(raw_pod(dict(OURS), {GROUP: "theirs"}))
    assert pod["metadata"]["annotations"][GROUP] == "theirs"
    assert pod["spec"]["schedulingGates"] == [GATE]


def test_another_gang_system_is_only_annotated() -> None:
    tagging, pod = tagged(raw_pod({**OURS, "kueue.x-k8s.io/queue-name": "q"}))
    assert pod["spec"] == raw_pod()["spec"]
    assert pod["metadata"]["annotations"]["isochrone.dev/reach-mode"] == "preferred"
    assert GROUP not in pod["metadata"]["annotations"]
    assert tagging.warnings == (
        "the pod is in a Kueue group (kueue.x-k8s.io/queue-name): labelled only, not held or placed by Isochrone",
    )


def test_a_third_scheduler_keeps_its_pod_and_its_user_is_told() -> None:
    tagging, pod = tagged(raw_pod(dict(OURS), schedulerName="other"))
    assert pod["spec"] == raw_pod(schedulerName="other")["spec"]
    assert pod["metadata"]["annotations"]["isochrone.dev/reach-mode"] == "preferred"
    assert tagging.warnings == (
        "schedulerName is 'other': labelled only, not held or placed by Isochrone; set schedulerName to volcano",
    )


@pytest.mark.parametrize("entry", [Entry.RECOGNISE, Entry.LABELLED])
def test_a_third_schedulers_pod_that_did_not_ask_is_not_touched(entry: Entry) -> None:
    tagging, _ = tagged(raw_pod(args=CONSUMER, schedulerName="other"), entry)
    assert (tagging.ops, tagging.warnings) == ((), ())


def test_a_given_task_spec_stays() -> None:
    _, pod = tagged(raw_pod({**OURS, "volcano.sh/task-spec": "theirs"}))
    assert "volcano.sh/task-spec" not in pod["metadata"]["annotations"]
    _, pod = tagged(raw_pod(dict(OURS), {"volcano.sh/task-spec": "theirs"}))
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == "theirs"


@pytest.mark.parametrize(
    "raw",
    [
        raw_pod(dict(OURS), nodeName="n1"),
        raw_pod(dict(OURS), {"kubernetes.io/config.mirror": "x"}),
        raw_pod({**OURS, "isochrone.dev/enabled": "false"}),
        raw_pod({**OURS, "isochrone.dev/enabled": "False"}),
        raw_pod({"isochrone.dev/phase": "wrong"}, nodeName="n1"),
    ],
)
@pytest.mark.parametrize("entry", list(Entry))
def test_left_alone(raw: Raw, entry: Entry) -> None:
    tagging, _ = tagged(raw, entry)
    assert (tagging.ops, tagging.warnings, tagging.denied) == ((), (), None)


@pytest.mark.parametrize(
    ("labels", "annotations", "denied"),
    [
        (
            {"isochrone.dev/phase": "decoder"},
            {},
            'isochrone.dev/phase is \'decoder\'; use "prefill" or "decode". Did you mean "decode"?',
        ),
        ({"isochrone.dev/phase": ""}, {}, 'isochrone.dev/phase is \'\'; use "prefill" or "decode".'),
        (
            {"isochrone.dev/phase": "decode", "isochrone.dev/gang": ""},
            {},
            "isochrone.dev/gang is ''; use one name for all pods of a service, such as \"chat\".",
        ),
        (
            OURS,
            {"isochrone.dev/min-decode": "-1", "isochrone.dev/reach-mode": "hard"},
            'isochrone.dev/reach-mode is \'hard\'; use "required" or "preferred". '
            "isochrone.dev/min-decode is '-1'; use a whole number from 1 to 9999.",
        ),
    ],
)
def test_refused_with_every_wrong_value_named(labels: dict[str, str], annotations: dict[str, str], denied: str) -> None:
    tagging, _ = tagged(raw_pod(labels, annotations))
    assert tagging.denied == denied
    assert tagging.ops == ()


def test_a_gpu_request_that_cannot_be_read_is_refused() -> None:
    raw = raw_pod(dict(OURS), annotations={"isochrone.dev/gpu-memory": "60"})
    raw["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert tagged(raw)[0].denied == (
        'Isochrone memory: isochrone.dev/gpu-memory is \'60\'; use a size with its unit, such as "60Gi" or "512Mi", '
        "at most 16Ti."
    )
    raw["metadata"]["annotations"] = {"isochrone.dev/gpu-memory": "60Gi"}
    assert tagged(raw)[0].denied is None


def test_a_merely_recognised_pod_is_warned_and_not_refused() -> None:
    tagging, _ = tagged(raw_pod(args=CONSUMER, annotations={"isochrone.dev/reach": "fast"}), Entry.RECOGNISE)
    assert tagging.denied is None
    assert tagging.phase == "decode"
    assert len(tagging.warnings) == 1
    assert tagging.warnings[0].startswith("isochrone.dev/reach is 'fast'; use a duration")


@pytest.mark.parametrize(
    ("raw", "entry", "warnings"),
    [
        (
            raw_pod({"isochrone.dev/gang": "chat"}),
            Entry.LABELLED,
            "isochrone.dev/gang is set but no phase was recognised: not tagged; "
            "set label isochrone.dev/phase to prefill or decode",
        ),
        (
            raw_pod({"isochrone.dev/phase": "prefill"}),
            Entry.LABELLED,
            "phase prefill (label isochrone.dev/phase) but no gang; "
            "set label isochrone.dev/gang, or --model and label app.kubernetes.io/part-of",
        ),
        (
            raw_pod(args=["--kv-transfer-config", '{"kv_role":"kv_both"}']),
            Entry.NAMESPACE,
            "vLLM kv_role kv_both does not tell the phase: not tagged; "
            "set label isochrone.dev/phase to prefill or decode",
        ),
        (raw_pod(args=["--kv-transfer-config", '{"kv_role":"kv_both"}']), Entry.RECOGNISE, None),
        (raw_pod({"rbg.workloads.x-k8s.io/role-name": "router"}), Entry.NAMESPACE, None),
        (raw_pod({"rbg.workloads.x-k8s.io/role-name": "router", "isochrone.dev/gang": "c"}), Entry.LABELLED, None),
        (raw_pod({"app": "web"}), Entry.NAMESPACE, None),
        (raw_pod({"app": "web"}, {"isochrone.dev/reach": "?"}), Entry.NAMESPACE, None),
    ],
)
def test_untagged_with_a_word_to_whom_it_concerns(raw: Raw, entry: Entry, warnings: str | None) -> None:
    tagging, _ = tagged(raw, entry)
    assert tagging.ops == ()
    assert tagging.denied is None
    assert tagging.warnings == ((warnings,) if warnings else ())


def test_the_claims_of_a_container_are_not_lost() -> None:
    raw = raw_pod(dict(OURS))
    raw["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    _, pod = tagged(raw)
    assert pod["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": "gpu"}],
        "requests": MARKER,
        "limits": MARKER,
    }


def test_what_only_the_controller_writes_is_taken_off() -> None:
    forged = {"isochrone.dev/decision": "a1b2", "isochrone.dev/placement": "planned n1", "team": "x"}
    tagging, pod = tagged(raw_pod(dict(OURS), dict(forged)))
    assert forged.keys() & pod["metadata"]["annotations"].keys() == {"team"}
    assert tagging.warnings == (
        "isochrone.dev/decision is written by Isochrone alone: removed",
        "isochrone.dev/placement is written by Isochrone alone: removed",
    )


def test_signals_that_disagree_are_told_on_the_pod() -> None:
    role = {"modelserving.volcano.sh/role": "prefill", "modelserving.volcano.sh/group-name": "c-0"}
    tagging, pod = tagged(raw_pod(role, args=CONSUMER), Entry.NAMESPACE)
    output = "Kthena role prefill says prefill but vLLM kv_role kv_consumer says decode; the high signal wins"
    assert (tagging.phase, tagging.warnings) == ("prefill", (output,))
    assert pod["metadata"]["annotations"]["isochrone.dev/phase-conflict"] == output


def test_an_undecided_pod_that_asks_carries_why_and_nothing_else() -> None:
    raw = raw_pod({"modelserving.volcano.sh/role": "prefill", "llm-d.ai/role": "decode"})
    _, pod = tagged(raw, Entry.NAMESPACE)
    assert list(pod["metadata"]["annotations"]) == ["isochrone.dev/phase-conflict"]
    assert (pod["spec"], pod["metadata"]["labels"]) == (raw["spec"], raw["metadata"]["labels"])
    assert tagged(raw, Entry.RECOGNISE)[1] == raw


def test_a_phase_that_only_a_name_tells_is_never_held() -> None:
    raw = raw_pod({"app.kubernetes.io/part-of": "chat"}, env={"ROLE": "decode"}, command=["/start.sh"])
    raw["spec"]["containers"][0] |= {"image": "acme/my-llm:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    tagging, pod = tagged(raw, Entry.NAMESPACE)
    assert (tagging.phase, tagging.mode) == ("decode", "preferred")
    assert "schedulingGates" not in pod["spec"]
    again, _ = tagged(pod, Entry.NAMESPACE)
    assert again.ops == ()


def test_large_annotations_of_others_stay_and_ours_are_small() -> None:
    """Cases C121 and C149: foreign keys are never touched, and our part is far below 16 KiB."""
    foreign = {f"acme.example/topology-{number}": "x" * 50_000 for number in range(4)}
    tagging, pod = tagged(raw_pod(dict(OURS), dict(foreign)))
    annotations = pod["metadata"]["annotations"]
    assert {key: annotations[key] for key in foreign} == foreign
    ours = {key: value for key, value in annotations.items() if key not in foreign}
    assert sum(len(key) + len(value) for key, value in ours.items()) < 1024
    assert all(not operation.path.startswith("/metadata/annotations/acme") for operation in tagging.ops)
