"""Copies of a model that Ray spans over several nodes: the leader names the engine, the workers only join it.

A worker's `ray start` tells nothing, and the webhook sees one pod at a time. What the pods of such an LWS group share
is the name of their LWS, so that is where the phase comes from, for the leader and its workers alike. Sources: vLLM's
examples/online_serving/multi-node-serving.sh and kubernetes-sigs/lws docs/examples/vllm.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.recognition.command_line import EngineCall
from admission.recognition.evidence import Confidence, Finding, PhaseReading
from admission.recognition.phase_names import phase_in_name
from admission.recognition.replica_group import LWS_NAME, size_of
from topology.objects import Pod


def lws_name(pod: Pod, calls: tuple[EngineCall, ...]) -> str:
    """The LWS of a pod whose copy spans nodes by Ray; "" for any other pod."""
    name = pod.metadata.label(LWS_NAME)
    return name if name and size_of(pod) > 1 and any(call.ray for call in calls) else ""


def phase_of_lws(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    """`r1-prefill` says prefill of its leader and of its workers; as sure as a plain label, for it is meant as one."""
    name = lws_name(pod, calls)
    sign = phase_in_name(name) if name else None
    if sign:
        yield Finding(sign, f"LWS {name}, spanned by Ray")


def without_workers(pod: Pod, calls: tuple[EngineCall, ...], phase: PhaseReading) -> bool:
    """Nothing puts this copy's workers beside their leader: held, it would wait for them for ever.

    A framework writes its labels on both, which tell phase and gang alike.
    """
    name = lws_name(pod, calls)
    return bool(name) and phase.confidence is Confidence.MEDIUM and phase_in_name(name) is None
