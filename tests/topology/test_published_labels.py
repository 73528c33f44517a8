"""Labels that are written on nodes: what they say, and that those of others stay, by the rules of server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.clusters import node
from topology.cluster.agent_links import AgentLinks
from topology.cluster.domain_sources import NO_SOURCES, Sources
from topology.hypernodes.label_plan import plan_labels
from topology.hypernodes.label_publisher import NodeLabelPublisher
from topology.hypernodes.plan import plan_hypernodes
from topology.kube.errors import ApiError
from topology.labels import CLIQUE, IN_LEAF, IN_SPINE, NVLINK_CLIQUE
from topology.objects import Metadata, Node


def short(labels: dict[str, str]) -> dict[str, str]:
    """Without the digests."""
    return {key: value[:-11] for key, value in labels.items()}


def test_labels_say_what_the_tree_says_and_nothing_where_nobody_knows() -> None:
    agents = {"n1": AgentLinks(fabric="u.1"), "n2": AgentLinks(fabric="u.1")}
    nodes = [node("n1", spine="s1", leaf="l1"), node("n2", spine="s1", leaf="l1"), node("n3", leaf="l2"), node("n4")]
    wanted = plan_labels(nodes, Sources(agents))
    assert {name: short(labels) for name, labels in wanted.items()} == {
        "n1": {CLIQUE: "isochrone-clique-u-1", IN_LEAF: "isochrone-leaf-l1", IN_SPINE: "isochrone-spine-s1"},
        "n2": {CLIQUE: "isochrone-clique-u-1", IN_LEAF: "isochrone-leaf-l1", IN_SPINE: "isochrone-spine-s1"},
        "n3": {IN_LEAF: "isochrone-leaf-l2"},
        "n4": {},
    }
    assert wanted["n1"][IN_LEAF] in plan_hypernodes(nodes, (), Sources(agents)).desired


def test_a_clique_over_two_leaves_is_labelled_as_one_for_whoever_builds_a_tree_from_labels() -> None:
    nodes = [node(f"n{i}", leaf="l1" if i < 2 else "l2", labels={NVLINK_CLIQUE: "c1"}) for i in range(5)]
    assert {short(labels)[IN_LEAF] for labels in plan_labels(nodes).values()} == {"isochrone-leaf-l2"}


class _Server:
    """Nodes, and who owns which label, by the rules of server-side apply without force."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {each.metadata.name: each for each in nodes}
        self.owners: dict[tuple[str, str], set[str]] = {}
        self.requests = 0
        self.refuse = False

    def set_by(self, manager: str, name: str, **labels: str) -> None:
        """Somebody else's update: it takes the key over."""
        for key, value in labels.items():
            self._label(name, key, value)
            self.owners[name, key] = {manager}

    def _label(self, name: str, key: str, value: str | None) -> None:
        meta = self.nodes[name].metadata
        labels = {k: v for k, v in {**(meta.labels or {}), key: value}.items() if v is not None}
        changed = Metadata(name=name, uid=meta.uid, labels=labels)
        self.nodes[name] = Node(changed, self.nodes[name].spec, self.nodes[name].status)

    async def apply(
        self, path: str, obj: object, *, field_manager: str = "", force: bool = True, brief: bool = False
    ) -> bytes:
        assert isinstance(obj, dict)
        assert not force
        assert brief
        self.requests += 1
        name, wanted = path.rpartition("/")[2], dict[str, str](obj["metadata"]["labels"])
        if self.refuse or name not in self.nodes:
            raise ApiError(403, "Forbidden", "nodes: cannot create or patch")
        there: dict[str, Any] = self.nodes[name].metadata.labels or {}
        taken = [
            key
            for key, value in wanted.items()
            if self.owners.get((name, key), set()) - {field_manager} and there.get(key) != value
        ]
        if taken:
            named = ", ".join(f".metadata.labels.{key}" for key in taken)
            raise ApiError(409, "Conflict", f'Apply failed: conflict with "kubectl" using v1: {named}')
        for (owned, key), managers in list(self.owners.items()):
            if owned == name and field_manager in managers and key not in wanted:
                managers.discard(field_manager)
                if not managers:
                    self._label(name, key, None)
        for key, value in wanted.items():
            self._label(name, key, value)
            self.owners.setdefault((name, key), set()).add(field_manager)
        return b"{}"

    def ours(self, name: str) -> dict[str, str]:
        labels = self.nodes[name].metadata.labels or {}
        return {key: labels[key] for key in (CLIQUE, IN_LEAF, IN_SPINE) if key in labels}

    async def round(self, publisher: NodeLabelPublisher, sources: Sources = NO_SOURCES) -> int:
        """One round of publishing, what the watch shows being what is there."""
        return await publisher.publish(list(self.nodes.values()), sources)


async def test_labels_follow_what_agents_say_and_go_with_it() -> None:
    server = _Server(node("n1", leaf="l1"), node("n2", leaf="l1"))
    publisher = NodeLabelPublisher(server)
    agents = {"n1": AgentLinks(fabric="u.1"), "n2": AgentLinks(fabric="u.1")}
    assert await server.round(publisher, Sources(agents)) == 2
    assert short(server.ours("n1")) == {CLIQUE: "isochrone-clique-u-1", IN_LEAF: "isochrone-leaf-l1"}
    assert await server.round(publisher, Sources(agents)) == 0
    broken = {"n1": agents["n1"], "n2": AgentLinks(fabric="")}
    assert await server.round(publisher, Sources(broken)) == 1
    assert short(server.ours("n2")) == {IN_LEAF: "isochrone-leaf-l1"}
    # A successor knows nothing of this process's memory: the API server knows what is ours.
    assert await server.round(NodeLabelPublisher(server), Sources(broken)) == 0


async def test_what_somebody_else_set_is_neither_overwritten_nor_removed(caplog: pytest.LogCaptureFixture) -> None:
    server = _Server(node("n1", leaf="l1", spine="s1"), node("n2"))
    server.set_by("kubectl", "n1", **{IN_LEAF: "mine"})
    server.set_by("kubectl", "n2", **{IN_SPINE: "mine too"})
    publisher = NodeLabelPublisher(server)
    await server.round(publisher)
    assert server.ours("n1")[IN_LEAF] == "mine"
    assert server.ours("n1")[IN_SPINE].startswith("isochrone-spine-s1")
    assert server.ours("n2") == {IN_SPINE: "mine too"}
    assert [r.message for r in caplog.records if "left alone" in r.message] == [
        f"node labels that somebody else set are left alone: n1 ({IN_LEAF})"
    ]
    await server.round(publisher)  # the watch has shown what was written: once more, then it is known
    before = server.requests
    for _ in range(3):
        await server.round(publisher)
    assert server.requests == before
    del server.owners["n1", IN_LEAF]
    server._label("n1", IN_LEAF, None)
    assert await server.round(publisher) == 1
    assert server.ours("n1")[IN_LEAF].startswith("isochrone-leaf-l1")


async def test_a_refusal_ends_the_round_and_a_gone_node_is_not_made_anew() -> None:
    server = _Server(node("n1", leaf="l1"))
    publisher = NodeLabelPublisher(server)
    server.refuse = True
    with pytest.raises(ApiError):
        await server.round(publisher)
    server.refuse = False
    with pytest.raises(ApiError):
        await publisher.publish([node("n0", leaf="l1"), *server.nodes.values()], NO_SOURCES)
    assert list(server.nodes) == ["n1"]
    assert await server.round(publisher) == 1
