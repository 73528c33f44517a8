"""Who stands behind a pod, from changes in any order."""

from __future__ import annotations

from admission.gangs.owners import Owners
from admission.gangs.template_revision import of_older
from tests.admission.held_pods import held, stored
from topology.objects import Metadata, OwnerReference, Pod, Workload, WorkloadSpec, WorkloadStatus


def workload(kind: str, name: str, replicas: int | None, above: Workload | None = None, uid: str = "") -> Workload:
    owner = None
    if above is not None:
        meta = above.metadata
        owner = (OwnerReference("Deployment", meta.name, meta.uid, "apps/v1", controller=True),)
    return Workload(Metadata(name=name, uid=uid or f"uid-{name}", owner_references=owner), WorkloadSpec(replicas))


def pod_of(owner: Workload | None, *, controls: bool = True) -> Pod:
    if owner is None:
        return stored(held("p0"))
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner.metadata.name, "uid": owner.metadata.uid}
    return stored(held("p0"), ownerReferences=[{**reference, "controller": controls}])


DEPLOYMENT = workload("Deployment", "chat", 3)
SET = workload("ReplicaSet", "chat-1", 3, DEPLOYMENT)


def top(owners: Owners, pod: Pod) -> tuple[str, str, str] | None:
    found = owners.top_owner(pod)
    return (found.kind, found.name, found.uid) if found is not None else None


def test_replicas_follow_the_workloads() -> None:
    owners = Owners()
    owners.apply([(None, SET), (None, workload("StatefulSet", "s", None)), (None, workload("ReplicaSet", "z", 0))])
    assert owners.replicas() == {"uid-chat-1": 3, "uid-s": 1, "uid-z": 0}
    scaled = workload("ReplicaSet", "chat-1", 5, DEPLOYMENT)
    owners.apply([(SET, scaled)])
    assert owners.replicas()["uid-chat-1"] == 5
    owners.apply([(scaled, workload("ReplicaSet", "chat-1", 2, uid="second"))])
    assert owners.replicas() == {"uid-s": 1, "uid-z": 0, "second": 2}
    owners.apply([(workload("StatefulSet", "s", None), None)])
    assert owners.replicas() == {"uid-z": 0, "second": 2}


def test_the_top_owner_is_found_as_far_as_the_chain_is_known() -> None:
    owners = Owners()
    pod = pod_of(SET)
    assert top(owners, pod) == ("ReplicaSet", "chat-1", "uid-chat-1")
    owners.apply([(None, SET)])
    # The Deployment itself need not be watched: its ReplicaSet says who it is.
    assert top(owners, pod) == ("Deployment", "chat", "uid-chat")
    owners.apply([(SET, None)])
    assert top(owners, pod) == ("ReplicaSet", "chat-1", "uid-chat-1")


def test_a_chain_of_three_ends_at_the_top() -> None:
    top_one = workload("LeaderWorkerSet", "lws", 2)
    middle = workload("StatefulSet", "lws-0", 4, top_one)
    lowest = workload("ReplicaSet", "x", 1, middle)
    owners = Owners()
    owners.apply([(None, lowest), (None, middle), (None, top_one)])
    assert top(owners, pod_of(lowest)) == ("Deployment", "lws", "uid-lws")


def test_nobody_controls_it() -> None:
    owners = Owners()
    owners.apply([(None, SET)])
    assert owners.top_owner(pod_of(None)) is None
    assert owners.top_owner(pod_of(SET, controls=False)) is None


def test_a_circle_of_owners_ends() -> None:
    one = workload("ReplicaSet", "a", 1, uid="a")
    two = workload("ReplicaSet", "b", 1, one, uid="b")
    one = workload("ReplicaSet", "a", 1, two, uid="a")
    owners = Owners()
    owners.apply([(None, one), (None, two)])
    assert owners.top_owner(pod_of(one)) is not None


def replica_set(name: str, revision: int, deployment: str = "d1") -> Workload:
    owner = OwnerReference(kind="Deployment", name="chat", uid=deployment, api_version="apps/v1", controller=True)
    annotations = {"deployment.kubernetes.io/revision": str(revision)}
    return Workload(Metadata(name=name, uid=name, annotations=annotations, owner_references=(owner,)), WorkloadSpec(1))


def pod_from(owner: str) -> Pod:
    reference = OwnerReference(kind="ReplicaSet", name=owner, uid=owner, api_version="apps/v1", controller=True)
    return Pod(Metadata(name=f"{owner}-x", uid=f"{owner}-x", owner_references=(reference,)))


def test_a_pod_is_of_the_revision_of_its_replica_set() -> None:
    owners = Owners()
    owners.apply([(None, replica_set("old", 1)), (None, replica_set("new", 2)), (None, replica_set("unsaid", 0))])
    old, new = owners.template_of(pod_from("old")), owners.template_of(pod_from("new"))
    assert old is not None
    assert new is not None
    assert (old.owner, old.revision, new.revision) == (new.owner, 1, 2)
    assert owners.template_of(pod_from("unknown")) is None
    assert owners.template_of(pod_from("unsaid")) is None


def test_a_rollback_makes_the_old_replica_set_the_wanted_one() -> None:
    owners = Owners()
    old, new = replica_set("old", 1), replica_set("new", 2)
    owners.apply([(None, old), (None, new), (old, replica_set("old", 3))])
    assert of_older([pod_from("old"), pod_from("new")], owners.template_of).keys() == {"new-x"}


def test_a_pod_of_a_stateful_set_is_of_its_newest_template_or_of_an_older_one() -> None:
    owners = Owners()
    spec, status = WorkloadSpec(2), WorkloadStatus("decode-2")
    owners.apply([(None, Workload(Metadata(name="decode", uid="sts"), spec, status))])
    pods = []
    for i in range(2):
        owner = OwnerReference(kind="StatefulSet", name="decode", uid="sts", api_version="apps/v1", controller=True)
        labels = {"controller-revision-hash": f"decode-{i + 1}"}
        pods.append(Pod(Metadata(name=f"d{i}", uid=f"d{i}", labels=labels, owner_references=(owner,))))
    older = of_older(pods, owners.template_of)
    assert older.keys() == {"d0"}
    assert older["d0"].retained
