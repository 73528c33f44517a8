"""Writes the tables of docs/reach.md from the link table; `--check` only says whether they are up to date."""

from __future__ import annotations

from pathlib import Path

from docs.marked_page import keep
from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.reach.domains import DomainChain
from topology.reach.link_rows import ROWS
from topology.reach.links import LINKS
from topology.reach.model import NodeLinks, ReachModel
from topology.units import show_us

PAGE = Path(__file__).with_name("reach.md")


def links() -> list[str]:
    """One row a link kind."""
    head = ["| link | latency, us | GB/s | source |", "|---|---|---|---|"]
    return head + [
        f"| {kind.value} | {link.latency_us:g} | {link.bytes_per_us / 1000:g} | {link.source} |"
        for kind, link in LINKS.items()
    ]


def hardware() -> list[str]:
    """One row a hardware."""
    head = ["| hardware | median, us | p99, us | GB/s | off by | source |", "|---|---|---|---|---|---|"]
    return head + [
        f"| {each.value} | {row.latency_us:g} | {row.latency_us * row.tail:.3g} | {row.bytes_per_us / 1000:g} "
        f"| {row.error_percent:.0f} % | {row.source} |"
        for each, row in ROWS.items()
    ]


def reaches() -> list[str]:
    """One row a distance, one column a transport."""
    chains = [
        DomainChain(zone="z1", spine="s1", leaf="l1"),
        DomainChain(zone="z1", spine="s1", leaf="l1"),
        DomainChain(zone="z1", spine="s1", leaf="l2"),
        DomainChain(zone="z1", spine="s2", leaf="l3"),
        DomainChain(zone="z2", spine="s3", leaf="l4"),
    ]
    models = [ReachModel(chains, [NodeLinks(rdma=rdma, nvswitch=True)] * len(chains)) for rdma in (False, True)]
    rows = ("on one node", "under one leaf", "under one spine", "in one zone", "in two zones")
    head = ["| two pods | NVSwitch and TCP | NVSwitch and RDMA |", "|---|---|---|"]
    return head + [
        f"| {row} | " + " | ".join(show_us(m.between(0, i, DEFAULT_REACH_SIZE_BYTES).us) for m in models) + " |"
        for i, row in enumerate(rows)
    ]


if __name__ == "__main__":
    raise SystemExit(keep(PAGE, {"links": links(), "reaches": reaches(), "hardware": hardware()}))
