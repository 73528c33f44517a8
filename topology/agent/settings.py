"""What an agent is told by its environment. Values in, settings or one clear sentence out.

Plain, unlike the settings of the other processes: pydantic alone would take a fifth of the memory an agent may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from topology.bad_input import BadInput
from topology.units import parse_duration_us, parse_host_port

PREFIX: Final = "ISOCHRONE_"
_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`isochrone agent`; each field is the variable ISOCHRONE_<NAME>."""

    node_name: str = ""
    hub: str = ""  # HOST:PORT; "" reports to nobody and serves metrics only
    hub_name: str = ""  # the name in the hub's certificate; "" is the host of `hub`
    tls_dir: str = ""  # tls.crt and tls.key of this node, and ca.crt
    enrol: str = ""  # HOST:PORT where certificates are given out; "" uses those of `tls_dir`
    enrol_dir: str = "/var/run/isochrone"  # token: of this pod, for the hub; ca.crt: whom to believe
    plaintext: bool = False  # without TLS, for tests and closed networks
    collect_every: float = 15_000_000.0  # microseconds
    health_listen: str = "0.0.0.0:8083"  # the kubelet and Prometheus come from outside
    probe_listen: str = ""  # where probes of other agents are answered; "" probes nothing and answers nobody
    probe_host: str = ""  # the address by which other nodes reach this one, in a pod from status.podIP
    rdma_probe: str = (
        ""  # perftest's program with options of your own, such as /usr/bin/ib_write_lat; "" probes no RDMA
    )
    rdma_port: int = 18515  # where it is met; perftest's own default
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    sys_root: str = "/sys"
    proc_root: str = "/proc"
    log_level: str = "info"

    @property
    def collect_every_s(self) -> float:
        """Seconds between two collections."""
        return self.collect_every / 1e6

    @property
    def hub_host(self) -> str:
        """The name that the hub's certificate must have."""
        return self.hub_name or self.hub.rpartition(":")[0].strip("[]")


def load(environment: Mapping[str, str]) -> AgentSettings:
    """Settings from `ISOCHRONE_*`. Raises BadInput naming the variable."""
    given: dict[str, Any] = {}
    for field in fields(AgentSettings):
        name = PREFIX + field.name.upper()
        if name in environment:
            given[field.name] = _READERS.get(field.name, _text)(environment[name], name)
    found = AgentSettings(**given)
    if not found.node_name:
        raise BadInput(PREFIX + "NODE_NAME", "", "name the Kubernetes node, in a pod from spec.nodeName")
    if found.hub and not found.tls_dir and not found.plaintext and not found.enrol:
        allowed = (
            f"it must hold tls.crt, tls.key and ca.crt for {PREFIX}HUB, or set {PREFIX}ENROL, or {PREFIX}PLAINTEXT=true"
        )
        raise BadInput(PREFIX + "TLS_DIR", "", allowed)
    if found.enrol and (found.tls_dir or found.plaintext):
        other = "TLS_DIR" if found.tls_dir else "PLAINTEXT"
        raise BadInput(PREFIX + "ENROL", found.enrol, f"set it or {PREFIX}{other}, not both")
    if found.probe_listen and not found.probe_host:
        raise BadInput(PREFIX + "PROBE_HOST", "", f"name this node's address for {PREFIX}PROBE_LISTEN")
    return found


def host_port(text: str, name: str) -> tuple[str, int]:
    """`HOST:PORT` or `[V6]:PORT`. Raises BadInput."""
    return parse_host_port(text, name, 8083)


def _text(text: str, _: str) -> str:
    return text


def _address(text: str, name: str) -> str:
    if text:
        host_port(text, name)
    return text


def _listen(text: str, name: str) -> str:
    host_port(text, name)
    return text


def _every(text: str, name: str) -> float:
    found = parse_duration_us(text, name)
    if found < 1_000_000:
        raise BadInput(name, text, 'use a duration from "1s" to "60s"')
    return found


def _port(text: str, name: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise BadInput(name, text, "use a port from 1 to 65535")
    return int(text)


def _flag(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", ""):
        raise BadInput(name, text, "use true or false")
    return text.lower() in ("true", "1")


def _level(text: str, name: str) -> str:
    if text.lower() not in _LEVELS:
        raise BadInput(name, text, f"use {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}")
    return text.lower()


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "hub": _address,
    "enrol": _address,
    "health_listen": _listen,
    "collect_every": _every,
    "probe_listen": _address,
    "rdma_port": _port,
    "plaintext": _flag,
    "log_level": _level,
}
