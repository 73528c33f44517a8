"""Facts to messages and back, by the fields' names and types; what a message may hold is checked here.

One rule for all of agent.proto: a message is the dataclass of topology/facts/report.py whose fields have its fields'
names (_RENAMED where they differ), a repeated field is a tuple, a message of two fields may be a pair, an enum's value
is the member whose name it ends with. Bounds are declared at the dataclass's field, and a repeated field without one
is an error at import: a message within the size limit could still unfold into hundreds of megabytes of small objects.
It must never decide what facts mean.

Public sources: protobuf's Python API (descriptors, ListFields).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import report as f

_LONGEST: Final = 512  # of a string, in characters
_RENAMED: Final = {
    (f.NodeFacts, "state"): "node",
    (f.NodeChange, "state"): "node",
    (f.NvLink, "active"): "state",
}
_INTERNED: Final = (f.NvLink,)  # thousands of nodes have the same few hundred: one object each
Convert = Callable[[Any], Any]


def full_message(facts: f.NodeFacts) -> wire.Full:
    """A full report."""
    return wire.Full(**_FULL.write(facts))


def change_message(change: f.NodeChange) -> wire.Delta:
    """What changed since the report before."""
    return wire.Delta(**_CHANGE.write(change))


def read_full(message: wire.Full) -> f.NodeFacts:
    """The facts of a full report. Raises BadInput naming the field that is out of bounds."""
    facts: f.NodeFacts = _FULL.read(message)
    _check_reach(facts.reach)
    return facts


def read_change(message: wire.Delta) -> f.NodeChange:
    """What changed. Raises BadInput naming the field that is out of bounds."""
    change: f.NodeChange = _CHANGE.read(message)
    _check_reach(change.reach)
    return change


def _check_reach(samples: Sequence[f.ReachSample]) -> None:
    """Refuses what is no measurement (negative, not a number, no count)."""
    for m in samples:
        if not (0 <= m.p50_us <= m.p99_us <= m.p999_us < float("inf")) or not m.count or not m.size_bytes:
            times = f"{(m.p50_us, m.p99_us, m.p999_us)} us of {m.count}"
            raise BadInput("reach", times, "use 0 <= p50 <= p99 <= p99.9, a count and a size above 0")


# --- one dataclass and its message ---------------------------------------------------------------


class _Codec:
    """How a dataclass and its message become each other."""

    def __init__(self, cls: type, message: Descriptor) -> None:
        self._cls, hints = cls, get_type_hints(cls, include_extras=True)
        self._reads: dict[int, tuple[str, Convert]] = {}  # by field number
        self._writes: list[tuple[str, str, Convert]] = []
        self._zeros: list[tuple[str, Convert, Any]] = []  # a field without presence that is not sent is its zero
        self._required: list[tuple[str, str]] = []
        for own in dataclasses.fields(cls):
            field = message.fields_by_name[_RENAMED.get((cls, own.name), own.name)]
            read, write = _field(hints[own.name], field)
            self._reads[field.number] = own.name, read
            self._writes.append((own.name, field.name, write))
            if not field.has_presence:
                self._zeros.append((own.name, read, () if field.is_repeated else field.default_value))
            elif own.default is dataclasses.MISSING:
                self._required.append((own.name, field.name))

    def read(self, message: Any) -> Any:
        """The dataclass. Raises BadInput; fields that are not known are skipped."""
        given: dict[str, Any] = {}
        for field, value in message.ListFields():
            if (known := self._reads.get(field.number)) is not None:
                given[known[0]] = known[1](value)
        for name, read, zero in self._zeros:
            if name not in given:
                given[name] = read(zero)
        for name, shown in self._required:
            if name not in given:
                raise BadInput(shown, "missing", "a report names it")
        return self._cls(**given)

    def write(self, value: Any) -> dict[str, Any]:
        """What makes the message, as keyword arguments; what is not known is left out."""
        found = ((name, write, getattr(value, own)) for own, name, write in self._writes)
        return {name: write(given) for name, write, given in found if given is not None}


@cache
def _codec(cls: type, message: Descriptor) -> _Codec:
    return _Codec(cls, message)


# --- one field -----------------------------------------------------------------------------------


def _field(hint: Any, field: FieldDescriptor) -> tuple[Convert, Convert]:
    """How a field is read and written, by its type: bounds first, then `X | None` as X, then what X is."""
    bounds: tuple[Any, ...] = ()
    if get_origin(hint) in (types.UnionType, Union):
        [hint] = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) is Annotated:
        hint, *found = get_args(hint)
        bounds = tuple(found)
    if field.is_repeated:
        [most] = bounds
        element = hint if get_args(hint)[1:] != (...,) else get_args(hint)[0]
        return _repeated(field.name, most, *_one(element, field))
    if bounds:
        return _number(field.name, bounds[0]), _same
    return _one(hint, field)


def _one(hint: Any, field: FieldDescriptor) -> tuple[Convert, Convert]:
    """One value: a message, an enum, a text, or a number, of which the message itself keeps the range."""
    if field.message_type is not None and get_origin(hint) is tuple:
        return _pair(hint, field.message_type)
    if field.message_type is not None:
        codec = _codec(hint, field.message_type)
        return (_shared(codec, field.message_type) if hint in _INTERNED else codec.read), codec.write
    if field.enum_type is not None and hint is bool:
        yes, no = (number for number in sorted(field.enum_type.values_by_number, reverse=True)[:2])
        return lambda number: number == yes, lambda value: yes if value else no
    if field.enum_type is not None:
        return _member(hint, field, field.enum_type)
    return (_text(field.name) if hint is str else _same), _same


def _same(value: Any) -> Any:
    return value


def _repeated(name: str, most: f.Most, read: Convert, write: Convert) -> tuple[Convert, Convert]:
    def read_all(values: Sequence[Any]) -> tuple[Any, ...]:
        if len(values) > most.count:
            raise BadInput(name, f"{len(values)} entries", f"at most {most.count} are taken")
        found = tuple(map(read, values))
        return _by_key(name, most.key, found) if most.key else found

    return read_all, lambda values: [write(value) for value in values]


def _by_key(name: str, key: str, values: Sequence[Any]) -> tuple[Any, ...]:
    found = {getattr(value, key): value for value in values}
    if len(found) != len(values):
        raise BadInput(name, f"{len(values)} entries", f"each {key} may come once")
    if "" in found:
        raise BadInput(f"{name}.{key}", "", "it must not be empty")
    return tuple(found[each] for each in sorted(found))


def _number(name: str, below: f.Below) -> Convert:
    def read(value: float) -> float:
        if not 0 <= value < below.limit:
            raise BadInput(name, value, f"use {below.meaning}")
        return value

    return read


def _pair(hint: Any, message: Descriptor) -> tuple[Convert, Convert]:
    """A message's fields in the order of their numbers, as a tuple."""
    parts = [(field.name, *_field(each, field)) for each, field in zip(get_args(hint), message.fields, strict=True)]

    def read(given: Any) -> tuple[Any, ...]:
        return tuple(read(getattr(given, name)) for name, read, _ in parts)

    def write(values: tuple[Any, ...]) -> dict[str, Any]:
        return {name: write(value) for (name, _, write), value in zip(parts, values, strict=True)}

    return read, write


def _member(cls: type[StrEnum], field: FieldDescriptor, enum: EnumDescriptor) -> tuple[Convert, Convert]:
    numbers = {member: _number_of(member, enum) for member in cls}
    members = {number: member for member, number in numbers.items()}
    allowed = f"use one of {', '.join(map(str, members))}"

    def read(number: int) -> StrEnum | None:
        if number not in members and field.has_presence:
            return None  # of a newer agent: not known here
        if number not in members:
            raise BadInput(field.name, number, allowed)
        return members[number]

    return read, numbers.__getitem__


def _number_of(member: StrEnum, enum: EnumDescriptor) -> int:
    [found] = [
        value.number for value in enum.values if value.name == member.name or value.name.endswith(f"_{member.name}")
    ]
    return int(found)


def _text(name: str) -> Convert:
    def read(value: str) -> str:
        if len(value) > _LONGEST:
            raise BadInput(name, value, f"at most {_LONGEST} characters are taken")
        return _interned(value)

    return read


@lru_cache(maxsize=2**16)
def _interned(text: str) -> str:
    """The same text as one object: a GPU's uuid is in every pair and at every network card."""
    return text


def _shared(codec: _Codec, message: Descriptor) -> Convert:
    """Reads a message once for the same bytes."""
    cls = GetMessageClass(message)

    @lru_cache(maxsize=4096)
    def read(given: bytes) -> Any:
        return codec.read(cls.FromString(given))

    return lambda given: read(given.SerializeToString())


_FULL: Final = _codec(f.NodeFacts, wire.Full.DESCRIPTOR)
_CHANGE: Final = _codec(f.NodeChange, wire.Delta.DESCRIPTOR)
