"""Ways to the probe servers of agents that can be made slow while they are used: proxies in this process."""

import socket
import threading
import time
from contextlib import suppress

EVERY = 13
HOLD_S = 0.3
"""Every thirteenth answer waits this long: far more than one in a hundred, so p99 is slow, and a probe still ends soon.
No lot of rounds has a multiple of it in answers, so that the rounds that are not counted do not take all of the waits.
"""


class ProbeWay:
    """Listens on `near` and speaks to `far`, another loopback address, on the same port."""

    def __init__(self, near: str, far: str, port: int) -> None:
        self.slow = False
        self.slowed = 0  # connections that ended, and were slow from their beginning on
        self._far = far, port
        self._listener = socket.create_server((near, port))
        self._open: set[socket.socket] = {self._listener}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        slow = self.slow
        with suppress(OSError), near, socket.create_connection(self._far, timeout=60) as far:
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {near, far}
            back = threading.Thread(target=self._pump, args=(near, far, False), daemon=True)
            back.start()
            self._pump(far, near, slow)
            back.join(5)
            self._open -= {near, far}
        self.slowed += slow

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        answers = 0
        with suppress(OSError):
            while data := source.recv(1 << 20):
                answers += 1
                if slow and answers % EVERY == 0:
                    time.sleep(HOLD_S)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the listener and every connection."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
