"""EDGE. Lets a topology file count while the controller runs: reads it when it changes, in a thread of its own.

It decides when to look. A file (a mounted ConfigMap, say) that cannot be read changes nothing: what was read before
stays, and the log says why, once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from topology.bad_input import BadInput
from topology.cluster.domain_sources import NO_FILE, FilePlaces
from topology.cluster.state import ClusterState
from topology.graph.network_map import NetworkMap, domain_chains
from topology.readers.formats import MAX_BYTES, read

log = logging.getLogger(__name__)

READ_EVERY_S: Final = 5.0
_SHOWN: Final = 5
_NOTHING: Final = hashlib.sha256(b"").digest()


class TopologyWatch:
    """`path` may be empty: then there is no file. `changed` is called when other places came to count."""

    def __init__(self, path: str, state: ClusterState, changed: Callable[[], None]) -> None:
        self._path = Path(path) if path else None
        self._state = state
        self._changed = changed
        self._seen = _NOTHING  # the digest: a file may have 32 MiB
        self.problem = ""

    async def read(self) -> bool:
        """Reads the file; whether it said something new. A file that is not there, or is empty, says nothing."""
        if self._path is None:
            return False
        try:
            content = await asyncio.to_thread(_content, self._path)
        except OSError as error:
            self._refuse(f"{error.strerror}")
            return False
        if (digest := hashlib.sha256(content).digest()) == self._seen:
            return False
        self._seen = digest
        try:
            places, source, warnings = await asyncio.to_thread(places_of, content)
        except BadInput as bad:
            self._refuse(f"{bad}; what was read before stays")
            return False
        self.problem = ""
        for warning in warnings[:_SHOWN]:
            log.warning("topology file: %s: %s", self._path, warning)
        named = self._state.apply_file(places)
        log.info("topology file: %s (%s): %d hosts, %d of them nodes", self._path, source, len(places), named)
        self._changed()
        return True

    def _refuse(self, why: str) -> None:
        if why != self.problem:
            log.warning("topology file: %s: %s", self._path, why)
        self.problem = why

    async def run(self) -> None:
        """Looks every five seconds, until cancelled."""
        while self._path is not None:
            await self.read()
            await asyncio.sleep(READ_EVERY_S)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return b""


def places_of(content: bytes) -> tuple[FilePlaces, str, tuple[str, ...]]:
    """Where a file puts hosts, the name of its format, and what was read with a doubt. Raises BadInput."""
    if not content.strip():
        return NO_FILE, "nothing", ()
    topology = read(content)
    chains = domain_chains(topology)
    if not chains:
        raise BadInput("hosts", "none", f"{topology.source} says nothing about where hosts stand: give a fabric's file")
    return FilePlaces(chains, NetworkMap.of(topology)), topology.source, topology.warnings
