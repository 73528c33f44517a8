"""Node selectors, required affinity, taints and readiness, by Kubernetes' rules."""

from __future__ import annotations

import pytest

from tests.scheduler.clusters import READY, node
from topology.objects import (
    Affinity,
    Metadata,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    NodeSpec,
    NodeStatus,
    PodSpec,
    Requirement,
    Taint,
    Toleration,
)
from topology.selectors import accepts, blocking_taint, matches_requirement, matches_selector, tolerates

LABELS = {"pool": "a", "gpus": "8", "odd": "eight"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("pool", "In", ("a", "b"), True),
        ("pool", "In", ("b",), False),
        ("absent", "In", ("",), False),
        ("pool", "NotIn", ("b",), True),
        ("pool", "NotIn", ("a",), False),
        ("absent", "NotIn", ("a",), True),  # a node without the label is not in the list
        ("pool", "Exists", None, True),
        ("absent", "Exists", None, False),
        ("absent", "DoesNotExist", None, True),
        ("pool", "DoesNotExist", None, False),
        ("gpus", "Gt", ("7",), True),
        ("gpus", "Gt", ("8",), False),
        ("gpus", "Lt", ("9",), True),
        ("gpus", "Lt", ("8",), False),
        ("odd", "Gt", ("1",), False),
        ("gpus", "Gt", (), False),
        ("absent", "Gt", ("1",), False),
        ("pool", "Like", ("a",), False),  # an operator that does not exist matches nothing
    ],
)
def test_a_requirement(key: str, operator: str, values: tuple[str, ...] | None, holds: bool) -> None:
    assert matches_requirement(LABELS, Requirement(key=key, operator=operator, values=values)) is holds


def _term(*expressions: Requirement, fields: tuple[Requirement, ...] = ()) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=expressions or None, match_fields=fields or None)


IN_A = Requirement("pool", "In", ("a",))
IN_B = Requirement("pool", "In", ("b",))
BY_NAME = Requirement("metadata.name", "In", ("gpu-001",))


@pytest.mark.parametrize(
    ("terms", "holds"),
    [
        ((_term(IN_A),), True),
        ((_term(IN_B), _term(IN_A)), True),  # any term
        ((_term(IN_A, IN_B),), False),  # all expressions of a term
        ((_term(),), False),  # an empty term selects nothing
        ((_term(), _term(IN_A)), True),
        ((), False),
        ((_term(fields=(BY_NAME,)),), True),
        ((_term(IN_B, fields=(BY_NAME,)),), False),
    ],
)
def test_a_selector(terms: tuple[NodeSelectorTerm, ...], holds: bool) -> None:
    assert matches_selector(node("gpu-001", labels={"pool": "a"}), NodeSelector(terms)) is holds


TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        (Toleration(key="gpu", operator="Equal", value="yes", effect="NoSchedule"), True),
        (Toleration(key="gpu", value="yes"), True),  # Equal is the default, no effect means every effect
        (Toleration(key="gpu", operator="", value="yes"), True),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(operator="Exists"), True),  # tolerates everything
        (Toleration(key="gpu", value="no"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(operator="Equal", value="yes"), False),  # without a key only Exists is allowed
    ],
)
def test_a_toleration(toleration: Toleration, covered: bool) -> None:
    assert tolerates((toleration,), TAINT) is covered


def test_a_taint_that_only_prefers_blocks_nobody() -> None:
    soft = Taint(key="spot", effect="PreferNoSchedule")
    hard = Taint(key="broken", effect="NoExecute")
    assert blocking_taint(node("a", taints=[soft]), ()) is None
    assert blocking_taint(node("a", taints=[soft, hard]), ()) == hard


def _affinity(*terms: NodeSelectorTerm) -> Affinity:
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms)))


@pytest.mark.parametrize(
    ("spec", "accepted"),
    [
        (PodSpec(), True),
        (PodSpec(node_selector={"pool": "a"}), True),
        (PodSpec(node_selector={"pool": "b"}), False),
        (PodSpec(node_selector={"pool": "a", "absent": ""}), False),
        (PodSpec(affinity=_affinity(_term(IN_A))), True),
        (PodSpec(node_selector={"pool": "a"}, affinity=_affinity(_term(IN_B))), False),  # both must hold
        (PodSpec(affinity=Affinity()), True),
    ],
)
def test_a_node_is_selected(spec: PodSpec, accepted: bool) -> None:
    assert accepts(spec, node("a", labels={"pool": "a"})) is accepted


def test_a_node_that_is_down_or_cordoned_takes_nobody() -> None:
    assert not accepts(PodSpec(), node("a", ready=False))
    cordoned = Node(metadata=Metadata(name="a"), spec=NodeSpec(unschedulable=True), status=NodeStatus(conditions=READY))
    assert not accepts(PodSpec(), cordoned)
    brave = PodSpec(tolerations=(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),))
    assert accepts(brave, cordoned)
    assert not accepts(brave, node("a", ready=False))
