"""The agent's HTTP answers, over a real socket."""

from __future__ import annotations

import http.client
import socket

import pytest
from prometheus_client import CollectorRegistry, Gauge

from topology.agent.http import health_app, listening
from topology.bad_input import BadInput

LIMIT_S = 60.0


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_what_is_not_well_is_a_503_with_its_reason() -> None:
    registry, why = CollectorRegistry(), {"dead": "", "unready": "no collection yet"}
    Gauge("isochrone_gpus", "GPUs.", registry=registry).set(8)
    app = health_app(registry, lambda: why["dead"], lambda: why["unready"])
    with listening(app, "127.0.0.1:0") as (_, port):
        assert ask(port, "/livez") == (200, "ok\n")
        assert ask(port, "/readyz?verbose") == (503, "no collection yet\n")
        why.update(dead="NVML is lost for 301s", unready="")
        assert ask(port, "/livez") == (503, "NVML is lost for 301s\n")
        assert ask(port, "/readyz") == (200, "ok\n")
        assert "isochrone_gpus 8.0" in ask(port, "/metrics")[1].splitlines()
        assert ask(port, "/") == (404, "there is /livez, /readyz and /metrics\n")
        assert ask(port, "/livez", "POST")[0] == 405


def test_silent_connections_beyond_sixteen_are_closed() -> None:
    with listening(health_app(CollectorRegistry(), str, str), "127.0.0.1:0") as (host, port):
        silent = [socket.create_connection((host, port), timeout=LIMIT_S) for _ in range(17)]
        assert silent[16].recv(1) == b""  # before any of the others reached its time limit
        for each in silent[:16]:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        for each in silent:
            each.close()


def test_an_address_that_cannot_be_used_is_named() -> None:
    app = health_app(CollectorRegistry(), str, str)
    with listening(app, "[::1]:0") as (host, port):
        assert host == "::1"
        with (
            pytest.raises(BadInput, match=r"ISOCHRONE_HEALTH_LISTEN is .*it cannot be used"),
            listening(app, f"[::1]:{port}"),
        ):
            pass
