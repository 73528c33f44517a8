"""Which half of inference a pod does, read from what people and frameworks already write.

Decides the phase from one ranked table. A row says where it looks and what it yields; rows that contradict each
other leave the phase open, except under our own label, which wins. It must never know gangs, modes or patches, and
never guess: a wrong phase is worse than none. Ranks are those of the list of known signals, so the rows still to
come (Dynamo 3, llm-d 6, AIBrix 7, plain labels 8, Dynamo engines 11, production-stack 12, names 13) fit in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from admission.command_line import EngineCall, engine_calls
from topology import labels
from topology.objects import Pod

Phase = Literal["prefill", "decode"]


class Confidence(StrEnum):
    """How far a signal can be believed."""

    NONE = "none"
    LOW = "low"  # names; nobody meant them for a machine
    MEDIUM = "medium"  # engine arguments
    HIGH = "high"  # a framework's role label
    EXPLICIT = "explicit"  # our own label


class Says(StrEnum):
    """What one signal says about a pod."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"  # it does both
    OPEN = "open"  # the field is there but does not tell
    NO_ENGINE = "no engine"  # router, proxy, planner, encoder: never tagged


@dataclass(frozen=True, slots=True)
class Finding:
    says: Says
    text: str  # for people: `vLLM kv_role kv_consumer`


@dataclass(frozen=True, slots=True)
class Row:
    """One known signal."""

    rank: int
    name: str
    where: str
    yields: str
    confidence: Confidence
    source: str
    look: Callable[[Pod, tuple[EngineCall, ...]], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class PhaseReading:
    """The phase, or None, and why. `conflicts` are sentences for people; with a phase, the label won over them."""

    phase: Phase | None
    signal: str = ""
    confidence: Confidence = Confidence.NONE
    conflicts: tuple[str, ...] = ()
    mixed: bool = False
    engine: bool = True  # False: a router or the like, which nobody needs to be warned about


_WORDS: Final = {
    "prefill": Says.PREFILL,
    "decode": Says.DECODE,
    "both": Says.MIXED,
    "mixed": Says.MIXED,
    "prefill-decode": Says.MIXED,
}
_SHORT_WORDS: Final = {"p": Says.PREFILL, "d": Says.DECODE}  # Kthena limits role names to 12 characters
_NO_ENGINES: Final = frozenset(
    {"router", "frontend", "proxy", "epp", "planner", "encode", "encoder", "lb", "loadbalancer", "gateway"}
)
_POSITIONS: Final = frozenset({"leader", "worker"})  # Grove: `prefill-leader`, `prefill-worker`
_KV_ROLES: Final = {"kv_producer": Says.PREFILL, "kv_consumer": Says.DECODE}
_MAX_DEPTH: Final = 8
_MAX_CONNECTORS: Final = 64
_MAX_CONFIG_CHARS: Final = 32 * 1024


def _role(value: str, short: bool = False) -> Says | None:
    """A role word of a framework; None for words that say nothing to us."""
    word = value.strip().lower()
    if not _NO_ENGINES.isdisjoint(word.replace("_", "-").replace(".", "-").split("-")):
        return Says.NO_ENGINE
    return _WORDS.get(word) or (_SHORT_WORDS.get(word) if short else None)


def _label(name: str, *keys: str, short: bool = False) -> Callable[[Pod, tuple[EngineCall, ...]], Iterator[Finding]]:
    def look(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
        for key in keys:
            value = pod.metadata.label(key)
            says = _role(value, short) if value else None
            if says:
                yield Finding(says, f"{name} {value}")

    return look


def _own_label(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    value = pod.metadata.label(labels.PHASE)
    if value in labels.PHASES:
        yield Finding(Says(value), f"label {labels.PHASE}")


def _grove(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """`<set>-<replica>-<clique>`: only the end counts, for the set may be called anything."""
    tokens = pod.metadata.label("grove.io/podclique").lower().split("-")
    if len(tokens) > 1 and tokens[-1] in _POSITIONS:
        tokens.pop()
    says = _role(tokens[-1])
    if says:
        yield Finding(says, f"Grove clique {tokens[-1]}")


def _vllm(_pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    for call in calls:
        if call.is_router:
            continue
        roles: list[str] = []
        for text in call.flags.get("--kv-transfer-config", ()):
            roles += _kv_roles(text)
        roles += call.flags.get("--kv-transfer-config.kv-role", ())
        for role in dict.fromkeys(roles):
            if role in _KV_ROLES:
                yield Finding(_KV_ROLES[role], f"vLLM kv_role {role}")
            elif role == "kv_both":
                # NIXL users write it on both sides; it says that KV moves, not which way.
                yield Finding(Says.OPEN, "vLLM kv_role kv_both")


def _kv_roles(text: str) -> list[str]:
    if not text or len(text) > _MAX_CONFIG_CHARS:
        return []
    try:
        config = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return []
    roles: list[str] = []
    _collect_kv_roles(config, roles, depth=0)
    return roles


def _collect_kv_roles(config: object, roles: list[str], depth: int) -> None:
    """MultiConnector nests its connectors under kv_connector_extra_config.connectors."""
    if not isinstance(config, dict) or depth > _MAX_DEPTH or len(roles) > _MAX_CONNECTORS:
        return
    role = config.get("kv_role")
    if isinstance(role, str):
        roles.append(role)
    extra = config.get("kv_connector_extra_config")
    connectors = extra.get("connectors") if isinstance(extra, dict) else None
    for connector in connectors[:_MAX_CONNECTORS] if isinstance(connectors, list) else ():
        _collect_kv_roles(connector, roles, depth + 1)


def _sglang(_pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    for call in calls:
        if call.is_router or call.module.startswith(
            "dynamo."
        ):  # Dynamo's engines have the same flag and a row of their own
            continue
        for mode in dict.fromkeys(call.flags.get("--disaggregation-mode", ())):
            if mode in labels.PHASES:
                yield Finding(Says(mode), f"SGLang --disaggregation-mode {mode}")


ROWS: Final[tuple[Row, ...]] = (
    Row(
        0,
        "Isochrone",
        "label isochrone.dev/phase",
        "prefill | decode; wins over every other row",
        Confidence.EXPLICIT,
        "docs/contracts.md",
        _own_label,
    ),
    Row(
        1,
        "Kthena",
        "label modelserving.volcano.sh/role",
        "prefill (p) | decode (d)",
        Confidence.HIGH,
        "volcano-sh/kthena pkg/apis/workload/v1alpha1/labels.go; short names: volcano-sh/kthena#1795",
        _label("Kthena role", "modelserving.volcano.sh/role", short=True),
    ),
    Row(
        2,
        "LWS DisaggregatedSet",
        "label disaggregatedset.x-k8s.io/role",
        "prefill | decode",
        Confidence.HIGH,
        "kubernetes-sigs/lws api/disaggregatedset/v1",
        _label("DisaggregatedSet role", "disaggregatedset.x-k8s.io/role"),
    ),
    Row(
        4,
        "Grove",
        "label grove.io/podclique, its last word before leader or worker",
        "prefill | decode",
        Confidence.HIGH,
        "ai-dynamo/grove operator/api/common labels",
        _grove,
    ),
    Row(
        5,
        "RBG",
        "label rbg.workloads.x-k8s.io/role-name, or rolebasedgroup.workloads.x-k8s.io/role (v1alpha1)",
        "prefill | decode",
        Confidence.HIGH,
        "sgl-project/rbg api/workloads/constants/label.go and api/workloads/v1alpha1/constant.go",
        _label("RBG role", "rbg.workloads.x-k8s.io/role-name", "rolebasedgroup.workloads.x-k8s.io/role"),
    ),
    Row(
        9,
        "vLLM",
        "argument --kv-transfer-config, kv_role (nested connectors too)",
        "kv_producer = prefill | kv_consumer = decode | kv_both = open",
        Confidence.MEDIUM,
        "vllm-project/vllm vllm/config/kv_transfer.py; kv_both: vllm-project/vllm#43807",
        _vllm,
    ),
    Row(
        10,
        "SGLang",
        "argument --disaggregation-mode",
        "prefill | decode",
        Confidence.MEDIUM,
        "sgl-project/sglang python/sglang/srt/server_args.py",
        _sglang,
    ),
)


def read_phase(pod: Pod, calls: tuple[EngineCall, ...] | None = None) -> PhaseReading:
    """What the table says of this pod. Never raises. `calls`: its command lines, if they are read already."""
    own = pod.metadata.label(labels.PHASE)
    if own and own not in labels.PHASES:
        return PhaseReading(None, conflicts=(f'{labels.PHASE} is {own!r}; use "prefill" or "decode"',))
    calls = engine_calls(pod) if calls is None else calls
    found = [(row, finding) for row in ROWS for finding in row.look(pod, calls)]
    if not found:
        return PhaseReading(None)
    row, first = found[0]
    if row.confidence is Confidence.EXPLICIT:
        against = tuple(
            f"{labels.PHASE} is {first.says} but {other.text} says {other.says}; the label wins"
            for _, other in found[1:]
            if other.says not in (first.says, Says.OPEN, Says.MIXED)
        )
        return PhaseReading(_phase(first.says), first.text, row.confidence, against)
    no_engine = next((finding for _, finding in found if finding.says is Says.NO_ENGINE), None)
    if no_engine:
        return PhaseReading(None, no_engine.text, engine=False)
    decided = [(row, finding) for row, finding in found if finding.says is not Says.OPEN]
    if not decided:
        return PhaseReading(None, first.text)
    if len({finding.says for _, finding in decided}) > 1:
        said = ", ".join(dict.fromkeys(f"{finding.text} says {finding.says}" for _, finding in decided))
        return PhaseReading(None, conflicts=(f"phase left open: {said}; set label {labels.PHASE}",))
    row, first = decided[0]
    return PhaseReading(_phase(first.says), first.text, row.confidence, mixed=first.says is Says.MIXED)


def _phase(says: Says) -> Phase | None:
    if says is Says.PREFILL:
        return "prefill"
    return "decode" if says is Says.DECODE else None
