"""Weak signals: roles in variables and arguments of unknown programs, names of containers and owners, plain engines.

They count last, and only on pods that run an engine or ask for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from admission.recognition.command_line import EngineCall
from admission.recognition.engine_arguments import role_argument, vllm
from admission.recognition.evidence import Finding, PhaseSign, plain_phase, runs_beside_engines
from admission.recognition.phase_names import phase_in_name, tokens_of
from admission.recognition.programs import DYNAMO, TRTLLM
from admission.recognition.role_labels import (
    NAME_LABELS,
    TRTLLM_TOKENS,
    may_serve,
    serves_language_models,
    wants_gpu,
)
from topology.objects import Pod

_ROLE_FLAGS: Final = (
    *("--role", "--pd-role", "--worker-role", "--worker-type", "--instance-role", "--engine-role"),
    *("--splitwise-role", "--node-role", "--serving-role"),
)
_ROLE_VARIABLES: Final = frozenset(
    {
        *("ROLE", "ROLE_NAME", "ROLE_TYPE", "POD_ROLE", "PD_ROLE", "KV_ROLE", "ENGINE_ROLE", "WORKER_ROLE"),
        *(
            "WORKER_TYPE",
            "WORKER_MODE",
            "SERVER_ROLE",
            "INSTANCE_ROLE",
            "INFERENCE_ROLE",
            "VLLM_ROLE",
            "VLLM_KV_ROLE",
            "SERVING_ROLE",
        ),
        *("DISAGGREGATION_MODE", "DISAGG_MODE", "SGLANG_DISAGGREGATION_MODE", "DISAGGREGATION_ROLE", "DISAGG_ROLE"),
    }
)
_ROLE_KEYS: Final = frozenset({"role", "mode", "phase", "type", "pd_role", "worker_type"})
_KV_ROLES: Final = {"kv_producer": PhaseSign.PREFILL, "kv_consumer": PhaseSign.DECODE}
_OF_OWNERS: Final = {"decoder": PhaseSign.DECODE}  # of a container it is half of a model rather than of a service
_MAX_VARIABLES: Final = 256


def hints(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """The first kind of hint that names one phase: variables and arguments, then containers, then owners."""
    engines = [call for call in calls if call.is_engine]
    if not engines:
        yield from _no_engine(calls)
        return
    known = any(call.program.engine for call in engines)
    # Dynamo calls the one worker of an aggregated service a decode worker: there a name tells nothing.
    telling = not any(call.program.engine == DYNAMO for call in engines)
    names = [*_container_names(engines), *_owner_names(pod)]
    if not known and any(runs_beside_engines(iter(tokens_of(name))) for _, name in names):
        yield Finding(PhaseSign.NO_ENGINE, f"named {names[0][1]}")
        return
    if not known and not wants_gpu(pod):
        return
    for where, kind in _kinds(pod, calls, engines):
        found = list(kind)
        if found:
            yield from _weighed(found, where, pod, calls, telling)
            return


def _no_engine(calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """What the first container runs instead of an engine, if that is known."""
    other = next((call.program.other for call in calls), "")
    if other:
        yield Finding(PhaseSign.NO_ENGINE, f"{other} in container {calls[0].container}")


def _kinds(
    pod: Pod, calls: tuple[EngineCall, ...], engines: list[EngineCall]
) -> tuple[tuple[str, Iterator[Finding]], ...]:
    """The kinds of hints, the strongest first, each with where it is from."""
    # Only where its engine was told by a file is the rest of a TensorRT-LLM pod worth the engine's own words.
    tokens = TRTLLM_TOKENS if any(call.program.engine == TRTLLM for call in engines) else {}
    return (
        ("setting", _settings(pod, calls)),
        ("script", _named(_script_names(engines))),
        ("owner", _tokens_given(engines)),
        ("container", _named(_container_names(engines), tokens)),
        ("owner", _named(_owner_names(pod), {**tokens, **_OF_OWNERS})),
    )


def _weighed(found: list[Finding], where: str, pod: Pod, calls: tuple[EngineCall, ...], telling: bool) -> list[Finding]:
    """Hints of one kind as far as they say something of this pod; else what they say stays open."""
    serves = serves_language_models if where == "owner" else may_serve
    if any(finding.sign is PhaseSign.DECODE for finding in found) and not serves(pod, calls):
        return [Finding(PhaseSign.OPEN, found[0].text)]  # video, too, is decoded on GPUs
    signs = telling and not (where == "owner" and _plainly_aggregated(pod, calls))
    return found if signs else [Finding(PhaseSign.OPEN, finding.text) for finding in found]


def aggregated(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """A known engine whose own command line says nothing of separation, or is not there to be read."""
    engines = [call.program for call in calls if call.program.engine]
    for program in engines:
        if program.readable:
            yield Finding(PhaseSign.AGGREGATED, f"{program.engine} without disaggregation")
            return
    if engines:
        first = next(number for number, call in enumerate(calls) if call.program.engine)
        bare = not pod.spec.containers[first].command and not pod.spec.containers[first].args
        how = (
            "image without command and arguments" if bare else "started by a script, file or variable that is not read"
        )
        yield Finding(PhaseSign.OPEN, f"{engines[0].engine} {how}")


def _plainly_aggregated(pod: Pod, calls: tuple[EngineCall, ...]) -> bool:
    """Its whole command line was seen and hands no KV to anybody: then the name of its owner is just a name."""
    if any(finding.sign is PhaseSign.OPEN for finding in vllm(pod, calls)):
        return False
    return any(call.program.readable for call in calls)


def _settings(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    for call, container in zip(calls, pod.spec.containers, strict=False):
        if not call.is_engine:
            continue
        for flag in _ROLE_FLAGS:
            for value in call.flags.get(flag, ()):
                sign = role_argument(value)
                if sign:
                    yield Finding(sign, f"argument {flag} {value}")
        for variable in (container.env or ())[:_MAX_VARIABLES]:
            if variable.name.upper() in _ROLE_VARIABLES:
                sign = plain_phase(variable.value) or _KV_ROLES.get(variable.value.lower())
                if sign:
                    yield Finding(sign, f"variable {variable.name} {variable.value}")


def _container_names(engines: list[EngineCall]) -> list[tuple[str, str]]:
    return [("container", call.container) for call in engines]


def _tokens_given(engines: list[EngineCall]) -> Iterator[Finding]:
    """`run.sh prefill` and `start role=decode`: what a script or an unknown program is to do."""
    for call in engines:
        if call.program.readable:
            continue  # of an engine whose options are seen a word is no order
        for word in call.plain_tokens:
            key, _, value = word.rpartition("=")
            sign = plain_phase(value) if not key or key.lower() in _ROLE_KEYS else None
            if sign:
                yield Finding(sign, f"argument {word}")


def _script_names(engines: list[EngineCall]) -> list[tuple[str, str]]:
    """`/scripts/start-prefill.sh`: what it runs is not in the manifest, its name is."""
    return [("script", name) for call in engines for name in call.scripts]


def _owner_names(pod: Pod) -> list[tuple[str, str]]:
    meta = pod.metadata
    names = [("label " + key, value) for key in NAME_LABELS if (value := meta.label(key))]
    name = meta.name or meta.generate_name
    return [*names, ("pod name", name)] if name else names


def _named(names: list[tuple[str, str]], more: Mapping[str, PhaseSign] = MappingProxyType({})) -> Iterator[Finding]:
    for where, name in names:
        sign = phase_in_name(name, more)
        if sign:
            yield Finding(sign, f"{where} {name}")
