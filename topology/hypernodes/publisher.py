"""EDGE. Keeps the published HyperNodes as they should be: plans when nodes change, writes the difference.

It writes one object after the other in the order of `hypernode_steps`, so that what is there is a tree at every moment.
A write that is refused ends the round; the next one starts from what is there then. Off unless a setting asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from topology.hypernodes.plan import plan_hypernodes
from topology.hypernodes.steps import Apply, steps
from topology.kube.errors import ApiFailure
from topology.objects import HyperNode, Node

log = logging.getLogger(__name__)

PATH: Final = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
SETTLE_S: Final = 5.0
"""Nodes come and go together: wait for the rest of them."""
AGAIN_S: Final = 30.0
FIELD_MANAGER: Final = "isochrone-hypernodes"


class Api(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def apply(self, path: str, obj: object, *, field_manager: str = ..., force: bool = ...) -> bytes:
        """Server-side apply."""

    async def delete(self, path: str, *, uid: str | None = None) -> bool:
        """Delete that very object."""


class HyperNodePublisher:
    """`nodes` and `hypernodes` give what the watches hold; `has_gpus` says which nodes count."""

    def __init__(
        self,
        api: Api,
        nodes: Callable[[], Iterable[Node]],
        hypernodes: Callable[[], Iterable[HyperNode]],
        has_gpus: Callable[[Node], bool],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._hypernodes = hypernodes
        self._has_gpus = has_gpus
        self._changed = asyncio.Event()
        self._told: tuple[str, ...] = ()
        self.writes = 0

    def nodes_changed(self) -> None:
        """Something about nodes or HyperNodes changed; the tree is looked at again soon."""
        self._changed.set()

    async def publish(self) -> int:
        """One round: the number of writes. Raises ApiFailure where one was refused."""
        existing = list(self._hypernodes())
        made = plan_hypernodes([n for n in self._nodes() if self._has_gpus(n)], existing)
        if made.warnings != self._told:
            self._told = made.warnings
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

    async def run(self) -> None:
        """Publishes after every change, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except ApiFailure as failure:
                log.warning("HyperNodes: %s; trying again in %.0f s", failure, AGAIN_S)
                await asyncio.sleep(AGAIN_S)
                continue
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
