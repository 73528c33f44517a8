"""Loopback ports that stay ours from the choice until the cluster is gone.

Asking the kernel for port 0 and closing the socket leaves a gap in which any outgoing connection may take the
same number. So ports come from below the kernel's ephemeral range, and a named socket per port keeps two clusters
on one machine apart: the kernel drops it when its owner ends, however it ends.
"""

import secrets
import socket
from pathlib import Path

LOWEST = 15_000
TRIES = 500


def ephemeral_start() -> int:
    """The first port the kernel may give to outgoing connections."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768
    return int(text.split()[0])


def is_free(port: int) -> bool:
    """Whether nothing listens on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Ports:
    """Reserved ports; `close` gives them back."""

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []
        highest = ephemeral_start()
        self._highest = highest if highest > LOWEST + TRIES else LOWEST + 15_000

    def take(self) -> int:
        """One free port that no other cluster on this machine holds."""
        for _ in range(TRIES):
            port = LOWEST + secrets.randbelow(self._highest - LOWEST)
            claim = socket.socket(socket.AF_UNIX)
            try:
                # The leading zero byte: an abstract name, without a file.
                claim.bind(f"\0isochrone-port-{port}")
            except OSError:
                claim.close()
                continue
            if is_free(port):
                self._claims.append(claim)
                return port
            claim.close()
        raise RuntimeError(f"no free loopback port between {LOWEST} and {self._highest}: end what listens there")

    def close(self) -> None:
        """Lets others use the ports."""
        while self._claims:
            self._claims.pop().close()
