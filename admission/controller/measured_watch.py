"""EDGE. Lets measurements count while the controller runs: reads their file when it changes, renews reach when due.

It decides when to look. A file (a mounted ConfigMap, say) that is wrong changes nothing: what was read before stays,
and the log says why, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from topology.bad_input import BadInput
from topology.clock import wall_time_s
from topology.cluster.state import ClusterState
from topology.measured.file import MAX_FILE_BYTES, read_measured_file

log = logging.getLogger(__name__)

READ_EVERY_S: Final = 5.0


class MeasuredWatch:
    """`path` may be empty: then there is no file. `changed` is called when new values came to count."""

    def __init__(self, path: str, state: ClusterState, changed: Callable[[], None]) -> None:
        self._path = Path(path) if path else None
        self._state = state
        self._changed = changed
        self._seen = b""

    def read(self) -> bool:
        """Reads the file; whether it held something new. A file that is not there holds nothing."""
        if self._path is None:
            return False
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            content = self._seen
            log.warning("measured reach: %s: %s", self._path, error.strerror)
        if content == self._seen:
            return False
        self._seen = content
        try:
            given = read_measured_file(content) if content.strip() else {}
        except BadInput as bad:
            log.warning("measured reach: %s: %s; what was read before stays", self._path, bad)
            return False
        self._state.measured.import_all(given)
        log.info("measured reach: %d pairs in %s", len(given), self._path)
        return True

    async def run(self) -> None:
        """Looks every five seconds, until cancelled."""
        while True:
            self.read()
            if self._state.renew_measured(wall_time_s()):
                self._changed()
            await asyncio.sleep(READ_EVERY_S)
