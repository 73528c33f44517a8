"""Amounts: what a pod asks for and what a node has, in one integer form.

`cpu` is in thousandths of a core; everything else is in whole units (bytes, GPUs, pods). Amounts with quantity zero,
such as our marker resource, are dropped: they ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topology.bad_input import BadInput
from topology.labels import NVIDIA_GPU
from topology.objects import Container, PodSpec
from topology.units import parse_quantity

CPU, MEMORY, PODS, GPU = "cpu", "memory", "pods", NVIDIA_GPU

Amounts = dict[str, int]

_MOST = 2**50
"""A pod's amount is cut here: still more than any node has, and 8,000 of them add up in 63 bits."""


def parse_amounts(raw: Mapping[str, str | int | float] | None, field: str) -> Amounts:
    """A Kubernetes resource list to integers. Raises BadInput naming `field[resource]`."""
    if not raw:
        return {}
    try:
        return {name: parse_quantity(value, name, milli=name == CPU) for name, value in raw.items()}
    except BadInput as bad:
        raise BadInput(f"{field}[{bad.field}]", bad.value, bad.allowed) from None


def _requests(container: Container, kind: str, index: int) -> Amounts:
    given = container.resources
    try:
        # Extended resources given only as limits count as requests (Kubernetes defaults them so on creation).
        return parse_amounts(given.limits, "limits") | parse_amounts(given.requests, "requests")
    except BadInput as bad:  # the place is worded only for those few pods
        raise BadInput(f"{kind}[{index}].resources.{bad.field}", bad.value, bad.allowed) from None


def _add(into: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount


def _raise_to(into: Amounts, floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        into[name] = max(into.get(name, 0), amount)


def pod_request(spec: PodSpec) -> Amounts:
    """What the scheduler must find on one node for this pod, `pods: 1` included.

    Kubernetes' rule: the sum of containers and sidecars, or the largest init step together with the sidecars started
    before it, whichever is more, plus overhead. Raises BadInput for a quantity that is none.
    """
    total: Amounts = {}
    for i, container in enumerate(spec.containers):
        _add(total, _requests(container, "containers", i))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for i, container in enumerate(spec.init_containers or ()):
        asked = _requests(container, "initContainers", i)
        if container.restart_policy == "Always":
            _add(sidecars, asked)
            _raise_to(peak, sidecars)
        else:
            step = dict(sidecars)
            _add(step, asked)
            _raise_to(peak, step)
    _add(total, sidecars)
    _raise_to(total, peak)
    _add(total, parse_amounts(spec.overhead, "overhead"))
    total[PODS] = 1
    return {name: min(amount, _MOST) for name, amount in total.items() if amount}


def sum_amounts(many: Iterable[Mapping[str, int]]) -> Amounts:
    """Amounts added up."""
    total: Amounts = {}
    for amounts in many:
        _add(total, amounts)
    return total


def readable_request(spec: PodSpec) -> tuple[Amounts, BadInput | None]:
    """`pod_request`, or an empty amount and the reason, for callers that must go on with the others."""
    try:
        return pod_request(spec), None
    except BadInput as bad:
        return {PODS: 1}, bad
