"""Where nodes stand, by everything that says so: labels, HyperNodes of others, a topology file, what agents saw.

Rules of this file. (1) Leaf and spine: labels, else the file, else HyperNodes; a node whose labels name any switch is
not looked up in the file, because tiers of two sources do not line up. (2) NVLink domain: a label, else the agent, else
the file; where the agent says that the fabric is not usable there is none, whatever others say. (3) Values of all
sources are opaque and share one space: the same name in the same zone is the same switch, whoever says it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from topology.cluster.agent_links import AgentLinks
from topology.labels import HOSTNAME
from topology.objects import Node
from topology.reach.domains import DomainChain, chain_of

if TYPE_CHECKING:  # networkx is loaded when a file is read, not with every node table
    from topology.graph.network_map import NetworkMap


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


def _only(hosts: Iterable[str], form: Callable[[str], str]) -> dict[str, str]:
    """Another form of a name to the host, where that is one host."""
    names = list(hosts)
    often = Counter(map(form, names))
    return {form(host): host for host in names if often[form(host)] == 1}


class FilePlaces:
    """Places of hosts as a topology file names them: `chains` is what topology.graph.network_map makes of it."""

    def __init__(self, chains: Mapping[str, DomainChain], network: NetworkMap | None = None) -> None:
        self._chains = dict(chains)
        self.network = network
        self._small = _only(self._chains, str.lower)
        self._short = _only(self._chains, _short)

    def __len__(self) -> int:
        return len(self._chains)

    def of(self, node: Node) -> DomainChain | None:
        """A node's place, if the file has its host."""
        return self._chains[host] if (host := self.host(node)) is not None else None

    def host(self, node: Node) -> str | None:
        """A node's host in the file: by its name, else by its host name label, else by the name before the first dot.

        A file may have capital letters where Kubernetes has none. The last only if that is one host of the file, and if
        either side has no more than that part of the name.
        """
        name = node.metadata.name
        for known in (name, node.metadata.label(HOSTNAME)):
            if (host := known if known in self._chains else self._small.get(known.lower())) is not None:
                return host
        host = self._short.get(_short(name))
        if host is None or ("." in host and "." in name):
            return None
        return host


NO_FILE: Final = FilePlaces({})


@dataclass(frozen=True, slots=True)
class Sources:
    """What says where nodes stand, besides their labels: what agents saw, by node name, and a file."""

    seen: Mapping[str, AgentLinks] = field(default_factory=dict)
    file: FilePlaces = NO_FILE

    def chain(self, node: Node, hypernodes: Mapping[str, tuple[str, ...]]) -> DomainChain:
        """One node's domains; `hypernodes` as `chain_of` takes them."""
        reported = self.file.of(node)
        chain = chain_of(node, hypernodes, reported)
        seen = self.seen.get(node.metadata.name)
        if seen is not None:
            chain = seen.refine_chain(chain)
        unusable = seen is not None and seen.fabric == ""
        if reported is None or chain.fabric or unusable or not reported.fabric:
            return chain
        return replace(chain, fabric=reported.fabric)


NO_SOURCES: Final = Sources()
