"""EDGE. Keeps our labels on nodes as they should be, by server-side apply without force.

The API server knows which labels are ours: what an apply leaves out is removed if we set it, and stays if somebody else
did. A key that somebody else set to another value is theirs: it is left alone, and that is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from topology.cluster.domain_sources import Sources
from topology.hypernodes.label_plan import KEYS, ours_on, plan_labels
from topology.kube.errors import ApiError
from topology.objects import Node

log = logging.getLogger(__name__)

FIELD_MANAGER: Final = "isochrone-node-labels"
_SHOWN: Final = 5


class NodeLabelApi(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def apply(
        self, path: str, obj: object, *, field_manager: str = ..., force: bool = ..., brief: bool = ...
    ) -> bytes:
        """Server-side apply."""


class NodeLabelPublisher:
    """Writes one node after the other, and only those whose labels are not as they should be."""

    def __init__(self, api: NodeLabelApi) -> None:
        self._api = api
        self._tried: dict[str, tuple[Any, ...]] = {}
        self.writes = 0

    async def publish(self, nodes: Sequence[Node], sources: Sources) -> int:
        """One round: the number of writes. Raises ApiFailure where one was refused for anything but a foreign label."""
        wanted = plan_labels(nodes, sources)
        self._tried = {name: tried for name, tried in self._tried.items() if name in wanted}
        before, foreign = self.writes, []
        for node in sorted(nodes, key=lambda n: n.metadata.name):
            name, labels, there = node.metadata.name, wanted[node.metadata.name], ours_on(node)
            attempt = (node.metadata.uid, labels, there)
            # What is left after an apply is somebody else's: it is not written again until something is different.
            if labels == there or self._tried.get(name) == attempt:
                continue
            if theirs := await self._apply(node, labels, there):
                foreign.append(f"{name} ({', '.join(theirs)})")
            self._tried[name] = attempt
        if foreign:
            more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
            log.warning("node labels that somebody else set are left alone: %s%s", ", ".join(foreign[:_SHOWN]), more)
        if self.writes > before:
            log.info("node labels: %d nodes written", self.writes - before)
        return self.writes - before

    async def _apply(self, node: Node, labels: dict[str, str], there: dict[str, str]) -> Iterable[str]:
        """Writes; the keys that are somebody else's."""
        try:
            await self._write(node, labels)
        except ApiError as error:
            if not error.conflict:
                raise
            # The message names each field that another manager owns.
            named = [key for key in KEYS.values() if key in error.message]
            theirs = named or [key for key in labels if key in there and there[key] != labels[key]]
            if not theirs:
                raise
            await self._write(node, {key: value for key, value in labels.items() if key not in theirs})
            return theirs
        return ()

    async def _write(self, node: Node, labels: dict[str, str]) -> None:
        # With its uid: a node of the same name that came meanwhile is another one.
        meta = {"name": node.metadata.name, "uid": node.metadata.uid, "labels": labels}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
        path = f"/api/v1/nodes/{node.metadata.name}"
        await self._api.apply(path, body, field_manager=FIELD_MANAGER, force=False, brief=True)
        self.writes += 1
