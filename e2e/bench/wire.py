"""`wire`: what receiving and decoding a scoring call costs, in time and memory, against only receiving the same bytes.

Two servers, each a process of its own with one connection, are asked in turn: one reads the body and drops it, the
other is the extender. Bodies are as Volcano sends them: whole nodes with eight pods each, 26 KB a node. CALLS shortens
the run.
"""

import contextlib
import http.client
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from e2e.bench.cpu import of_process
from e2e.bench.crowd import Crowd, encoded
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import number
from e2e.bench.wire_server import BARE, OURS
from e2e.stack.build import CHECKOUT, say
from scheduler.extender.wire import decode_prioritize

NODES: Final = (64, 500, 1000)
NODE_BYTES: Final = 26_000
CALLS: Final = 64_000
"""Nodes sent to each server per size: 1,000 calls of 64 nodes, 64 of 1,000."""
TIME_GOAL: Final = Goal("<=", 2)
MEMORY_GOAL: Final = Goal("<=", 1.5)
CROWDED_PODS: Final = 30
CROWDED_CALLS: Final = 200
CROWDED_GOAL: Final = Goal("<=", 1000)
"""Milliseconds: Volcano's own default for an extender's httpTimeout."""
HEADERS: Final = {"Content-Type": "application/json"}


def measure() -> Iterator[list[Figure]]:
    """Time and memory by number of nodes, then many calls with 30 pods a node."""
    calls = number("CALLS", CALLS)
    for nodes in NODES:
        body = body_of(nodes, NODE_BYTES)
        rounds = max(8, calls // nodes)
        say(f"bench wire: {nodes} nodes, {len(body) / 1e6:.1f} MB, {rounds} calls to each server")
        yield _ratios(nodes, body, rounds)
    yield _crowded(max(10, CROWDED_CALLS * calls // CALLS))


def body_of(nodes: int, node_bytes: int = 0, pods: int = 8) -> bytes:
    """A scoring call as Volcano writes it. With `node_bytes` each node is filled up to so many bytes."""
    crowd = Crowd(nodes, nodes * pods)
    task = _task(crowd.pod(0, 1, step="Created"), status=1)
    infos = b",".join(_info(crowd, index, node_bytes, pods) for index in range(nodes))
    return b'{"task":' + encoded(task) + b',"nodes":[' + infos + b"]}"


def _task(pod: dict[str, Any], *, status: int, node: str = "") -> dict[str, Any]:
    meta = pod["metadata"]
    amounts = {"MilliCPU": 4000, "Memory": 34359738368, "ScalarResources": {"nvidia.com/gpu": 1000, "pods": 1}}
    return {
        "UID": meta["uid"],
        "Job": f"{meta['namespace']}/job",
        "Name": meta["name"],
        "Namespace": meta["namespace"],
        "Resreq": amounts,
        "InitResreq": amounts,
        "NodeName": node,
        "Status": status,
        "Priority": 0,
        "Pod": pod,
    }


def _info(crowd: Crowd, index: int, node_bytes: int, pods: int) -> bytes:
    name = crowd.node_name(index)
    held = (crowd.pod(index + i * crowd.nodes, 1) for i in range(pods))
    tasks = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": _task(p, status=32, node=name) for p in held}
    amounts = {"MilliCPU": 192000, "Memory": 2163212288000, "ScalarResources": {"nvidia.com/gpu": 8000, "pods": 110}}
    info: dict[str, Any] = {
        "Name": name,
        "Node": crowd.node(index),
        "State": {"Phase": 1, "Reason": ""},
        "Idle": amounts,
        "Used": amounts,
        "Allocatable": amounts,
        "Tasks": tasks,
        "Others": None,
        "ImageStates": {},
    }
    while node_bytes and len(encoded(info)) > node_bytes:
        del tasks[next(reversed(tasks))]
    missing = node_bytes - len(encoded(info))
    if missing > 0:
        info["Node"]["metadata"]["annotations"]["filler"] = "x" * missing
    return encoded(info)


@dataclass
class _Asked:
    """One server and one connection to it."""

    pid: int
    connection: http.client.HTTPConnection
    times_s: list[float] = field(default_factory=list)

    def ask(self, body: bytes) -> None:
        began = time.perf_counter()
        self.connection.request("POST", "/prioritize", body, HEADERS)
        answer = self.connection.getresponse()
        answer.read()
        self.times_s.append(time.perf_counter() - began)
        assert answer.status == 200

    def memory_bytes(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.M)
        assert found is not None
        return int(found[1]) * 1024


@contextlib.contextmanager
def _server(kind: str) -> Iterator[_Asked]:
    argv = [sys.executable, "-m", "e2e.bench.wire_server", kind]
    process = subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=60)
        asked = _Asked(process.pid, connection)
        for _ in range(3):  # imports and first-time allocations are not the body's
            asked.ask(b'{"task":{},"nodes":[]}')
        asked.times_s.clear()
        yield asked
        connection.close()
    finally:
        process.kill()
        process.communicate()


def _ratios(nodes: int, body: bytes, rounds: int) -> list[Figure]:
    with _server(BARE) as bare, _server(OURS) as ours:
        before = bare.memory_bytes("VmRSS"), ours.memory_bytes("VmRSS")
        for _ in range(rounds):
            bare.ask(body)
            ours.ask(body)
        least, taken = bare.memory_bytes("VmHWM") - before[0], ours.memory_bytes("VmHWM") - before[1]
    base, mine = 1e3 * median(bare.times_s), 1e3 * median(ours.times_s)
    source = (
        f"medians of {rounds} calls to each in turn: {mine:.2f} against {base:.2f} ms, body {len(body) / 1e6:.2f} MB"
    )
    memory = f"highest resident memory over that before, {taken / 1e6:.2f} against {least / 1e6:.2f} MB"
    return [
        Figure(f"{nodes} nodes time ratio", mine / base, "of bare", TIME_GOAL, "aiohttp reading the body", source),
        Figure(f"{nodes} nodes memory ratio", taken / least, "of bare", MEMORY_GOAL, "", memory),
    ]


def _crowded(calls: int) -> list[Figure]:
    """1,000 nodes with 30 pods each (kubernetes/kubernetes#121527): the whole call, and reading it alone."""
    body = body_of(1000, pods=CROWDED_PODS)
    say(f"bench wire: 1000 nodes with {CROWDED_PODS} pods, {len(body) / 1e6:.0f} MB, {calls} calls")
    with _server(OURS) as ours:
        ours.ask(body)  # the first one makes room
        ours.times_s.clear()
        before = of_process(ours.pid)
        for _ in range(calls):
            ours.ask(body)
        burnt = (of_process(ours.pid) - before) / calls
    reads = []
    for _ in range(max(5, calls // 10)):
        began = time.thread_time()
        decode_prioritize(body)
        reads.append(time.thread_time() - began)
    source = f"{calls} calls one after the other, body {len(body) / 1e6:.0f} MB"
    p99 = 1e3 * float(np.percentile(ours.times_s, 99))
    return [
        Figure(f"1000 nodes {CROWDED_PODS} pods p99 ms", p99, "ms", CROWDED_GOAL, "Volcano gives up after 1 s", source),
        Figure(
            f"1000 nodes {CROWDED_PODS} pods decode ms",
            1e3 * median(reads),
            "ms",
            None,
            "",
            "decoding it alone, processor time",
        ),
        Figure(f"1000 nodes {CROWDED_PODS} pods cpu ms", 1e3 * burnt, "ms", None, "", "the extender, for one call"),
    ]
