"""One line per way of saying a phase; what nobody can know stays open; garbage never raises."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.recognition.signals import ROWS, Confidence, read_phase
from tests.admission.pods import CONSUMER, PRODUCER, decoded, raw_pod


def config(role: str, **more: Any) -> str:
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": role, **more})


def multi(*roles: str, depth: int = 1) -> str:
    inner: list[Any] = [{"kv_connector": "X", "kv_role": role} for role in roles]
    for _ in range(depth):
        inner = [{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": inner}}]
    return json.dumps(inner[0])


LABELS: list[tuple[dict[str, str], str | None, str]] = [
    ({"isochrone.dev/phase": "prefill"}, "prefill", "label isochrone.dev/phase"),
    ({"isochrone.dev/phase": "decode"}, "decode", "label isochrone.dev/phase"),
    ({"modelserving.volcano.sh/role": "prefill"}, "prefill", "Kthena role prefill"),
    ({"modelserving.volcano.sh/role": "Decode"}, "decode", "Kthena role Decode"),
    ({"modelserving.volcano.sh/role": "p"}, "prefill", "Kthena role p"),
    ({"modelserving.volcano.sh/role": "d"}, "decode", "Kthena role d"),
    ({"modelserving.volcano.sh/role": "router"}, None, "Kthena role router"),
    ({"modelserving.volcano.sh/role": "serve"}, None, ""),
    ({"disaggregatedset.x-k8s.io/role": "prefill"}, "prefill", "DisaggregatedSet role prefill"),
    ({"disaggregatedset.x-k8s.io/role": "decode"}, "decode", "DisaggregatedSet role decode"),
    ({"disaggregatedset.x-k8s.io/role": "p"}, None, ""),
    ({"disaggregatedset.x-k8s.io/role": "encode"}, None, "DisaggregatedSet role encode"),
    ({"grove.io/podclique": "chat-0-prefill"}, "prefill", "Grove clique prefill"),
    ({"grove.io/podclique": "chat-0-decode-leader"}, "decode", "Grove clique decode"),
    ({"grove.io/podclique": "chat-0-decode-worker"}, "decode", "Grove clique decode"),
    ({"grove.io/podclique": "prefill-0-worker"}, None, ""),
    ({"grove.io/podclique": "decode-0-frontend"}, None, "Grove clique frontend"),
    ({"rbg.workloads.x-k8s.io/role-name": "prefill"}, "prefill", "RBG role prefill"),
    ({"rbg.workloads.x-k8s.io/role-name": "router"}, None, "RBG role router"),
    ({"rolebasedgroup.workloads.x-k8s.io/role": "decode"}, "decode", "RBG role decode"),
    ({"role": "prefill"}, None, "label role prefill"),
    ({"role": "prefill", "llm-d.ai/model": "m"}, "prefill", "label role prefill"),
    ({"llm-d.ai/role": "decode"}, "decode", "llm-d role decode"),
    ({"nvidia.com/dynamo-component-type": "decode"}, "decode", "Dynamo component-type decode"),
    ({"role-name": "decode", "roleset-name": "r"}, "decode", "AIBrix role decode"),
    ({"role-name": "decode"}, None, ""),
    ({"app": "web"}, None, ""),
]


@pytest.mark.parametrize(("labels", "phase", "signal"), LABELS)
def test_labels(labels: dict[str, str], phase: str | None, signal: str) -> None:
    reading = read_phase(decoded(raw_pod(labels)))
    assert (reading.phase, reading.signal, reading.conflicts) == (phase, signal, ())


def test_mixed_is_said_and_has_no_phase() -> None:
    reading = read_phase(decoded(raw_pod({"rbg.workloads.x-k8s.io/role-name": "prefill-decode"})))
    assert reading.phase is None
    assert reading.mixed


SCRIPT = """
set -e  # not --disaggregation-mode prefill
python3 -m vllm.entrypoints.openai.api_server \\
  --model /models/Qwen3-8B \\
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' \\
  --max-model-len 16384
"""
HIDDEN = "vLLM --kv-transfer-config"
VLLM: list[tuple[list[str] | None, list[str], str | None, str]] = [
    (["vllm", "serve"], ["m", "--kv-transfer-config", config("kv_producer")], "prefill", "vLLM kv_role kv_producer"),
    (["vllm", "serve"], ["m", "--kv-transfer-config=" + config("kv_consumer")], "decode", "vLLM kv_role kv_consumer"),
    (None, ["--kv_transfer_config", config("kv_producer")], "prefill", "vLLM kv_role kv_producer"),
    (None, ["--kv-transfer-config.kv_role", "kv_producer"], "prefill", "vLLM kv_role kv_producer"),
    (None, ["--kv-transfer-config.kv_role=kv_consumer"], "decode", "vLLM kv_role kv_consumer"),
    (None, ["--kv-transfer-config", config("kv_both")], None, "vLLM kv_role kv_both"),
    (
        None,
        ["--kv-transfer-config", config("sideways")],
        None,
        "vLLM kv_role 'sideways' (it takes kv_producer, kv_consumer or kv_both)",
    ),
    (None, ["--kv-transfer-config", multi("kv_producer", "kv_both")], "prefill", "vLLM kv_role kv_producer"),
    (None, ["--kv-transfer-config", multi("kv_consumer", depth=3)], "decode", "vLLM kv_role kv_consumer"),
    (None, ["--kv-transfer-config", multi("kv_consumer", depth=20)], None, HIDDEN),
    (["sh", "-c"], [SCRIPT], "decode", "vLLM kv_role kv_consumer"),
    (["/bin/bash", "-lc", SCRIPT], [], "decode", "vLLM kv_role kv_consumer"),
    (["bash", "-euxc"], [SCRIPT], "decode", "vLLM kv_role kv_consumer"),
    (None, ["-c", SCRIPT], "decode", "vLLM kv_role kv_consumer"),
    (None, [SCRIPT], "decode", "vLLM kv_role kv_consumer"),
    (
        ["sh", "-c"],
        ['exec vllm serve m --kv-transfer-config "{\\"kv_role\\":\\"kv_producer\\"}" && true'],
        "prefill",
        "vLLM kv_role kv_producer",
    ),
    (["sh", "-c"], ["vllm serve m --kv-transfer-config; echo kv_producer"], None, "vLLM without disaggregation"),
    (
        ["sh", "-c"],
        ["# --kv-transfer-config '" + config("kv_producer") + "'\nvllm serve m"],
        None,
        "vLLM without disaggregation",
    ),
    (None, ["--kv-transfer-config", '{"kv_role":'], None, HIDDEN),
    (None, ["--kv-transfer-config", "[" * 30_000], None, HIDDEN),
    (None, ["--kv-transfer-config", '{"kv_role": 7, "kv_connector_extra_config": {"connectors": 1}}'], None, HIDDEN),
    (None, ["--kv-transfer-config"], None, ""),
]


@pytest.mark.parametrize(("command", "args", "phase", "signal"), VLLM)
def test_vllm(command: list[str] | None, args: list[str], phase: str | None, signal: str) -> None:
    reading = read_phase(decoded(raw_pod(command=command, args=args)))
    assert (reading.phase, reading.signal, reading.conflicts) == (phase, signal, ())


SGLANG: list[tuple[list[str], str | None]] = [
    (["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "prefill"], "prefill"),
    (["python3", "-m", "sglang.launch_server", "--disaggregation-mode=decode"], "decode"),
    (["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "null"], None),
    (["sh", "-c", "python3 -m sglang.launch_server --disaggregation-mode decode | tee log"], "decode"),
    (["python3", "-m", "sglang_router.launch_router", "--disaggregation-mode", "decode"], None),
    (["python3", "-m", "x", "--pd-disaggregation", "--prefill", "http://p", "--disaggregation-mode", "decode"], None),
    (["python3", "-m", "dynamo.sglang", "--disaggregation-mode", "decode"], "decode"),
]


@pytest.mark.parametrize(("command", "phase"), SGLANG)
def test_sglang(command: list[str], phase: str | None) -> None:
    assert read_phase(decoded(raw_pod(command=command))).phase == phase


def test_variables_with_a_plain_value_are_put_in_and_others_stay_unknown() -> None:
    def phase(args: list[str], command: list[str] | None = None) -> str | None:
        return read_phase(decoded(raw_pod(args=args, command=command, env={"MODE": "decode"}))).phase

    assert phase(["--disaggregation-mode", "$(MODE)"]) == "decode"
    assert phase(["--disaggregation-mode", "$(OTHER)"]) is None
    assert phase(["sglang --disaggregation-mode $MODE"], ["sh", "-c"]) == "decode"
    assert phase(['sglang --disaggregation-mode "${MODE}"'], ["sh", "-c"]) == "decode"
    assert phase(["sglang --disaggregation-mode '$MODE'"], ["sh", "-c"]) is None
    assert phase(["if x; then MODE=prefill; fi; sglang --disaggregation-mode $MODE"], ["sh", "-c"]) is None


def test_the_surer_signal_wins_and_it_is_told() -> None:
    reading = read_phase(decoded(raw_pod({"modelserving.volcano.sh/role": "prefill"}, args=CONSUMER)))
    assert (reading.phase, reading.confidence) == ("prefill", Confidence.HIGH)
    assert reading.conflicts == (
        "Kthena role prefill says prefill but vLLM kv_role kv_consumer says decode; the high signal wins",
    )


def test_signals_that_are_equally_sure_leave_the_phase_open() -> None:
    reading = read_phase(
        decoded(raw_pod({"modelserving.volcano.sh/role": "prefill", "llm-d.ai/role": "decode"}, args=CONSUMER))
    )
    assert reading.phase is None
    assert reading.conflicts == (
        "phase left open: Kthena role prefill says prefill, llm-d role decode says decode; "
        "set label isochrone.dev/phase",
    )


def test_one_row_can_contradict_itself() -> None:
    raw = raw_pod(args=PRODUCER)
    raw["spec"]["containers"].append({"name": "other", "args": CONSUMER})
    assert read_phase(decoded(raw)).phase is None


def test_our_label_wins_and_says_over_what() -> None:
    reading = read_phase(decoded(raw_pod({"isochrone.dev/phase": "decode"}, args=PRODUCER)))
    assert (reading.phase, reading.confidence) == ("decode", Confidence.EXPLICIT)
    assert reading.conflicts == (
        "isochrone.dev/phase is decode but vLLM kv_role kv_producer says prefill; the label wins",
    )


def test_a_wrong_label_of_ours_is_never_replaced_by_a_guess() -> None:
    reading = read_phase(decoded(raw_pod({"isochrone.dev/phase": "decoder"}, args=PRODUCER)))
    assert reading.phase is None
    assert reading.conflicts == ('isochrone.dev/phase is \'decoder\'; use "prefill" or "decode"',)


def test_the_highest_row_is_named_when_rows_agree() -> None:
    reading = read_phase(decoded(raw_pod({"rbg.workloads.x-k8s.io/role-name": "prefill"}, args=PRODUCER)))
    assert (reading.signal, reading.confidence) == ("RBG role prefill", Confidence.HIGH)


def test_a_role_that_is_no_engine_silences_the_arguments() -> None:
    reading = read_phase(decoded(raw_pod({"rbg.workloads.x-k8s.io/role-name": "router"}, args=PRODUCER)))
    assert (reading.phase, reading.engine, reading.conflicts) == (None, False, ())


def test_a_router_beside_the_engine_is_not_read() -> None:
    raw = raw_pod(args=["--disaggregation-mode", "decode"])
    raw["spec"]["containers"].insert(
        0, {"name": "proxy", "args": ["--pd-disaggregation", "--disaggregation-mode", "prefill"]}
    )
    assert read_phase(decoded(raw)).phase == "decode"


def test_init_containers_and_sidecars_are_no_engines() -> None:
    raw = raw_pod()
    raw["spec"]["initContainers"] = [{"name": "side", "args": CONSUMER, "restartPolicy": "Always"}]
    assert read_phase(decoded(raw)).phase is None


def test_ranks_are_in_order_and_every_row_has_a_source() -> None:
    assert [row.rank for row in ROWS] == sorted({row.rank for row in ROWS})
    assert all(row.source and row.where and row.yields for row in ROWS)


WORDS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["--kv-transfer-config", "--disaggregation-mode", "sh", "-c", "vllm serve", "$(X)", "'", '"', "\\", "#"]
    ),
)


@given(command=st.lists(WORDS, max_size=6), args=st.lists(WORDS, max_size=6), script=st.text(max_size=200))
def test_garbage_never_raises(command: list[str], args: list[str], script: str) -> None:
    read_phase(decoded(raw_pod(command=command, args=args, env={"X": "y"})))
    read_phase(decoded(raw_pod(command=["sh", "-c"], args=[script, *args])))


@pytest.mark.parametrize(
    "text",
    [
        "'" * 1_000_000,
        '"\\' * 500_000,
        "\\" * 1_000_000,
        "a" * 1_000_000,
        "--a " * 250_000,
        "A=" * 500_000,
        '"a"' * 300_000,
    ],
)
def test_huge_arguments_cost_little(text: str) -> None:
    pod = decoded(raw_pod(command=["sh", "-c"], args=[text] * 3))
    started_s = time.process_time()
    read_phase(pod)
    assert time.process_time() - started_s < 10.0  # it takes a hundredth; a pair of nested loops takes hours


@pytest.mark.parametrize(
    "command",
    [
        ["$(X)" * 8_000],
        ["sh", "-c", "run " + "$X" * 16_000],
        ["sh", "-c", "run " + "$X " * 16_000],
        ["sh", "-c", 'X="$X $X"; ' * 1_000 + "run $X"],
        ["sh", "-c", "sh -c 'sh -c \"$X$X$X\"'; " * 1_000],
    ],
)
def test_short_words_that_stand_for_long_values_take_little_memory(command: list[str]) -> None:
    """Written out, the values would be gigabytes."""
    pod = decoded(raw_pod(command=command, env={"X": "x" * 200_000}))
    tracemalloc.start()
    try:
        read_phase(pod)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()
