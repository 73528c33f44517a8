"""EDGE: keeps the table of signals that the rule file asks for, from one change of the file to the next.

A mounted ConfigMap changes by a swap of links, which no notification follows reliably, so the content is compared every
few seconds. A file that is not accepted, or is gone, leaves the table as it was and says so.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from admission.recognition.rule_file import MAX_BYTES, read_rules
from admission.recognition.signals import BUILT_IN, Rules
from topology.bad_input import BadInput

log = logging.getLogger(__name__)

READ_EVERY_S: Final = 2.0


class RulesInUse:
    """`rules` is the table in use; `problem` says why it is not what the file asks for, empty while it is."""

    def __init__(self, path: str = "") -> None:
        self.rules: Rules = BUILT_IN
        self.problem = ""
        self._path = path
        self._seen: bytes | None = None
        if path:
            self.read()

    def read(self) -> None:
        """Reads the file if it changed; never raises."""
        try:
            with Path(self._path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._report(f"{self._path} cannot be read: {error.strerror}")
            self._seen = None
            return
        if content == self._seen:
            return
        self._seen = content
        try:
            self.rules = read_rules(content.decode(), self._path)
        except UnicodeDecodeError:
            self._report(f"{self._path} is not UTF-8")
        except BadInput as bad:
            self._report(str(bad))
        else:
            self.problem = ""
            added = sum(1 for row in self.rules.rows if row.source == "rule file")
            log.info("signals: %d rows in use, %d of them from %s", len(self.rules.rows), added, self._path)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("rule file not taken, the table in use stays: %s", problem)
        self.problem = problem

    async def keep(self, every_s: float = READ_EVERY_S) -> None:
        """Looks again and again until cancelled."""
        while self._path:
            await asyncio.sleep(every_s)
            self.read()
