"""Signals that are arguments of engines: vLLM, SGLang, Dynamo's workers, TensorRT-LLM, and LMCache's variables.

Only calls that run an engine, or a program that is not known, are asked; a router's options are addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from admission.recognition.command_line import EngineCall
from admission.recognition.evidence import Finding, PhaseSign, role
from admission.recognition.programs import DYNAMO, FASTDEPLOY, LIGHTLLM, LMDEPLOY
from topology import labels
from topology.objects import Container, Pod

_KV_ROLES: Final = {"kv_producer": PhaseSign.PREFILL, "kv_consumer": PhaseSign.DECODE}
_NOT_READ_ROLE = re.compile(r"""kv_role["'\\\s]{0,8}[:=]["'\\\s]{0,8}(kv_[a-z]{4,8})""")
# Connectors that keep KV for later instead of handing it to a partner: kv_both on one of these is aggregated serving.
_STORES: Final = (
    *("LMCache", "Offloading", "SharedStorage", "Example", "MooncakeStore", "AscendStore", "AIBrixOffloading"),
    *("SimpleCPUOffload", "FlexKV", "HF3FS"),
)
_MAX_DEPTH: Final = 8
_MAX_CONNECTORS: Final = 64
_MAX_CONFIG_CHARS: Final = 32 * 1024
_DYNAMO_MODES: Final = {
    "prefill": PhaseSign.PREFILL,
    "decode": PhaseSign.DECODE,
    "agg": PhaseSign.MIXED,
    "aggregated": PhaseSign.MIXED,
    "prefill-and-decode": PhaseSign.MIXED,
    "pd": PhaseSign.MIXED,
    "encode": PhaseSign.NO_ENGINE,
}
_SERVER_ROLES: Final = {"context": PhaseSign.PREFILL, "generation": PhaseSign.DECODE}
# Engines whose one option says it, with the words that it takes: InternLM/lmdeploy lmdeploy/cli/utils.py,
# PaddlePaddle/FastDeploy fastdeploy/engine/args_utils.py, ModelTC/LightLLM lightllm/server/api_cli.py.
_ROLE_OPTIONS: Final = {LMDEPLOY: "--role", FASTDEPLOY: "--splitwise-role", LIGHTLLM: "--run-mode"}
_ROLE_TOKENS: Final = {
    "prefill": PhaseSign.PREFILL,
    "decode": PhaseSign.DECODE,
    "nixl-prefill": PhaseSign.PREFILL,
    "nixl-decode": PhaseSign.DECODE,
    "hybrid": PhaseSign.MIXED,
    "mixed": PhaseSign.MIXED,
    "normal": PhaseSign.MIXED,
    "encoder": PhaseSign.NO_ENGINE,
    "encode": PhaseSign.NO_ENGINE,
    "visual": PhaseSign.NO_ENGINE,
    "visual-only": PhaseSign.NO_ENGINE,
    "pd-master": PhaseSign.NO_ENGINE,
    "config-server": PhaseSign.NO_ENGINE,
}
_LMCACHE_ROLES: Final = {"sender": PhaseSign.PREFILL, "receiver": PhaseSign.DECODE}
_LMCACHE_KEYS: Final = ("LMCACHE_NIXL_ROLE", "LMCACHE_PD_ROLE")
_DYNAMO_MODE_VARIABLES: Final = re.compile(r"DYN_[A-Z]+_DISAGGREGATION_MODE")
_DYNAMO_ROLE_VARIABLES: Final = re.compile(r"DYN_[A-Z]+_IS_(PREFILL|DECODE)_WORKER")
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def vllm(_pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """kv_role, nested connectors included. Connectors that hand over count before those that store."""
    for call in calls:
        if not call.is_engine:
            continue
        if any("ec_producer" in text for text in call.flags.get("--ec-transfer-config", ())):
            yield Finding(PhaseSign.NO_ENGINE, "vLLM ec_role ec_producer")
        elif "--mm-encoder-only" in call.flags:
            yield Finding(PhaseSign.NO_ENGINE, "vLLM --mm-encoder-only")
        found: list[tuple[str, str]] = []
        for text in call.flags.get("--kv-transfer-config", ()):
            found += _kv_roles(text)
        connector = next(iter(call.flags.get("--kv-transfer-config.kv-connector", ())), "")
        found += [(connector, kv_role) for kv_role in call.flags.get("--kv-transfer-config.kv-role", ())]
        yield from _vllm_findings(found)
        # A configuration that is there but hidden (a file, a variable) is no sign of serving both phases.
        if not found and any(call.flags.get("--kv-transfer-config", ())):
            yield Finding(PhaseSign.OPEN, "vLLM --kv-transfer-config")


def _vllm_findings(found: list[tuple[str, str]]) -> Iterator[Finding]:
    moves = [(name, kv_role) for name, kv_role in found if not name.startswith(_STORES)]
    decided = dict.fromkeys(kv_role for _, kv_role in moves if kv_role in _KV_ROLES) or dict.fromkeys(
        kv_role for _, kv_role in found if kv_role in _KV_ROLES
    )
    for kv_role in decided:
        yield Finding(_KV_ROLES[kv_role], f"vLLM kv_role {kv_role}")
    if decided or not found:
        return
    if not any(kv_role == "kv_both" for _, kv_role in found):
        yield _unknown_role(found)
        return
    yield _both_ways(found, moves)


def _unknown_role(found: list[tuple[str, str]]) -> Finding:
    # A variable that cannot be read here is no misspelling.
    wrong = next((kv_role[:40] for _, kv_role in found if kv_role and "$" not in kv_role), "")
    allowed = f"vLLM kv_role {wrong!r} (it takes kv_producer, kv_consumer or kv_both)"
    return Finding(PhaseSign.OPEN, allowed if wrong else "vLLM --kv-transfer-config")


def _both_ways(found: list[tuple[str, str]], moves: list[tuple[str, str]]) -> Finding:
    """NIXL users write kv_both on both sides; it says that KV moves, not which way."""
    if any(name != "MultiConnector" for name, _ in moves):
        return Finding(PhaseSign.OPEN, "vLLM kv_role kv_both")
    name = next(name for name, kv_role in found if kv_role == "kv_both")
    return Finding(PhaseSign.AGGREGATED, f"vLLM {name} kv_both")


def _kv_roles(text: str) -> list[tuple[str, str]]:
    """Connector and role of each entry; of text that is no JSON (a variable inside), the roles that can be seen."""
    if not text or len(text) > _MAX_CONFIG_CHARS:
        return []
    roles: list[tuple[str, str]] = []
    try:
        config = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return [("", kv_role) for kv_role in _NOT_READ_ROLE.findall(text)[:_MAX_CONNECTORS]]
    _collect_kv_roles(config, roles, depth=0)
    return roles


def _collect_kv_roles(config: object, roles: list[tuple[str, str]], depth: int) -> None:
    """MultiConnector nests its connectors under kv_connector_extra_config.connectors."""
    if not isinstance(config, dict) or depth > _MAX_DEPTH or len(roles) > _MAX_CONNECTORS:
        return
    kv_role, connector = config.get("kv_role"), config.get("kv_connector")
    if isinstance(kv_role, str):
        roles.append((connector if isinstance(connector, str) else "", kv_role))
    extra = config.get("kv_connector_extra_config")
    connectors = extra.get("connectors") if isinstance(extra, dict) else None
    for inner in connectors[:_MAX_CONNECTORS] if isinstance(connectors, list) else ():
        _collect_kv_roles(inner, roles, depth + 1)


def sglang(_pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """--disaggregation-mode; `null` is the engine's own word for aggregated."""
    for call in calls:
        if not call.is_engine or call.program.engine == DYNAMO:  # Dynamo's engines have a row of their own
            continue
        for mode in dict.fromkeys(call.flags.get("--disaggregation-mode", ())):
            if mode in labels.PHASES:
                yield Finding(PhaseSign(mode), f"SGLang --disaggregation-mode {mode}")
            elif mode == "null":
                yield Finding(PhaseSign.MIXED, "SGLang --disaggregation-mode null")
            elif mode:
                yield Finding(PhaseSign.OPEN, f"SGLang --disaggregation-mode {mode[:40]}")
        if "--encoder-only" in call.flags:
            yield Finding(PhaseSign.NO_ENGINE, "SGLang --encoder-only")


def _dynamo_workers(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """Dynamo's own switches, each of which is a variable too, and TensorRT-LLM's server role."""
    for call, container in zip(calls, pod.spec.containers, strict=False):
        if not call.is_engine:
            continue
        for value in dict.fromkeys(call.flags.get("--server-role", ())):
            if value.lower() in _SERVER_ROLES:
                yield Finding(_SERVER_ROLES[value.lower()], f"TensorRT-LLM --server_role {value}")
        if call.program.engine != DYNAMO:
            continue
        for mode in dict.fromkeys(call.flags.get("--disaggregation-mode", ())):
            sign = _DYNAMO_MODES.get(mode.replace("_", "-"))
            if sign:
                yield Finding(sign, f"Dynamo --disaggregation-mode {mode}")
            elif mode:
                yield Finding(PhaseSign.OPEN, f"Dynamo --disaggregation-mode {mode[:40]}")
        for flag, given in (("--is-prefill-worker", PhaseSign.PREFILL), ("--is-decode-worker", PhaseSign.DECODE)):
            if any(value.lower() not in _FALSE for value in call.flags.get(flag, ())):
                yield Finding(given, f"Dynamo {flag}")
        yield from _dynamo_variables(container)


def _dynamo_variables(container: Container) -> Iterator[Finding]:
    for variable in container.env or ():
        named = _DYNAMO_ROLE_VARIABLES.fullmatch(variable.name)
        if named and variable.value.lower() in ("true", "1"):
            yield Finding(PhaseSign(named[1].lower()), f"Dynamo {variable.name}")
        elif variable.value and _DYNAMO_MODE_VARIABLES.fullmatch(variable.name):
            sign = _DYNAMO_MODES.get(variable.value.lower().replace("_", "-"), PhaseSign.OPEN)
            yield Finding(sign, f"Dynamo {variable.name} {variable.value[:40]}")


def other_engines(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """Dynamo, TensorRT-LLM, and the one option of LMDeploy, FastDeploy and LightLLM that says it."""
    yield from _dynamo_workers(pod, calls)
    for call in calls:
        option = _ROLE_OPTIONS.get(call.program.engine, "") if call.is_engine else ""
        for value in dict.fromkeys(call.flags.get(option, ())):
            sign = _ROLE_TOKENS.get(value.lower().replace("_", "-"))
            if sign or value:
                yield Finding(sign or PhaseSign.OPEN, f"{call.program.engine} {option} {value[:40]}")


def lmcache(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """The variables that vLLM's production-stack and LMCache give an engine of a separated service."""
    for number, container in enumerate(pod.spec.containers):
        if number >= len(calls) or not calls[number].is_engine:
            continue
        for variable in container.env or ():
            sign = _LMCACHE_ROLES.get(variable.value.lower()) if variable.name in _LMCACHE_KEYS else None
            if sign:
                yield Finding(sign, f"{variable.name} {variable.value}")


def role_argument(value: str) -> PhaseSign | None:
    """A role word that stands behind a flag of an engine which we know less well."""
    sign = role(value)
    return sign if sign in (PhaseSign.PREFILL, PhaseSign.DECODE, PhaseSign.MIXED) else None
