"""What Volcano's extender plugin sends and what it understands: bytes to values, values to bytes, nothing else.

Rules of this file. (1) Only what an answer needs is decoded: of a node its name, of a task what names the pod, and the
pod. The other megabytes (whole nodes, every pod on them, vendor annotations) are skipped, so nothing in them can fail.
(2) `null` is Go's zero value, also where we read: it means absent. (3) Answers are small, their integers are integer
literals, and prioritize always has `nodeScore`: null there, like any error text, costs the task its place, even with
`ignorable: true`. (4) What is decoded is limited in number before it takes memory: nodes by count, a task by bytes.
It must never know the cluster or what a good answer is.

Shapes: volcano-sh/volcano pkg/scheduler/plugins/extender/argument.go; Go structs without tags keep their field names.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec

from topology.bad_input import BadInput
from topology.objects import Pod

T = TypeVar("T")
Body = bytes | bytearray

MAX_BODY_BYTES: Final = 512 * 2**20
"""Of one call, unless the setting says otherwise."""

MAX_NODES: Final = 2**16
"""Nodes in one call: more than the largest clusters have."""

MAX_TASK_BYTES: Final = 3 * 2**20
"""Of one task: its pod is an object of at most 1.5 MiB to the API server, and what Volcano adds is small."""

_CHUNK: Final = 1 << 20
_MANNERS: Final = "it must be the JSON that Volcano's extender plugin sends"


class TaskStatus(IntEnum):
    """Of a pod in Volcano's session, as far as its calls mean something here (volcano-sh/volcano pkg/scheduler/api)."""

    PENDING = 1  # deallocateFunc: the place was given back (a gang did not fit, or a dry run ended)
    ALLOCATED = 2  # allocateFunc: a place was taken on idle resources
    PIPELINED = 4  # allocateFunc: a place was taken that other pods are still leaving
    RUNNING = 32  # allocateFunc: an eviction was undone
    RELEASING = 64  # deallocateFunc: the pod is evicted from the node it runs on


class Task(msgspec.Struct, frozen=True, rename="pascal"):
    """A pod as Volcano sees it: `node_name` and `status` are of this moment in its session, not the API server's."""

    uid: str = msgspec.field(name="UID", default="")
    name: str = ""
    namespace: str = ""
    node_name: str = ""
    status: int = 0
    pod: Pod = Pod()


class _Allowance:
    """How many nodes the body that is decoded may still have. Decoding is one call without an await."""

    left = 0


class _NodeInfo(msgspec.Struct, frozen=True, rename="pascal"):
    name: str | None = None

    def __post_init__(self) -> None:
        """Ends the decoding at the limit: 16 MiB of `{},` are 5.6 million nodes."""
        _Allowance.left -= 1
        if _Allowance.left < 0:
            raise ValueError(f"at most {MAX_NODES} nodes in one call")


class _Prioritize(msgspec.Struct, frozen=True):
    task: msgspec.Raw = msgspec.Raw(b"null")
    nodes: tuple[_NodeInfo | None, ...] | None = None


class _Event(msgspec.Struct, frozen=True):
    task: msgspec.Raw = msgspec.Raw(b"null")


class _PlainEvent(msgspec.Struct, frozen=True):
    task: Task


class _Anything(msgspec.Struct, frozen=True):
    """Any JSON object, looked at for syntax alone."""


@dataclass(frozen=True, slots=True)
class Prioritize:
    """Score these nodes for this task. Names are exactly as sent, in the order sent; nodes without one are left out."""

    task: Task
    nodes: tuple[str, ...]


class _Scores(msgspec.Struct, frozen=True, rename="camel"):
    node_score: Mapping[str, float]
    error_message: str = ""


class _EventAnswer(msgspec.Struct, frozen=True, rename="camel"):
    error_message: str = ""


_PRIORITIZE = msgspec.json.Decoder(_Prioritize)
_EVENT = msgspec.json.Decoder(_Event)
_PLAIN_EVENT = msgspec.json.Decoder(_PlainEvent)
_TASK = msgspec.json.Decoder(Task)
_ANYTHING = msgspec.json.Decoder(_Anything)
_ENCODER = msgspec.json.Encoder()


# --- requests ----------------------------------------------------------------------------------


def decode_prioritize(body: Body) -> Prioritize:
    """A prioritize call. Raises BadInput for a body that is none."""
    _Allowance.left = MAX_NODES
    call = _decoded(_PRIORITIZE, body)
    names = tuple(node.name for node in call.nodes or () if node is not None and node.name)
    return Prioritize(task=_task(call.task), nodes=names)


def decode_event(body: Body) -> Task:
    """The task of an allocateFunc or deallocateFunc call. Raises BadInput for a body that is none."""
    if len(body) <= MAX_TASK_BYTES and body.isascii():
        with suppress(msgspec.DecodeError, RecursionError):  # read part by part below, and told what is wrong
            return _PLAIN_EVENT.decode(body).task
    return _task(_decoded(_EVENT, body).task)


def check_object(body: Body) -> None:
    """For verbs whose answer depends on nothing in the body. Raises BadInput unless it is a JSON object."""
    _decoded(_ANYTHING, body)


def _decoded(decoder: msgspec.json.Decoder[T], body: Body) -> T:
    try:
        _check_utf8(body)
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadInput("body", error.reason, f"it must be UTF-8; {_MANNERS}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput("body", _start_of(body), f"{_MANNERS}: {error}") from None


def _check_utf8(body: Body) -> None:
    """msgspec looks only at the strings it keeps. Chunk by chunk: a decoded copy would double the memory."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(view), _CHUNK):
        decoder.decode(view[start : start + _CHUNK], final=start + _CHUNK >= len(view))


def _task(raw: msgspec.Raw) -> Task:
    if len(memoryview(raw)) > MAX_TASK_BYTES:
        raise BadInput("task", _start_of(raw), f"{_MANNERS}: at most {MAX_TASK_BYTES} bytes")
    try:
        return _TASK.decode(raw)
    except msgspec.ValidationError:
        return _task_without_nulls(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput("task", _start_of(raw), f"{_MANNERS}: {error}") from None


def _task_without_nulls(raw: msgspec.Raw) -> Task:
    """Go writes null for a nil list, map or pointer (`"containers": null`); to its own decoder that means absent."""
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(raw)), Task)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput("task", _start_of(raw), f"{_MANNERS}: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _start_of(body: Body | msgspec.Raw) -> str:
    return bytes(memoryview(body)[:40]).decode(errors="replace")


# --- answers -----------------------------------------------------------------------------------


def scores(node_score: Mapping[str, float]) -> bytes:
    """The answer to prioritize. Scores must be finite: NaN is not JSON and would void every plugin's scores."""
    return _ENCODER.encode(_Scores(node_score))


def event(refusal: str = "") -> bytes:
    """The answer to allocateFunc and deallocateFunc; any text refuses the place and sends the gang back.

    Without percent signs: the text goes through Go's formatting on its way to the log.
    """
    return _ENCODER.encode(_EventAnswer(refusal.replace("%", "")))


NOTHING: Final = b""
"""For the session verbs: Volcano leaves their body unread, and an unread body costs a new connection every time."""

FITS: Final = b'{"status":"","code":0}'
"""predicate: text in `status` would rule the node out."""

ABSTAIN: Final = b'{"status":0}'
"""jobEnqueueable: neither for nor against."""

READY: Final = b'{"status":true}'
"""jobReady: with `ignorable: true` an error would mean never ready, so this answer must not fail."""

NO_VICTIMS: Final = b'{"status":0,"victims":[]}'
"""preemptable and reclaimable: status 0 leaves the choice to the other plugins."""

NOT_OVERUSED: Final = b'{"overused":false}'
"""queueOverused."""
