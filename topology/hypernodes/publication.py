"""EDGE. When something is published: after a change of nodes, agents or the topology file, once it has settled.

It also tells, published or not, where those who say which nodes belong together do not agree. The first round waits
until agents that were there before have come back, so that a restart takes no node out of its clique.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from topology.cluster.domain_sources import Sources
from topology.hypernodes.disagreements import disagreements
from topology.kube.errors import ApiFailure
from topology.objects import Node

log = logging.getLogger(__name__)

SETTLE_S: Final = 5.0
"""Nodes come and go together: wait for the rest of them."""
AGAIN_S: Final = 30.0


class Publisher(Protocol):
    """Writes one kind of thing."""

    async def publish(self, nodes: Sequence[Node], sources: Sources) -> int:
        """One round: the number of writes. Raises ApiFailure where one was refused."""


class Publication:
    """`nodes` gives what the watch holds; `has_gpus` says which count; `settled` returns when agents are back."""

    def __init__(
        self,
        nodes: Callable[[], Iterable[Node]],
        has_gpus: Callable[[Node], bool],
        sources: Callable[[], Sources],
        publishers: Sequence[Publisher],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        self._nodes, self._has_gpus, self._sources = nodes, has_gpus, sources
        self._publishers, self._settled = publishers, settled
        self._changed = asyncio.Event()
        self.conflicts: tuple[str, ...] = ()

    def changed(self) -> None:
        """Something about nodes, HyperNodes, agents or the file changed; it is looked at again soon."""
        self._changed.set()

    async def publish(self) -> int:
        """One round: the number of writes. Raises ApiFailure where one was refused."""
        nodes, sources = [node for node in self._nodes() if self._has_gpus(node)], self._sources()
        found = disagreements(nodes, sources)
        for sentence in found:
            if sentence not in self.conflicts:
                log.warning("topology: %s", sentence)
        self.conflicts = found
        return sum([await publisher.publish(nodes, sources) for publisher in self._publishers])

    async def run(self) -> None:
        """Publishes after every change, until cancelled."""
        if self._publishers:
            await self._settled()
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except ApiFailure as failure:
                log.warning("publishing the topology: %s; trying again in %.0f s", failure, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
                continue
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
