"""The hub alone in a process, for its benchmark: `python -m e2e.bench.hub_server PORT TLS_DIR`; says when it listens.

Each line on standard input is answered with what it knows, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import Any

from topology.clock import monotonic_s
from topology.facts.age import FactPart
from topology.hub.server import Hub, listening
from topology.hub.state import HubState


async def main(port: int, tls_dir: str) -> None:
    """Until standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    state = HubState()
    hub = Hub(state)
    loop = asyncio.get_running_loop()
    async with listening(hub, "127.0.0.1", port, tls_dir) as taken:
        print(taken, flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            ages = {freshness.value: count for freshness, count in state.count(monotonic_s())[FactPart.GPUS].items()}
            value: dict[str, Any] = {"open": hub.open, "ages": ages, **state.reports, "throttled": hub.throttled}
            print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
