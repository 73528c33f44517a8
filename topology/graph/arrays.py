"""A topology as arrays, for scoring many nodes at once: closeness of devices, switches apart, domains of hosts.

Built once when a topology is read; nothing here runs inside a request. No shortest path per pair: hosts are compared
through the leaf they hang on, and only switches are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from topology.bad_input import BadInput
from topology.graph.link_words import HOP, SELF, UNKNOWN, nvlinks, rank
from topology.graph.parts import NETWORK_SWITCHES, Part, PartKind, Topology, above
from topology.reach.domains import DomainChain

MAX_SWITCHES = 2_048
UNREACHED = np.iinfo(np.int16).max


def closeness(topology: Topology) -> tuple[tuple[str, ...], NDArray[np.int8], NDArray[np.int8]]:
    """GPUs and NICs of one machine: names, rank of each pair's word (link_words.rank), NVLinks of each pair; (N, N)."""
    names = tuple(part.name for part in topology.of_kind(PartKind.GPU, PartKind.NIC))
    at = {name: index for index, name in enumerate(names)}
    ranks: NDArray[np.int8] = np.full((len(names), len(names)), rank(UNKNOWN), dtype=np.int8)
    bonds: NDArray[np.int8] = np.zeros((len(names), len(names)), dtype=np.int8)
    np.fill_diagonal(ranks, rank(SELF))
    for link in topology.links:
        if link.a in at and link.b in at:
            a, b = at[link.a], at[link.b]
            ranks[a, b] = ranks[b, a] = rank(link.kind)
            bonds[a, b] = bonds[b, a] = nvlinks(link.kind)
    return names, ranks, bonds


def switch_hops(topology: Topology) -> tuple[tuple[str, ...], NDArray[np.int16]]:
    """Cables on the shortest way between any two network switches: names and an (S, S) matrix; UNREACHED if none.

    All wave fronts at once as matrix products, one a hop: a few seconds for 2,048 switches, 20 ms for 400.
    """
    names = tuple(part.name for part in topology.of_kind(*NETWORK_SWITCHES))
    if len(names) > MAX_SWITCHES:
        raise BadInput("number of switches", len(names), f"distances are worked out for at most {MAX_SWITCHES}")
    at = {name: index for index, name in enumerate(names)}
    near: NDArray[np.float32] = np.zeros((len(names), len(names)), dtype=np.float32)
    for link in topology.links:
        if link.kind == HOP and link.a in at and link.b in at:
            near[at[link.a], at[link.b]] = near[at[link.b], at[link.a]] = 1
    hops: NDArray[np.int16] = np.full(near.shape, UNREACHED, dtype=np.int16)
    np.fill_diagonal(hops, 0)
    wave = np.eye(len(names), dtype=np.float32)
    for step in range(1, len(names)):
        fresh = ((wave @ near) > 0) & (hops == UNREACHED)
        if not fresh.any():
            break
        hops[fresh] = step
        wave = fresh.astype(np.float32)
    return names, hops


def domain_chains(topology: Topology) -> dict[str, DomainChain]:
    """Zone, spine, leaf and NVLink domain of every host, as the reach model takes them.

    A machine with a cable in each of several leaves (rails) shares a leaf with whoever has one in any of them, so
    leaves that a machine joins count as one.
    """
    by_name = {part.name: part for part in topology.parts}
    group = _rails(topology, by_name)
    chains: dict[str, DomainChain] = {}
    for host in topology.of_kind(PartKind.HOST):
        up = list(above(by_name, host))
        leaf = next((part.name for part in up if part.kind is PartKind.LEAF), group.get(host.name, ""))
        spine = next((part.name for part in up if part.kind is PartKind.SPINE), "")
        where = f"{host.region}/{host.zone}"
        chains[host.name] = DomainChain(
            zone=where,
            spine=f"{where}/{spine}" if spine else "",
            leaf=f"{where}/{group.get(leaf, leaf)}" if leaf else "",
            fabric=host.domain,
        )
    return chains


def _rails(topology: Topology, by_name: Mapping[str, Part]) -> dict[str, str]:
    """Hosts and leaves to the first leaf of their group: union of all leaves that one host is joined to."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for link in topology.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            part = by_name[end]
            host = end if part.kind is PartKind.HOST else part.inside if part.kind is PartKind.NIC else ""
            if host and by_name[other].kind is PartKind.LEAF:
                one, another = find(host), find(other)
                if one != another:
                    # The smaller name stands for the group; a host never stands for one.
                    keep, drop = sorted((one, another), key=lambda name: (by_name[name].kind is PartKind.HOST, name))
                    root[drop] = keep
    return {name: find(name) for name in root}
