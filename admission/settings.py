"""What the processes are told by the environment: `ISOCHRONE_LISTEN`, `ISOCHRONE_CERT_DIR` and so on.

Decides which values are allowed; the words of a refusal come from the type, and topology/environment.py names the
variable. It must never read anything but the environment.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from scheduler.extender.wire import MAX_BODY_BYTES
from topology import units
from topology.bad_input import BadInput
from topology.environment import ENV_PREFIX, FIELD, LogLevel
from topology.units import HostPort

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


def _host_port(value: object) -> HostPort:
    if isinstance(value, HostPort):
        return value
    return HostPort(*units.parse_host_port(str(value), FIELD, 8443))


def _host_port_or_none(value: object) -> HostPort | None:
    return None if value in (None, "") else _host_port(value)


def _duration_us(value: object) -> float:
    return float(value) if isinstance(value, int | float) else units.parse_duration_us(str(value), FIELD)


def _wait_s(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if str(value).lower() in ("off", "0"):
        return 0.0
    match = re.fullmatch(r"([0-9]{1,6})(s|m|h)", str(value))
    if match is None or int(match[1]) == 0:
        raise BadInput(FIELD, value, 'use a time such as "60s", "5m" or "1h", or "off"')
    return float(int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]])


def _age_s(value: object) -> float:
    if (found := _wait_s(value)) <= 0:
        raise BadInput(FIELD, value, 'use a time such as "45s" or "5m"')
    return found


def _count(value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise BadInput(FIELD, value, "use a whole number from 0 to 99999")
    return int(text)


def _percent(value: object) -> float:
    if isinstance(value, float):
        return value
    text = str(value).removesuffix("%")
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise BadInput(FIELD, value, 'use a whole percentage from 0 to 100, such as "15%"')
    return int(text) / 100


def _yes(value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise BadInput(FIELD, value, 'use "true" or "false"')
    return str(value).lower() == "true"


def _size_bytes(value: object) -> int:
    return value if isinstance(value, int) else units.parse_size_bytes(str(value), FIELD)


def _name(value: object) -> str:
    if not _NAME.fullmatch(str(value)):
        raise BadInput(FIELD, value, "use a Kubernetes name: small letters, digits, - and .")
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise BadInput(FIELD, value, "use names or IP addresses with commas between them")
    names = tuple(str(part).strip() for part in parts if str(part).strip())
    if any(not re.fullmatch(r"[A-Za-z0-9.:*-]{1,253}", name) for name in names):
        raise BadInput(FIELD, value, "use host names or IP addresses with commas between them")
    return names


Listen = Annotated[HostPort, NoDecode, BeforeValidator(_host_port)]
OptionalListen = Annotated[HostPort | None, NoDecode, BeforeValidator(_host_port_or_none)]
DurationUs = Annotated[float, BeforeValidator(_duration_us)]
WaitS = Annotated[float, BeforeValidator(_wait_s)]
"""Seconds; 0 is off."""
AgeS = Annotated[float, BeforeValidator(_age_s)]
Count = Annotated[int, BeforeValidator(_count)]
Share = Annotated[float, BeforeValidator(_percent)]
"""0 to 1; written as a percentage."""
YesNo = Annotated[bool, BeforeValidator(_yes)]
SizeBytes = Annotated[int, BeforeValidator(_size_bytes)]
KubeName = Annotated[str, BeforeValidator(_name)]
HostNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]


RENAMED: Final = {"ISOCHRONE_QUIET": "ISOCHRONE_SETTLE", "ISOCHRONE_OVERTAKING": "ISOCHRONE_BYPASS_LIMIT"}
"""Variables by their old names, which still work for one release."""


def old_names(variables: Container[str]) -> list[str]:
    """A sentence for each variable that is set by its old name."""
    return [
        f"{old} is now called {new}; the old name works until the release after this one"
        for old, new in RENAMED.items()
        if old in variables
    ]


def _renamed(default: Any, name: str) -> Any:
    """A field whose variable had another name: the new one wins where both are set."""
    new = f"{ENV_PREFIX}{name.upper()}"
    (old,) = (old for old, now in RENAMED.items() if now == new)
    return Field(default=default, validation_alias=AliasChoices(new, old))


class IsochroneSettings(BaseSettings):
    """What every process's settings share."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        frozen=True,
        extra="ignore",
        validate_default=True,
        arbitrary_types_allowed=True,
        populate_by_name=True,
    )

    kubeconfig: str = ""  # "" is the service account of the pod
    log_level: LogLevel = "info"


class WebhookSettings(IsochroneSettings):
    """`isochrone webhook`."""

    listen: Listen = HostPort("0.0.0.0", 8443)  # noqa: S104  # a pod serves on all its addresses
    health_listen: Listen = HostPort("0.0.0.0", 8081)  # noqa: S104  # the kubelet and Prometheus come from outside
    cert_dir: str = ""  # a folder with tls.crt and tls.key; "" makes and renews its own certificate
    namespace: KubeName = "isochrone-system"
    service: KubeName = "isochrone-webhook"
    cert_secret: KubeName = "isochrone-webhook-cert"  # noqa: S105  # the Secret's name
    webhook_configuration: KubeName = "zz-isochrone"
    extra_names: HostNames = ()  # more names or addresses for the certificate
    drain: DurationUs = 5_000_000.0  # how long it still answers after it stopped being ready
    rules: str = ""  # a rule file; read again when it changes


class ControllerSettings(IsochroneSettings):
    """`isochrone controller`."""

    extender_listen: Listen = HostPort("0.0.0.0", 8800)  # noqa: S104  # Volcano's scheduler comes from another pod
    health_listen: Listen = HostPort("0.0.0.0", 8081)  # noqa: S104  # the kubelet and Prometheus come from outside
    settle: DurationUs = _renamed(500_000.0, "settle")  # a gang is looked at when no pod of it came for this long
    max_body: SizeBytes = MAX_BODY_BYTES  # of a call from Volcano's scheduler
    partner_after: DurationUs = 60_000_000.0  # a gang with one phase alone says so after this long
    replan_after: WaitS = 60.0  # a released pod that is not placed by then is made anew; "off" is never
    reserve_for: WaitS = 600.0  # room is kept this long for pods that come once the others are ready; "off" keeps none
    bypass_limit: Count = _renamed(10, "bypass_limit")  # times a gang that waits for room or quota may be passed
    preemption: YesNo = True  # a gang of higher priority may be released for Volcano to make room
    measured_reach: str = ""  # file of measured reach, as `isochrone reach import --save` writes it; "" is none
    memory_reserve: Share = 0.15  # of each card, that nothing is planned into
    peak_limit: Share = 0.85  # of each card, that requests and prefill peaks together may reach
    topology_file: str = ""  # a fabric's file, as `isochrone topology import` reads it; "" is none
    publish_hypernodes: YesNo = False  # make HyperNodes from what is known of the network, unless others made some
    publish_node_labels: YesNo = False  # and labels of our own on nodes
    hub_listen: OptionalListen = None  # where node agents report; "" is nowhere
    hub_tls_dir: str = ""  # tls.crt, tls.key, and ca.crt that signed the agents' certificates
    enrol_listen: OptionalListen = None  # where node agents get certificates; "" is nowhere: they bring their own
    namespace: KubeName = "isochrone-system"  # of agents, and of what the hub keeps
    hub_service: KubeName = "isochrone-controller"  # the name in the hub's certificate, where agents get theirs here
    hub_secret: KubeName = "isochrone-hub-cert"  # noqa: S105  # the Secret's name
    hub_ca_config_map: KubeName = "isochrone-hub-ca"  # tells agents whom to believe
    agent_account: KubeName = "isochrone-agent"  # the service account that agents run as
    probe_every: WaitS = 300.0  # how old the measurements of a pair of domains may become; "off" orders no probes
    probe_size: SizeBytes = 64 * 2**10  # the page that probes send
    facts_stale: AgeS = 45.0  # facts of an agent silent for longer are marked as old
    facts_expired: AgeS = 300.0  # and from then on left out
    hub_plaintext: YesNo = False  # without TLS: any agent may speak for any node
