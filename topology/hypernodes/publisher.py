"""EDGE. Keeps the published HyperNodes as they should be: plans from nodes and sources, writes the difference.

It writes one object after the other in the order of `hypernode_steps`, so that what is there is a tree at every moment.
A write that is refused ends the round; the next one starts from what is there then. Off unless a setting asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from topology.cluster.domain_sources import Sources
from topology.hypernodes.plan import plan_hypernodes
from topology.hypernodes.steps import Apply, steps
from topology.objects import HyperNode, Node

log = logging.getLogger(__name__)

PATH: Final = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
FIELD_MANAGER: Final = "isochrone-hypernodes"


class HyperNodeApi(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def apply(self, path: str, obj: object, *, field_manager: str = ..., force: bool = ...) -> bytes:
        """Server-side apply."""

    async def delete(self, path: str, *, uid: str | None = None) -> bool:
        """Delete that very object."""


class HyperNodePublisher:
    """`hypernodes` gives what the watch holds."""

    def __init__(self, api: HyperNodeApi, hypernodes: Callable[[], Iterable[HyperNode]]) -> None:
        self._api = api
        self._hypernodes = hypernodes
        self._reported: tuple[str, ...] = ()
        self.writes = 0

    async def publish(self, nodes: Sequence[Node], sources: Sources) -> int:
        """One round: the number of writes. Raises ApiFailure where one was refused."""
        existing = list(self._hypernodes())
        made = plan_hypernodes(nodes, existing, sources)
        if made.warnings != self._reported:
            self._reported = made.warnings
            for warning in made.warnings:
                log.warning("HyperNodes: %s", warning)
        todo = steps(existing, made.desired)
        for step in todo:
            if isinstance(step, Apply):
                body = step.desired.as_object()
                await self._api.apply(f"{PATH}/{step.desired.name}", body, field_manager=FIELD_MANAGER, force=True)
            else:
                await self._api.delete(f"{PATH}/{step.name}", uid=step.uid or None)
            self.writes += 1
        if todo:
            log.info("HyperNodes: %d writes, %d published", len(todo), len(made.desired))
        return len(todo)
