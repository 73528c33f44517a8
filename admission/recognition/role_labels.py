"""Signals that are labels: our own, the frameworks' role labels, and the plain ones that people agree on.

A framework's label counts wherever it stands. A plain label such as `role: decode` can mean anything (a video
decoder), so it counts only on a pod that shows in another way that it serves a language model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from admission.recognition.command_line import EngineCall
from admission.recognition.evidence import Finding, Lookup, PhaseSign, role
from admission.recognition.phase_names import phase_in_name
from admission.recognition.programs import TRTLLM
from topology import labels
from topology.objects import Pod

PLAIN_KEYS: Final = ("role", "app.kubernetes.io/component", "component", "llm-d.ai/component")
_POSITIONS: Final = frozenset({"leader", "worker", "ldr", "wkr"})  # Grove: `prefill-leader`, `prefill-wkr`
_CLIQUE = re.compile(r"(?:vllm|sglang|trtllm|tensorrtllm|llm)?(prefill|decode)(?:worker)?")
_LLM_LABELS: Final = (
    "llm-d.ai/",
    "leaderworkerset.sigs.k8s.io/",
    "model.aibrix.ai/",
    "nvidia.com/dynamo-",
    "serving.kserve.io/",
    "kserve.io/",
    "ome.io/",
    "modelserving.volcano.sh/",
    "rbg.workloads.x-k8s.io/",
)
_ACCELERATORS: Final = ("gpu", "nvidia.com/", "ascend", "npu", "tpu", "gaudi")
_MEDIA: Final = (
    "whisper",
    "speech",
    "ffmpeg",
    "video",
    "codec",
    "transcod",
    "media",
    "gstreamer",
    "deepstream",
    "nvenc",
    "nvdec",
    "audio",
)
_HALF_OF_A_MODEL: Final = "decoder"  # in training and in vision a decoder is a part of a model, not of a service
# NVIDIA/TensorRT-LLM examples/disaggregated: context servers hand the KV cache to generation servers.
TRTLLM_TOKENS: Final = {
    "context": PhaseSign.PREFILL,
    "ctx": PhaseSign.PREFILL,
    "generation": PhaseSign.DECODE,
    "gen": PhaseSign.DECODE,
}
NAME_LABELS: Final = (
    *("leaderworkerset.sigs.k8s.io/name", "nvidia.com/dynamo-component", "ray.io/group"),
    *("app.kubernetes.io/name", "app", "model"),
)
# What language models and their services are called; a word of its own, a version behind it.
_LLM_WORD: Final = re.compile(
    r"llm|(?<![a-z])(?:chat|gpt|llama|qwen|deepseek|mistral|mixtral|glm|kimi|gemma|phi|ernie|minimax|nemotron|hunyuan"
    r"|lmcache|sglang|moe)(?![a-z])"
)
_FIRST_TOKENS: Final = 8
_LONGEST: Final = 200
_LLM_VARIABLES: Final = ("VLLM_", "SGLANG_", "LMCACHE_", "MOONCAKE_", "NIXL_", "DYN_", "TRTLLM_")


def own_label(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """isochrone.dev/phase."""
    value = pod.metadata.label(labels.PHASE)
    if value in labels.PHASES:
        yield Finding(PhaseSign(value), f"label {labels.PHASE}")


def role_label(name: str, *keys: str, short: bool = False) -> Lookup:
    """A framework's role label under one of its keys."""

    def read(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
        for key in keys:
            value = pod.metadata.label(key)
            sign = _role(value, short) if value else None
            if sign:
                yield Finding(sign, f"{name} {value}")

    return read


def _role(value: str, short: bool = False) -> PhaseSign | None:
    """A framework's role is a name too: `decode-h200` and `prefill-long` are roles of one service."""
    return role(value, short) or phase_in_name(value, {"decoder": PhaseSign.DECODE})


def dynamo(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """The component type tells newer workers apart; older ones are all `worker` and have a sub-component type."""
    for key in ("nvidia.com/dynamo-component-type", "nvidia.com/dynamo-sub-component-type"):
        value = pod.metadata.label(key)
        sign = _role(value) if value else None
        if sign:
            yield Finding(sign, f"Dynamo {key.removeprefix('nvidia.com/dynamo-')} {value}")


def grove(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """`<set>-<replica>-<clique>`: only the end counts, for the set may be called anything."""
    for key, what in (("grove.io/podclique", "clique"), ("grove.io/podcliquescalinggroup", "scaling group")):
        tokens = pod.metadata.label(key).lower().split("-")
        if len(tokens) > 1 and tokens[-1] in _POSITIONS:
            tokens.pop()
        clique = _CLIQUE.fullmatch(tokens[-1])
        sign = PhaseSign(clique[1]) if clique else role(tokens[-1])
        if sign:
            yield Finding(sign, f"Grove {what} {tokens[-1]}")
            return  # `prefill` may be the scaling group of cliques that are called pleader and pworker


def aibrix(pod: Pod, _calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """`role-name` has no prefix: it is AIBrix's only beside one of its own labels."""
    meta = pod.metadata
    trusted = meta.label("storm-service-name") or meta.label("roleset-name")
    for key in ("role-name", "model.aibrix.ai/role"):
        value = meta.label(key)
        sign = _role(value) if value and (trusted or key != "role-name") else None
        if sign:
            yield Finding(sign, f"AIBrix role {value}")


def plain(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """`role: prefill` and the like."""
    trtllm = any(call.program.engine == TRTLLM for call in calls)
    for key in PLAIN_KEYS:
        value = pod.metadata.label(key)
        sign = role(value) if value else None
        if sign is None and trtllm:
            sign = TRTLLM_TOKENS.get(value.lower())
        serves = serves_language_models if value.lower() == _HALF_OF_A_MODEL else may_serve
        if sign in (PhaseSign.PREFILL, PhaseSign.DECODE, PhaseSign.MIXED) and not serves(pod, calls):
            yield Finding(PhaseSign.OPEN, f"label {key} {value}")
        elif sign:
            yield Finding(sign, f"label {key} {value}")


def serves_language_models(pod: Pod, calls: tuple[EngineCall, ...]) -> bool:
    """A known engine, a model among the arguments, a variable of an engine, or a label of a serving framework."""
    if runs_no_engine(calls):
        return False
    if any(call.program.engine or (call.model and call.is_engine) for call in calls):
        return True
    if any(key.startswith(_LLM_LABELS) for key in pod.metadata.labels or ()):
        return True
    if _names_a_language_model(pod):
        return True
    for container in pod.spec.containers:
        if any(variable.name.startswith(_LLM_VARIABLES) for variable in container.env or ()):
            return True
    return False


def _names_a_language_model(pod: Pod) -> bool:
    """By a word of its names or images: `chat-decode`, `registry/llm/engine`, `qwen3-decode`."""
    meta = pod.metadata
    given = [meta.name, meta.generate_name, *(meta.label(key) for key in NAME_LABELS)]
    for container in pod.spec.containers:
        given += [container.name, container.image]
    return any(_LLM_WORD.search(text[:_LONGEST].lower()) for text in given)


def may_serve(pod: Pod, calls: tuple[EngineCall, ...]) -> bool:
    """It serves language models, or wants a GPU and shows no sign of the other trade in which things are decoded."""
    if runs_no_engine(calls):
        return False
    return serves_language_models(pod, calls) or (wants_gpu(pod) and not _handles_media(pod))


def runs_no_engine(calls: tuple[EngineCall, ...]) -> bool:
    """Every container is known to run something else: a router, a benchmark, a download."""
    return bool(calls) and not any(call.is_engine for call in calls)


def wants_gpu(pod: Pod) -> bool:
    """Some container asks for an accelerator under a name that tells so."""
    for container in pod.spec.containers:
        for amounts in (container.resources.limits, container.resources.requests):
            if any(part in key.lower() for key in amounts or () for part in _ACCELERATORS):
                return True
    return False


def _handles_media(pod: Pod) -> bool:
    given = [pod.metadata.name, pod.metadata.generate_name, *(pod.metadata.labels or {}).values()]
    for container in pod.spec.containers:
        started = [*(container.command or ()), *(container.args or ())][:_FIRST_TOKENS]
        given += [container.name, container.image, *(word[:_LONGEST] for word in started)]
    return any(part in text.lower() for text in given for part in _MEDIA)
