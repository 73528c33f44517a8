"""Bytes of Volcano to values and back: what is read, what is skipped, what is refused in one sentence."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from scheduler.extender import wire
from tests.scheduler.volcano import body_of, node_info_json, node_json, pod_json, prioritize_body, task_json
from topology.bad_input import BadInput
from topology.labels import PHASE

POD = pod_json("d-0", "decode")


def test_a_task_and_the_names_are_read_and_nothing_else() -> None:
    call = wire.decode_prioritize(prioritize_body(POD, [node_json("b"), node_json("a.dc.example")]))
    assert call.nodes == ("b", "a.dc.example")
    assert (call.task.uid, call.task.name, call.task.namespace) == ("uid-d-0", "d-0", "default")
    assert call.task.pod.metadata.label(PHASE) == "decode"
    assert call.task.pod.spec.containers[0].resources.limits == {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}


def test_an_event_says_where_and_how() -> None:
    task = wire.decode_event(bytearray(body_of(task=task_json(POD, node="n1", status=4))))
    assert (task.node_name, task.status) == ("n1", wire.TaskStatus.PIPELINED)


@pytest.mark.parametrize(
    "node",
    [
        {"Name": "n1", "Node": None, "Tasks": None, "Idle": None, "Others": None},
        {"Name": "n1", "Node": "not a node", "Tasks": 7, "Idle": [[]]},
        {"Name": "n1", "name": 5, "Node": {"metadata": {"annotations": {"isochrone.dev/topology": [0, 8, "NV18"]}}}},
        {"Name": "n1", "ImageStates": {"x": 1e308}, "Generation": 2**80, "": ""},
    ],
)
def test_what_is_not_read_cannot_fail(node: object) -> None:
    body = body_of(task={**task_json(POD), "Resreq": "?", "NumaInfo": None, "Priority": "high"}, nodes=[node], more=[])
    assert wire.decode_prioritize(body).nodes == ("n1",)


def test_null_is_gos_zero_value() -> None:
    pod = {
        "metadata": {"name": "p", "labels": None, "annotations": None, "creationTimestamp": None, "uid": None},
        "spec": {"containers": None, "initContainers": None, "tolerations": [None], "hostNetwork": None},
        "status": None,
    }
    body = body_of(task={**task_json(POD), "Pod": pod, "NodeName": None, "Status": None}, nodes=None)
    call = wire.decode_prioritize(body)
    assert (call.nodes, call.task.node_name, call.task.status) == ((), "", 0)
    assert call.task.pod.spec.containers == ()
    assert wire.decode_prioritize(body_of(task={**task_json(POD), "Pod": None}, nodes=[None, {}, {"Name": None}])) == (
        wire.Prioritize(wire.Task(uid="uid-d-0", name="d-0", namespace="default", status=1), ())
    )


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"nonsense", "malformed"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "task is 'null'"),
        (b'{"task":[]}', "Expected `object`, got `array`"),
        (b'{"task":{"UID":5},"nodes":[]}', "$.UID"),
        (b'{"task":{"UID":"u"},"nodes":[{"Name":5}]}', "Expected `str | null`, got `int`"),
        (b'{"task":{"UID":"u","Pod":{"metadata":{"labels":{"a":1}}}}}', "Expected `str`, got `int`"),
        (b'{"task":{"UID":"u"},"nodes":[],"x":"\xff"}', "UTF-8"),
        ('{"task":{"UID":"u"}}'.encode("utf-16"), "UTF-8"),
        (b'{"task":{"UID":"u"},"nodes":[]} trailing', "trailing"),
        (b'{"task":{"UID":"u"},"x":NaN}', "malformed"),
        (b'{"x":' + b"[" * 200_000, "recursion"),
        (b'{"task":{"UID":5,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}}", "recursion"),
    ],
)
def test_a_body_that_is_none_gets_one_sentence(body: bytes, value: str) -> None:
    with pytest.raises(BadInput) as bad:
        wire.decode_prioritize(body)
    text = str(bad.value)
    assert value in text
    assert "\n" not in text
    assert len(text) < 300


def test_utf8_is_checked_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_CHUNK", 3)
    whole = '{"task":{"UID":"ünïcödé-€-🚀"}}'.encode()
    assert wire.decode_event(whole).uid == "ünïcödé-€-🚀"
    for end in range(1, 4):
        with pytest.raises(BadInput):
            wire.check_object(whole[: whole.index("🚀".encode()) + end])


def test_any_object_will_do_where_nothing_is_read() -> None:
    wire.check_object(b'{"job":{"Tasks":{}}}')
    for body in (b"", b"[]", b"7", b'{"a"'):
        with pytest.raises(BadInput):
            wire.check_object(body)


def test_answers_are_what_go_decodes() -> None:
    assert json.loads(wire.scores({"a": 1000.0, "b": 0.001})) == {
        "nodeScore": {"a": 1000.0, "b": 0.001},
        "errorMessage": "",
    }
    assert wire.scores({}) == b'{"nodeScore":{},"errorMessage":""}'
    assert wire.event() == b'{"errorMessage":""}'
    assert wire.event("100%d of it") == b'{"errorMessage":"100d of it"}'
    assert (wire.FITS, wire.ABSTAIN, wire.READY) == (
        b'{"status":"","code":0}',
        b'{"status":0}',
        b'{"status":true}',
    )
    assert (wire.NO_VICTIMS, wire.NOT_OVERUSED) == (b'{"status":0,"victims":[]}', b'{"overused":false}')


def test_the_rest_of_a_node_is_skipped_quickly_enough_to_be_sent_at_all() -> None:
    nodes = [node_info_json(node_json(f"n{i}"), tasks=3, padding=1000) for i in range(50)]
    call = wire.decode_prioritize(body_of(task=task_json(POD), nodes=nodes))
    assert call.nodes == tuple(f"n{i}" for i in range(50))


def test_nodes_are_limited_in_number_before_they_take_memory() -> None:
    body = b'{"nodes":[' + b"{}," * 2**20 + b"{}]}"
    tracemalloc.start()
    with pytest.raises(BadInput, match=rf"at most {wire.MAX_NODES} nodes in one call"):
        wire.decode_prioritize(body)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < wire.MAX_NODES * 100
    full = b'{"task":{},"nodes":[' + b"{}," * (wire.MAX_NODES - 1) + b'{"Name":"n1"}]}'
    assert wire.decode_prioritize(full).nodes == ("n1",)
    assert wire.decode_prioritize(full).nodes == ("n1",), "each call has its own limit"


@pytest.mark.parametrize("decode", [wire.decode_prioritize, wire.decode_event])
def test_a_task_is_limited_in_bytes(decode: Callable[[bytes], object]) -> None:
    containers = b"{}," * (wire.MAX_TASK_BYTES // 3) + b"{}"
    with pytest.raises(BadInput, match=rf"at most {wire.MAX_TASK_BYTES} bytes"):
        decode(b'{"task":{"Pod":{"spec":{"containers":[' + containers + b"]}}}}")
