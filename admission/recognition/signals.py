"""Which half of inference a pod does, read from what people and frameworks already write.

Decides the phase from one ranked table. A row says where it looks and what it yields. Signals that disagree: the surer
kind wins and it is told; among signals that are equally sure nobody wins, and that is told too. It must never know
gangs, modes or patches, and never guess: a wrong phase is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from admission.recognition import engine_arguments, ray_groups, role_labels, weak_names
from admission.recognition.command_line import EngineCall, engine_calls
from admission.recognition.evidence import DECIDES, Confidence, Finding, Phase, PhaseReading, PhaseSign, SignalRow
from admission.recognition.programs import NOT_SERVING
from topology import labels
from topology.objects import Pod

__all__ = ["ROWS", "Confidence", "Phase", "PhaseReading", "Rules", "read_phase"]


def _plain(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
    yield from role_labels.plain(pod, calls)
    yield from ray_groups.phase_of_lws(pod, calls)


ROWS: Final[tuple[SignalRow, ...]] = (
    SignalRow(
        0,
        "Isochrone",
        "label `isochrone.dev/phase`",
        "prefill, decode; wins over every other row",
        Confidence.EXPLICIT,
        "docs/contracts.md",
        role_labels.own_label,
    ),
    SignalRow(
        1,
        "Kthena",
        "label `modelserving.volcano.sh/role`",
        "the role word; also p, d",
        Confidence.HIGH,
        "volcano-sh/kthena pkg/apis/workload/v1alpha1/labels.go; short names: volcano-sh/kthena#1795",
        role_labels.role_label("Kthena role", "modelserving.volcano.sh/role", short=True),
    ),
    SignalRow(
        2,
        "LWS DisaggregatedSet",
        "label `disaggregatedset.x-k8s.io/role`",
        "the role word",
        Confidence.HIGH,
        "kubernetes-sigs/lws api/disaggregatedset/v1",
        role_labels.role_label("DisaggregatedSet role", "disaggregatedset.x-k8s.io/role"),
    ),
    SignalRow(
        3,
        "Dynamo",
        "labels `nvidia.com/dynamo-component-type` and `nvidia.com/dynamo-sub-component-type`",
        "the role word; `worker` says nothing",
        Confidence.HIGH,
        "ai-dynamo/dynamo deploy/operator/internal/consts/consts.go",
        role_labels.dynamo,
    ),
    SignalRow(
        4,
        "Grove",
        "label `grove.io/podclique`, its last word before leader or worker; else `grove.io/podcliquescalinggroup`",
        "the role word",
        Confidence.HIGH,
        "ai-dynamo/grove operator/api/common labels",
        role_labels.grove,
    ),
    SignalRow(
        5,
        "RBG",
        "label `rbg.workloads.x-k8s.io/role-name`, or `rolebasedgroup.workloads.x-k8s.io/role` (v1alpha1)",
        "the role word",
        Confidence.HIGH,
        "sgl-project/rbg api/workloads/constants/label.go and api/workloads/v1alpha1/constant.go",
        role_labels.role_label(
            "RBG role", "rbg.workloads.x-k8s.io/role-name", "rolebasedgroup.workloads.x-k8s.io/role"
        ),
    ),
    SignalRow(
        6,
        "llm-d, KServe",
        "label `llm-d.ai/role`",
        "the role word; `encode-prefill` is left open",
        Confidence.HIGH,
        "llm-d/llm-d-inference-scheduler pkg/plugins/filter/bylabel/roles.go",
        role_labels.role_label("llm-d role", "llm-d.ai/role"),
    ),
    SignalRow(
        7,
        "AIBrix",
        "label `role-name` beside `storm-service-name` or `roleset-name`; label `model.aibrix.ai/role`",
        "the role word",
        Confidence.HIGH,
        "vllm-project/aibrix pkg/controller/constants/stormservice.go",
        role_labels.aibrix,
    ),
    SignalRow(
        8,
        "plain label",
        "labels " + ", ".join(f"`{key}`" for key in role_labels.PLAIN_KEYS) + " on a pod that may serve a model; "
        "label `leaderworkerset.sigs.k8s.io/name` of a group that Ray spans",
        "the role word; context and generation of TensorRT-LLM; the phase in the LWS's name",
        Confidence.MEDIUM,
        "examples of Kueue, LWS, llm-d and TensorRT-LLM",
        _plain,
    ),
    SignalRow(
        9,
        "vLLM",
        "argument `--kv-transfer-config`, its kv_role (nested connectors and dotted form too); `--ec-transfer-config`",
        "kv_producer = prefill, kv_consumer = decode; kv_both is open, with a connector that only stores: aggregated",
        Confidence.MEDIUM,
        "vllm-project/vllm vllm/config/kv_transfer.py; kv_both: vllm-project/vllm#43807",
        engine_arguments.vllm,
    ),
    SignalRow(
        10,
        "SGLang",
        "argument `--disaggregation-mode`",
        "prefill, decode; null = mixed",
        Confidence.MEDIUM,
        "sgl-project/sglang python/sglang/srt/server_args.py",
        engine_arguments.sglang,
    ),
    SignalRow(
        11,
        "Dynamo engines, TensorRT-LLM",
        "arguments or variables: `--disaggregation-mode`, `--is-prefill-worker`, `--is-decode-worker`; "
        "`--server_role`; `--role` of LMDeploy, `--splitwise-role` of FastDeploy, `--run_mode` of LightLLM",
        "as named; context = prefill, generation = decode; hybrid, mixed, normal = mixed; encoders are no engine",
        Confidence.MEDIUM,
        "ai-dynamo/dynamo components; NVIDIA/TensorRT-LLM tensorrt_llm/commands/serve.py; InternLM/lmdeploy "
        "lmdeploy/cli/utils.py; PaddlePaddle/FastDeploy fastdeploy/engine/args_utils.py; ModelTC/LightLLM "
        "lightllm/server/api_cli.py",
        engine_arguments.other_engines,
    ),
    SignalRow(
        12,
        "production-stack, LMCache",
        "variables `LMCACHE_NIXL_ROLE`, `LMCACHE_PD_ROLE`",
        "sender = prefill, receiver = decode",
        Confidence.MEDIUM,
        "vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml",
        engine_arguments.lmcache,
    ),
    SignalRow(
        13,
        "variables and names",
        "variables and arguments such as `ROLE`, `--role`; names of containers, scripts, owners and pods; programs",
        "prefill, decode where one of them is named; routers, proxies and stores are no engine",
        Confidence.LOW,
        "examples of Mooncake, MindIE, RTP-LLM and llm-d",
        weak_names.hints,
    ),
    SignalRow(
        14,
        "plain engine",
        "a known engine's own command line that says nothing of separation",
        "aggregated, where no other row says more; open where its options are in a script or file that is not read",
        Confidence.LOW,
        "the engines' defaults",
        weak_names.aggregated,
    ),
)


@dataclass(
    frozen=True, slots=True, eq=False
)  # told apart by identity: there is one in use, and readings are kept for it
class Rules:
    """The table in use. `mixed_as`: what a pod that serves both phases is tagged as; None leaves it untagged."""

    rows: tuple[SignalRow, ...] = ROWS
    mixed_as: Phase | None = None


BUILT_IN: Final = Rules()


def read_phase(pod: Pod, calls: tuple[EngineCall, ...] | None = None, rules: Rules = BUILT_IN) -> PhaseReading:
    """What the table says of this pod. Never raises. `calls`: its command lines, if they are read already."""
    own = pod.metadata.label(labels.PHASE)
    if own and own not in labels.PHASES:
        return PhaseReading(None, conflicts=(f'{labels.PHASE} is {own!r}; use "prefill" or "decode"',))
    calls = engine_calls(pod) if calls is None else calls
    found = [(row, finding) for row in rules.rows for finding in row.read(pod, calls)]
    if not found:
        return PhaseReading(None)
    row, first = found[0]
    if row.confidence is Confidence.EXPLICIT:
        return PhaseReading(_phase(first.sign), first.text, row.confidence, _against_label(first, found[1:]))
    if calls and all(call.program.other in NOT_SERVING for call in calls):
        return _serves_nothing(calls[0], found)
    decided = [(row, finding) for row, finding in found if finding.sign in DECIDES]
    if not decided:
        return _undecided(found, rules)
    return _decided(decided, found, calls, rules)


def _against_label(first: Finding, others: Sequence[tuple[SignalRow, Finding]]) -> tuple[str, ...]:
    """What contradicts the label."""
    return tuple(
        f"{labels.PHASE} is {first.sign} but {other.text} says {other.sign}; the label wins"
        for other_row, other in others
        if other.sign in (PhaseSign.PREFILL, PhaseSign.DECODE, PhaseSign.NO_ENGINE) and _counts(other_row, other, first)
    )


def _serves_nothing(call: EngineCall, found: Sequence[tuple[SignalRow, Finding]]) -> PhaseReading:
    """A benchmark, a training or a download that was given the labels of what it is for."""
    runs = f"{call.program.other} in container {call.container}"
    against = tuple(
        f"{finding.text} says {finding.sign} but there is only a {runs}; not tagged"
        for row, finding in found
        if row.confidence is Confidence.HIGH and finding.sign in (PhaseSign.PREFILL, PhaseSign.DECODE)
    )
    return PhaseReading(None, runs, Confidence.LOW, against, engine=False)


def _counts(row: SignalRow, other: Finding, first: Finding) -> bool:
    """A name that says otherwise is no news beside our label."""
    return other.sign is not first.sign and row.confidence is not Confidence.LOW


def _undecided(found: Sequence[tuple[SignalRow, Finding]], rules: Rules) -> PhaseReading:
    """Nothing tells the phase: either a field that could have told is open, or nothing separates the engine."""
    opened = next((finding for _, finding in found if finding.sign is PhaseSign.OPEN), None)
    if opened:
        return PhaseReading(None, opened.text)
    sure = Confidence.MEDIUM if rules.mixed_as else Confidence.LOW  # a rule file says what to make of it
    return PhaseReading(rules.mixed_as, found[0][1].text, sure, mixed=True)


def _decided(
    decided: Sequence[tuple[SignalRow, Finding]],
    found: Sequence[tuple[SignalRow, Finding]],
    calls: tuple[EngineCall, ...],
    rules: Rules,
) -> PhaseReading:
    row, first = decided[0]  # rows stand in the order of their confidence
    equal = [finding for other, finding in decided if other.confidence is row.confidence]
    if len({finding.sign for finding in equal}) > 1:
        given = ", ".join(dict.fromkeys(f"{finding.text} says {finding.sign}" for finding in equal))
        return PhaseReading(None, conflicts=(f"phase left open: {given}; set label {labels.PHASE}",))
    if first.sign is PhaseSign.NO_ENGINE:
        return PhaseReading(None, first.text, row.confidence, engine=False)
    if row.confidence is Confidence.LOW and _serves_prompts_in_chunks(found, calls):
        reported = f"phase left open: {first.text} says {first.sign}, but the engine serves both phases in chunks"
        return PhaseReading(None, conflicts=(f"{reported}; set label {labels.PHASE}",))
    against = dict.fromkeys(
        f"{first.text} says {first.sign} but {finding.text} says {finding.sign}; the {row.confidence} signal wins"
        for other, finding in decided
        if finding.sign is not first.sign and other.confidence is not Confidence.LOW
    )
    mixed = first.sign is PhaseSign.MIXED
    phase = rules.mixed_as if mixed else _phase(first.sign)
    return PhaseReading(phase, first.text, row.confidence, tuple(against), mixed)


def _serves_prompts_in_chunks(found: Sequence[tuple[SignalRow, Finding]], calls: tuple[EngineCall, ...]) -> bool:
    """An aggregated engine that interleaves prompt chunks with decoding is no half of a service, whatever its name."""
    if not any(finding.sign is PhaseSign.AGGREGATED for _, finding in found):
        return False
    return any(
        value.lower() not in ("false", "0")
        for call in calls
        for value in call.flags.get("--enable-chunked-prefill", ())
    )


def _phase(sign: PhaseSign) -> Phase | None:
    if sign is PhaseSign.PREFILL:
        return "prefill"
    return "decode" if sign is PhaseSign.DECODE else None
