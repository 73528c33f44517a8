"""Reads what `ibnetdiscover` prints: every switch and adapter of an InfiniBand fabric with its ports and far ends.

Source: the manual page ibnetdiscover(8). A host is known only by the description that its adapter carries ("node17
mlx5_0"); one that still has the maker's default is an adapter without a host, and counted in a warning. Aggregation
nodes (SHARP) are part of a switch and left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from topology.graph.network_cables import NetworkCables
from topology.graph.parts import Topology, TopologyBuilder, bad, check_name

SOURCE: Final = "ibnetdiscover"
MAX_LINES: Final = 1_000_000
MAX_LINE_CHARS: Final = 2_048
MAX_DEVICES: Final = 60_000

_DEVICE = re.compile(r'(Switch|Ca)\s+(\d{1,4})\s+"([SH]-[0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]{0,256})"[^"]*)?', re.ASCII)
_PORT = re.compile(
    r'\[(\d{1,4})\](?:\([0-9a-fA-F]{1,16}\))?\s*"([SH]-[0-9a-fA-F]{1,16})"\[(\d{1,4})\](?:\([0-9a-fA-F]{1,16}\))?'
    r'\s*(?:#([^"]{0,256})(?:"([^"]{0,256})")?.{0,512})?',
    re.ASCII,
)
_IDLE = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid)=[0-9a-fA-Fx()]{1,64}|#.*", re.ASCII)
_SWITCH_NAME = re.compile(r"(?:MF0;)?([^:;]+)(?::([^;]*))?")
_HOST_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,252})\s+([A-Za-z0-9][A-Za-z0-9_.:-]{0,62})", re.ASCII)


@dataclass(slots=True)
class _FabricDevice:
    guid: str
    line: int
    description: str = ""
    ends: dict[int, tuple[str, int]] = field(default_factory=dict)  # port to far end and its port

    @property
    def is_switch(self) -> bool:
        return self.guid[0] == "S"

    @property
    def aggregates(self) -> bool:
        return "Aggregation Node" in self.description


def recognises(line: str) -> bool:
    """Whether this line opens a switch or an adapter."""
    return bool(_DEVICE.fullmatch(line)) or line.startswith("vendid=0x")


def read(text: str) -> Topology:
    """The fabric. Raises BadInput with line and reason."""
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > MAX_LINES:
        raise bad(MAX_LINES, "number of lines", len(lines), f"at most {MAX_LINES} are read")
    devices = _devices(lines)
    reached = {far for device in devices.values() for far, _ in device.ends.values()}
    alone = [device for device in devices.values() if not (device.ends or device.guid in reached or device.is_switch)]
    if not any(device.ends for device in devices.values()):
        first = alone[0] if alone else _FabricDevice("no device at all", 1)
        raise bad(first.line, "ports", first.guid, "the lines that say what its ports are joined to are missing")
    fabric = NetworkCables(TopologyBuilder(SOURCE))
    if alone:
        fabric.build.warn(f"line {alone[0].line}: {len(alone)} adapters have no cable in this file")
    _cables(devices, _names(devices, fabric), fabric)
    return fabric.finish()


def _cables(devices: dict[str, _FabricDevice], names: dict[str, str], fabric: NetworkCables) -> None:
    """Every cable once, whichever of its ends says it; none of a device without a name."""
    done: set[tuple[tuple[str, int], tuple[str, int]]] = set()
    for device in devices.values():
        for port, (far, far_port) in device.ends.items():
            here, there = (device.guid, port), (far, far_port)
            cable = (min(here, there), max(here, there))
            if cable in done or device.guid not in names or far not in names:
                continue
            done.add(cable)
            if not device.is_switch and not devices[far].is_switch:
                raise bad(device.line, f"far end of {device.guid}", far, "one end of a cable is a switch")
            fabric.cable(names[device.guid], names[far], device.line)


def _devices(lines: list[str]) -> dict[str, _FabricDevice]:
    devices: dict[str, _FabricDevice] = {}
    described: dict[str, tuple[int, str]] = {}
    current: _FabricDevice | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARS:
            raise bad(number, "length", len(line), f"a line has at most {MAX_LINE_CHARS} characters")
        line = line.strip()
        if not line or _IDLE.fullmatch(line):
            continue
        if (opened := _DEVICE.fullmatch(line)) is not None:
            current = _opened(opened, number, devices)
        elif (port := _PORT.fullmatch(line)) is not None and current is not None:
            far = port[2].lower().replace("s-", "S-").replace("h-", "H-")
            if int(port[1]) in current.ends:
                raise bad(number, f"port of {current.guid}", port[1], "it is there twice; a port has one cable")
            current.ends[int(port[1])] = (far, int(port[3]))
            described.setdefault(far, (number, port[5] or ""))
        else:
            raise bad(number, "line", line, 'it is a Switch, a Ca, a port like [1] "S-..."[2], KEY=VALUE or a comment')
    for guid, (number, text) in described.items():
        if guid not in devices:  # the dump ends before it, or the far end did not answer
            _add(_FabricDevice(guid, number, text), devices)
    return devices


def _opened(match: re.Match[str], number: int, devices: dict[str, _FabricDevice]) -> _FabricDevice:
    """The switch or adapter that a line opens."""
    guid = match[3].lower().replace("s-", "S-").replace("h-", "H-")
    if (match[1] == "Switch") != (guid[0] == "S"):
        raise bad(number, f"{match[1]} id", guid, "a switch's begins with S-, an adapter's with H-")
    if guid in devices:
        raise bad(number, "device", guid, f"it is on line {devices[guid].line} already")
    device = _FabricDevice(guid, number, match[4] or "")
    _add(device, devices)
    return device


def _add(device: _FabricDevice, devices: dict[str, _FabricDevice]) -> None:
    if len(devices) >= MAX_DEVICES:
        raise bad(device.line, "number of devices", f"above {MAX_DEVICES}", "split the file")
    devices[device.guid] = device


def _names(devices: dict[str, _FabricDevice], fabric: NetworkCables) -> dict[str, str]:
    """Which name each device has; those that are left out have none."""
    names = _switch_names([device for device in devices.values() if device.is_switch], fabric)
    return names | _adapter_names([d for d in devices.values() if not (d.is_switch or d.aggregates)], fabric)


def _switch_names(switches: list[_FabricDevice], fabric: NetworkCables) -> dict[str, str]:
    """The short name where it is the only one, else the longer one, else the id."""
    names: dict[str, str] = {}
    plain = {device.guid: _switch_tokens(device.description) for device in switches}
    often: dict[str, int] = {}
    for short, _ in plain.values():
        often[short] = often.get(short, 0) + 1
    for device in switches:
        short, long = plain[device.guid]
        name = short if short and often[short] == 1 else long
        if not name or name in fabric.switches:
            name = device.guid  # no description, or one that others share
        check_name(name, device.line)
        names[device.guid] = name
        fabric.switches[name] = 0
    return names


def _adapter_names(adapters: list[_FabricDevice], fabric: NetworkCables) -> dict[str, str]:
    """`host/adapter` where the description says both, else the id, counted in a warning."""
    names: dict[str, str] = {}
    unnamed: list[_FabricDevice] = []
    for device in adapters:
        value = _HOST_NAME.fullmatch(device.description)
        if value is None or value[1] in fabric.switches:
            unnamed.append(device)
            name, host, nic = device.guid, "", ""
        else:
            host, nic = value[1], value[2]
            name = f"{host}/{nic}"
            if name in fabric.nics:
                name = f"{name}/{device.guid}"
            fabric.hosts.setdefault(host, "")
        check_name(name, device.line)
        fabric.nics[name] = (host, nic)
        names[device.guid] = name
    if unnamed:
        fabric.build.warn(
            f"line {unnamed[0].line}: {len(unnamed)} adapters do not say which host they are in "
            f"(the first is {unnamed[0].description!r:.60}); they stand alone"
        )
    return names


def _switch_tokens(description: str) -> tuple[str, str]:
    """A short name and a longer one: `MF0;leaf1:MQM9700/U1` is leaf1; of a modular one the board stays with it."""
    match = _SWITCH_NAME.fullmatch(description.strip())
    if match is None:
        return "", description.strip()
    board = (match[2] or "").partition("/")[2]
    return match[1].strip(), f"{match[1].strip()}/{board}" if board else match[1].strip()
