"""Published HyperNodes: the tree by hand, and that it is one at every moment, whatever the labels say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.clusters import node
from tests.scheduler.small_cases import Choices
from topology.cluster.agent_links import AgentLinks
from topology.cluster.domain_sources import NO_SOURCES, FilePlaces, Sources
from topology.hypernodes.disagreements import disagreements
from topology.hypernodes.plan import NAME_CHARS, Desired, plan_hypernodes
from topology.hypernodes.publication import Publication
from topology.hypernodes.publisher import HyperNodePublisher
from topology.hypernodes.steps import Apply, Delete, Step, steps
from topology.kube.errors import ApiError
from topology.labels import ACCELERATOR, MANAGED_BY, NVLINK_CLIQUE, ZONE
from topology.objects import HyperNode, HyperNodeMember, HyperNodeSpec, MemberSelector, Metadata, NameMatch, Node
from topology.reach.domains import DomainChain, membership


def as_there(desired: Desired) -> HyperNode:
    kind = "Node" if desired.of_nodes else "HyperNode"
    members = tuple(HyperNodeMember(kind, MemberSelector(exact_match=NameMatch(name=name))) for name in desired.members)
    meta = Metadata(name=desired.name, uid=f"uid-{desired.name}", labels={MANAGED_BY: "isochrone"})
    return HyperNode(meta, HyperNodeSpec(desired.tier, desired.tier_name, members))


def apply_step(there: dict[str, HyperNode], step: Step) -> None:
    if isinstance(step, Apply):
        there[step.desired.name] = as_there(step.desired)
    else:
        del there[step.name]


def tree(there: Iterable[HyperNode]) -> dict[str, str]:
    """Parent by member; fails where it is no tree."""
    parent: dict[str, str] = {}
    names = {h.metadata.name: h for h in there}
    for name, hypernode in names.items():
        for member in hypernode.spec.members or ():
            assert member.selector.exact_match is not None
            key = f"{member.type}/{member.selector.exact_match.name}"
            assert key not in parent, f"two parents of {key}: {parent[key]} and {name}"
            parent[key] = name
            if member.type == "HyperNode":
                child = names[member.selector.exact_match.name]  # it exists
                assert child.spec.tier < hypernode.spec.tier
    for name in names:
        seen = {name}
        while (above := parent.get(f"HyperNode/{name}")) is not None:
            assert above not in seen, "a cycle"
            seen.add(above)
            name = above
    return parent


def show(nodes: Sequence[Node]) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Without the digests."""
    made = plan_hypernodes(nodes, ()).desired
    return {
        name[:-11]: (d.tier, tuple(m[:-11] if not d.of_nodes else m for m in d.members)) for name, d in made.items()
    }


def test_a_tree_of_leaves_spines_and_zones() -> None:
    nodes = [
        node("a1", zone="z1", spine="s1", leaf="l1"),
        node("a2", zone="z1", spine="s1", leaf="l1"),
        node("b1", zone="z1", spine="s1", leaf="l2"),
        node("c1", zone="z2", spine="s9", leaf="l1"),  # the same name in another zone is another leaf
    ]
    made = plan_hypernodes(nodes, ()).desired
    assert [(d.tier, d.members) for d in made.values() if d.of_nodes] == [(2, ("a1", "a2")), (2, ("b1",)), (2, ("c1",))]
    assert len({d.name for d in made.values() if d.tier == 2}) == 3
    assert {(d.tier, d.tier_name, len(d.members)) for d in made.values()} == {
        (2, "leaf", 2),
        (2, "leaf", 1),
        (3, "spine", 2),
        (3, "spine", 1),
        (4, "zone", 1),
    }


def test_every_gpu_node_is_in_a_lowest_tier() -> None:
    # b1 is in no clique: Volcano looks nodes up on the lowest tier alone, so it is the rest of its leaf there.
    clique = {NVLINK_CLIQUE: "c.1"}
    nodes = [node("a1", leaf="l1", labels=clique), node("b1", leaf="l1"), node("x1")]
    assert show(nodes) == {
        "isochrone-clique-c-1": (1, ("a1",)),
        "isochrone-clique-rest-l1": (1, ("b1",)),
        "isochrone-clique-rest": (1, ("x1",)),
        "isochrone-leaf-l1": (2, ("isochrone-clique-c-1", "isochrone-clique-rest-l1")),
        "isochrone-leaf-rest": (2, ("isochrone-clique-rest",)),
    }
    assert show([node("x1"), node("x2")]) == {"isochrone-leaf-rest": (2, ("x1", "x2"))}


def test_a_clique_over_two_leaves_stays_whole_and_counts_to_one() -> None:
    clique = {NVLINK_CLIQUE: "c1"}
    nodes = [node(f"n{i}", leaf="l1" if i < 2 else "l2", labels=clique) for i in range(5)]
    made = plan_hypernodes(nodes, ())
    assert [d.members for d in made.desired.values() if d.of_nodes] == [("n0", "n1", "n2", "n3", "n4")]
    assert [name[:-11] for name, d in made.desired.items() if d.tier == 2] == ["isochrone-leaf-l2"]
    assert "reaches over 2 leaf domains: it counts to the one with most of its nodes" in made.warnings[0]


def test_c085_values_are_opaque_and_names_fit_a_label() -> None:
    long = "6f4a4bf1-52e6-4aa5-9c3e-7b1d0c9a8e11-cluster-with-a-very-long-name-indeed.32766"
    nodes = [node("n1", labels={NVLINK_CLIQUE: long}), node("n2", labels={NVLINK_CLIQUE: long + "7"})]
    names = list(plan_hypernodes(nodes, ()).desired)
    assert len(set(names)) == 2
    assert all(len(name) <= NAME_CHARS for name in names)
    assert names[0].startswith("isochrone-clique-6f4a4bf1-52e6-4aa5-9c3e")


def test_c085_two_labels_that_disagree_are_told_and_the_clique_counts() -> None:
    def labelled(name: str, clique: str, accelerator: str) -> Node:
        return node(name, labels={NVLINK_CLIQUE: clique, ACCELERATOR: accelerator})

    # A hash in place of the id is no disagreement: the same nodes share it.
    assert disagreements([labelled("n1", "u.1", "x8f1"), labelled("n2", "u.1", "x8f1")], NO_SOURCES) == ()
    apart = [labelled("n1", "u.1", "x8f1"), labelled("n2", "u.1", "x9aa")]
    assert disagreements(apart, NO_SOURCES) == (
        f"nodes with {NVLINK_CLIQUE} 'u.1' have several values of {ACCELERATOR}; {NVLINK_CLIQUE} counts",
    )
    made = plan_hypernodes(apart, ())
    assert [d.members for d in made.desired.values() if d.tier == 1] == [("n1", "n2")]
    assert len(disagreements([labelled("n1", "u.1", "x8f1"), labelled("n2", "u.2", "x8f1")], NO_SOURCES)) == 1


def test_hypernodes_of_others_are_adopted_and_never_written() -> None:
    theirs = HyperNode(Metadata(name="leaf-hn-0"), HyperNodeSpec(1, "", ()))
    ours = as_there(next(iter(plan_hypernodes([node("a1", leaf="l1")], ()).desired.values())))
    made = plan_hypernodes([node("a1", leaf="l1")], [theirs, ours])
    assert made.desired == {}
    assert made.warnings == ("1 HyperNodes of others are adopted (leaf-hn-0): none are made",)
    assert steps([theirs, ours], made.desired) == [Delete(ours.metadata.name, ours.metadata.uid)]


def test_what_is_published_is_no_new_fact_about_nodes() -> None:
    nodes = [node("x1"), node("x2")]
    published = [as_there(d) for d in plan_hypernodes(nodes, ()).desired.values()]
    assert membership(nodes, published) == {}  # else the rest would become a leaf


def test_c083_a_node_that_disappears_leaves_them() -> None:
    two = [node("n1", leaf="l1"), node("n2", leaf="l2")]
    there = {d.name: as_there(d) for d in plan_hypernodes(two, ()).desired.values()}
    todo = steps(there.values(), plan_hypernodes(two[:1], there.values()).desired)
    for step in todo:
        apply_step(there, step)
        tree(there.values())
    assert [m for h in there.values() for m in (h.spec.members or ()) if m.selector.exact_match] == [
        HyperNodeMember("Node", MemberSelector(exact_match=NameMatch(name="n1")))
    ]


def test_one_that_somebody_wrote_into_is_written_anew() -> None:
    desired = plan_hypernodes([node("n1", leaf="l1")], ()).desired
    [there] = [as_there(d) for d in desired.values()]
    assert steps([there], desired) == []
    odd = HyperNode(there.metadata, HyperNodeSpec(2, "leaf", (*(there.spec.members or ()), HyperNodeMember("Node"))))
    assert [type(step) for step in steps([odd], desired)] == [Apply]


def _sources(choose: Choices) -> Sources:
    """Agents and a file that say anything at all about the same nodes."""
    names = [f"n{i}" for i in range(7) if choose.rarely(3)]
    seen = {name: AgentLinks(fabric=choose.of(("c0", "c1", "", None))) for name in names}
    places = {
        f"n{i}": DomainChain("/", choose.of(("", "//s1")), choose.of(("", "//l1", "//l2")), choose.of(("", "c1")))
        for i in range(3)
    }
    return Sources(seen, FilePlaces(places if choose.rarely(2) else {}))


def _cluster(choose: Choices) -> list[Node]:
    nodes = []
    for i in range(choose.of(range(7))):
        labels = {NVLINK_CLIQUE: f"c{choose.of(range(2))}"} if choose.rarely(3) else {}
        made = node(
            f"n{i}",
            zone=choose.of(("z1", "", "z2")),
            spine=choose.of(("", "s1", "s2")),
            leaf=choose.of(("l1", "", "l2")),
            labels=labels,
        )
        if not choose.rarely(5):
            nodes.append(made)
    return nodes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=80, max_size=80), min_size=1, max_size=4))
def test_it_is_a_tree_at_every_moment(clusters: list[bytes]) -> None:
    there: dict[str, HyperNode] = {}
    for data in clusters:
        nodes, sources = _cluster(choose := Choices(data)), _sources(choose)
        desired = plan_hypernodes(nodes, there.values(), sources).desired
        for step in steps(there.values(), desired):
            apply_step(there, step)
            tree(there.values())
        parent = tree(there.values())
        assert {key for key in parent if key.startswith("Node/")} == {f"Node/{n.metadata.name}" for n in nodes}
        lowest = {h.spec.tier for h in there.values() if any(m.type == "Node" for m in h.spec.members or ())}
        assert len(lowest) <= 1
        assert not lowest or lowest == {min(h.spec.tier for h in there.values())}
        assert steps(there.values(), plan_hypernodes(nodes, there.values(), sources).desired) == []


class _Server:
    """An API server's HyperNodes: apply and delete, one refusal on request."""

    def __init__(self) -> None:
        self.there: dict[str, HyperNode] = {}
        self.refuse = 0

    async def apply(self, path: str, obj: object, *, field_manager: str = "", force: bool = False) -> bytes:
        if self.refuse:
            self.refuse -= 1
            raise ApiError(403, "Forbidden", "not you")
        assert isinstance(obj, dict)
        spec = obj["spec"]
        members = tuple(m["selector"]["exactMatch"]["name"] for m in spec["members"])
        of_nodes = any(m["type"] == "Node" for m in spec["members"])
        name = path.rpartition("/")[2]
        self.there[name] = as_there(Desired(name, spec["tier"], spec["tierName"], members, of_nodes))
        return b"{}"

    async def delete(self, path: str, *, uid: str | None = None) -> bool:
        assert uid == f"uid-{path.rpartition('/')[2]}"
        del self.there[path.rpartition("/")[2]]
        return True


async def _at_once() -> None:
    """Nobody has to be waited for."""


async def test_the_publisher_writes_the_difference_and_goes_on_after_a_refusal() -> None:
    server = _Server()
    nodes = [node("n1", zone="z1", leaf="l1"), node("n2", zone="z1", leaf="l2"), node("cpu", gpus=0, leaf="l3")]
    publisher = Publication(
        lambda: nodes,
        lambda n: n.metadata.name != "cpu",
        lambda: NO_SOURCES,
        [HyperNodePublisher(server, lambda: list(server.there.values()))],
        _at_once,
    )
    server.refuse = 1
    with pytest.raises(ApiError):
        await publisher.publish()
    assert await publisher.publish() == 3  # two leaves and their zone
    assert await publisher.publish() == 0
    assert {m for m in tree(server.there.values()) if m.startswith("Node/")} == {"Node/n1", "Node/n2"}
    nodes.pop(0)
    assert await publisher.publish() == 2  # the zone lets the leaf go, then the leaf goes
    moved = node("n2", zone="z2", leaf="l2")
    assert moved.metadata.label(ZONE) == "z2"
    nodes[0] = moved
    await publisher.publish()
    assert len(server.there) == 2
