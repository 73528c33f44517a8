"""Processes in groups of their own: started, watched, stopped, and never left behind.

Knows nothing of Kubernetes. Every wait has a limit. Safe to use from several threads.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

GUARD = Path(__file__).with_name("guard.py")
TAIL_BYTES = 6_000
LIMIT_S = 120.0
"""Of every wait for what must come: nothing takes so long, not even on a machine that stands still for seconds."""


class ProcessDiedError(RuntimeError):
    """A process ended although nobody asked it to; the text holds the end of its log."""


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The end of a log file, from a line's start."""
    if not path.exists():
        return "(no log)"
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - size))
        text = file.read().decode(errors="replace")
    return text if length <= size else text.partition("\n")[2]


class Process:
    """One program with its log; `start` may be called again after it was stopped or killed."""

    def __init__(
        self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str], quick_kill: bool = False
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = log
        self.env = dict(env)
        self.quick_kill = quick_kill
        """Whether stopping means SIGKILL at once: for programs that leave slowly and own only throw-away data."""
        self.asked_to_end = False
        self.started_at = 0.0
        self._popen: subprocess.Popen[bytes] | None = None
        self._swept = True

    def start(self) -> int:
        """Starts the program in a new process group (and session) and returns its pid, which is the group's id too."""
        assert not self.alive(), f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(self.argv)}\n".encode())
            log.flush()
            self._popen = subprocess.Popen(
                self.argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.asked_to_end = False
        self._swept = False
        self.started_at = time.monotonic()
        return self._popen.pid

    @property
    def pid(self) -> int:
        """The pid of the last start."""
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (negative: the signal), None while it runs or before the first start."""
        return None if self._popen is None else self._popen.poll()

    def alive(self) -> bool:
        """Whether it runs now."""
        return self._popen is not None and self._popen.poll() is None

    def died(self) -> bool:
        """Whether it ended without being asked to."""
        return self._popen is not None and not self.asked_to_end and self._popen.poll() is not None

    def check(self) -> None:
        """Raises when it died."""
        if self.died():
            raise ProcessDiedError(
                f"{self.name} ended by itself with code {self.exit_code}; its log ends:\n{tail(self.log)}"
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole group."""
        if self._popen is None or self._popen.poll() is not None:
            return
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            return

    def kill(self, limit_s: float = LIMIT_S) -> None:
        """SIGKILL for the whole group, and waits until the program is gone."""
        if self._popen is None:
            return
        self.asked_to_end = True
        self.signal(signal.SIGKILL)
        self._popen.wait(limit_s)
        self._rounds()

    def request_stop(self) -> None:
        """Asks it to leave, without waiting."""
        self.asked_to_end = True
        self.signal(signal.SIGKILL if self.quick_kill else signal.SIGTERM)

    def stop(self, limit_s: float = 5.0) -> None:
        """Asks it to leave, waits up to the limit, then kills; also kills children that outlived it."""
        if self._popen is None:
            return
        self.request_stop()
        try:
            self._popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._rounds()

    def _rounds(self) -> None:
        """Kills what the program left in its group: once only, later the number may be someone else's."""
        if self._popen is None or self._swept:
            return
        self._swept = True
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Group:
    """All processes of one cluster, with the guard that ends them when this Python is killed."""

    def __init__(self, *folders: Path) -> None:
        """`folders` are removed by the guard once this group is closed or its owner is gone."""
        self._processes: dict[str, Process] = {}
        self._lock = threading.Lock()
        self._guard = subprocess.Popen(
            # -S -E -s: starts in 20 ms, with nothing but the standard library.
            [sys.executable, "-S", "-E", "-s", str(GUARD), *map(str, folders)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __getitem__(self, name: str) -> Process:
        return self._processes[name]

    def __contains__(self, name: str) -> bool:
        return name in self._processes

    def all(self) -> list[Process]:
        """Every process, in the order of their first start."""
        with self._lock:
            return list(self._processes.values())

    def pids(self) -> dict[str, int]:
        """Pids of what runs now, the guard's among them."""
        running = {process.name: process.pid for process in self.all() if process.alive()}
        return running | {"guard": self._guard.pid}

    def start(self, process: Process) -> Process:
        """Starts a process and tells the guard; takes the place of an ended one with the same name."""
        with self._lock:
            before = self._processes.get(process.name)
            assert before is None or not before.alive(), f"{process.name} runs already"
            self._note("+", process.start())
            self._processes[process.name] = process
        return process

    def kill(self, name: str) -> None:
        """SIGKILL, as a test does it."""
        process = self._processes[name]
        process.kill()
        self._forget(process)

    def stop(self, name: str, limit_s: float = 5.0) -> None:
        """An orderly end."""
        process = self._processes[name]
        process.stop(limit_s)
        self._forget(process)

    def check(self) -> None:
        """Raises for the first process that ended by itself."""
        for process in self.all():
            process.check()

    def close(self, limit_s: float = 5.0) -> None:
        """Stops everything, last started first, then lets the guard remove the folders."""
        processes = self.all()
        for process in reversed(processes):
            process.request_stop()
        until = time.monotonic() + limit_s
        for process in reversed(processes):
            process.stop(max(0.1, until - time.monotonic()))
            self._forget(process)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait(LIMIT_S)

    def _forget(self, process: Process) -> None:
        with self._lock:
            if process.exit_code is not None:
                self._note("-", process.pid)

    def _note(self, sign: str, group: int) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(f"{sign}{group}\n".encode())
            self._guard.stdin.flush()
        except (BrokenPipeError, ValueError):
            # The guard was killed, or the group is closed: the orderly way still stops everything.
            return


T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T],
    limit_s: float,
    what: str,
    check: Callable[[], None] = lambda: None,
    not_yet: tuple[type[Exception], ...] = (),
) -> T:
    """Polls until `predicate` gives something truthy; exceptions of `not_yet` count as "not yet"."""
    until = time.monotonic() + limit_s
    pause = 0.02
    while True:
        reason = ""
        try:
            value = predicate()
            if value:
                return value
        except not_yet as error:
            reason = f"; last error: {error}"
        check()
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {limit_s:g} s{reason}")
        time.sleep(pause)
        pause = min(pause * 1.4, 0.25)
