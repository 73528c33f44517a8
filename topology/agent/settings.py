"""EDGE: what an agent is told by its environment, and which of it fits together."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from topology.bad_input import BadInput
from topology.environment import ENV_PREFIX, FIELD, LogLevel
from topology.units import parse_duration_us, parse_host_port


def host_port(text: str, name: str) -> tuple[str, int]:
    """`HOST:PORT` or `[V6]:PORT`. Raises BadInput."""
    return parse_host_port(text, name, 8083)


def _listen(value: object) -> str:
    host_port(str(value), FIELD)
    return str(value)


def _address(value: object) -> str:
    return _listen(value) if value else ""


def _every_us(value: object) -> float:
    every_us = value if isinstance(value, float) else parse_duration_us(str(value), FIELD)
    if every_us < 1_000_000:
        raise BadInput(FIELD, value, 'use a duration from "1s" to "60s"')
    return every_us


def _port(value: object) -> int:
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise BadInput(FIELD, value, "use a port from 1 to 65535")
    return int(text)


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", ""):
        raise BadInput(FIELD, value, "use true or false")
    return text in ("true", "1")


Address = Annotated[str, BeforeValidator(_address)]
"""HOST:PORT, or "" for none."""


class AgentSettings(BaseSettings):
    """`isochrone agent`; each field is the variable ISOCHRONE_<NAME>."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    node_name: str = ""
    hub: Address = ""  # "" reports to nobody and serves metrics only
    hub_name: str = ""  # the name in the hub's certificate; "" is the host of `hub`
    tls_dir: str = ""  # tls.crt and tls.key of this node, and ca.crt
    enrol: Address = ""  # where certificates are given out; "" uses those of `tls_dir`
    enrol_dir: str = "/var/run/isochrone"  # token: of this pod, for the hub; ca.crt: whom to believe
    plaintext: Annotated[bool, BeforeValidator(_flag)] = False  # without TLS, for tests and closed networks
    collect_every: Annotated[float, BeforeValidator(_every_us)] = 15_000_000.0  # microseconds
    health_listen: Annotated[str, BeforeValidator(_listen)] = "0.0.0.0:8083"  # the kubelet and Prometheus are outside
    probe_listen: Address = ""  # where probes of other agents are answered; "" probes nothing and answers nobody
    probe_host: str = ""  # the address by which other nodes reach this one, in a pod from status.podIP
    rdma_probe: str = ""  # perftest's program with options of your own, as /usr/bin/ib_write_lat; "" probes no RDMA
    rdma_port: Annotated[int, BeforeValidator(_port)] = 18515  # where it is met; perftest's own default
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    sys_root: str = "/sys"
    proc_root: str = "/proc"
    log_level: LogLevel = "info"

    @model_validator(mode="after")
    def _together(self) -> AgentSettings:
        if not self.node_name:
            raise BadInput("node_name", "", "name the Kubernetes node, in a pod from spec.nodeName")
        if self.hub and not self.tls_dir and not self.plaintext and not self.enrol:
            others = f"{ENV_PREFIX}HUB, or set {ENV_PREFIX}ENROL, or {ENV_PREFIX}PLAINTEXT=true"
            raise BadInput("tls_dir", "", f"it must hold tls.crt, tls.key and ca.crt for {others}")
        if self.enrol and (self.tls_dir or self.plaintext):
            other = "TLS_DIR" if self.tls_dir else "PLAINTEXT"
            raise BadInput("enrol", self.enrol, f"set it or {ENV_PREFIX}{other}, not both")
        if self.probe_listen and not self.probe_host:
            raise BadInput("probe_host", "", f"name this node's address for {ENV_PREFIX}PROBE_LISTEN")
        return self

    @property
    def collect_every_s(self) -> float:
        """Seconds between two collections."""
        return self.collect_every / 1e6

    @property
    def hub_host(self) -> str:
        """The name that the hub's certificate must have."""
        return self.hub_name or self.hub.rpartition(":")[0].strip("[]")
