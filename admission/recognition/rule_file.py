"""The rule file: rows that a cluster's administrators add to the table of signals, or turn off in it.

Text in, the table in use out. Bad input is one sentence that names the field, and changes nothing. It must never know
where the file is or when it changes.

    disable: ["plain label"]        # rows by their names in docs/recognition.md
    mixed: leave                    # what a pod that serves both phases is tagged as: leave, prefill or decode
    rules:
      - name: stage label
        label: acme.example/stage   # or annotation:, variable:, argument:
        values: {first: prefill, second: decode, all: mixed, front: none}
        confidence: high            # high, medium or low: among equals a rule stands before the built-in rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from admission.recognition.command_line import EngineCall
from admission.recognition.evidence import Confidence, Finding, Lookup, PhaseSign, SignalRow
from admission.recognition.signals import BUILT_IN, ROWS, Rules
from topology.bad_input import BadInput
from topology.objects import Pod

MAX_BYTES: Final = 256 * 1024
_SIGNS: Final = {
    "prefill": PhaseSign.PREFILL,
    "decode": PhaseSign.DECODE,
    "mixed": PhaseSign.MIXED,
    "none": PhaseSign.NO_ENGINE,
}
_FIRST: Final = {"high": 1, "medium": 8, "low": 13}  # where each kind begins in the table
_OWN: Final = 0  # our own label cannot be turned off
_WHERE: Final = ("label", "annotation", "variable", "argument")

_Word = Annotated[str, Field(min_length=1, max_length=317)]


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=63)]
    label: _Word | None = None
    annotation: _Word | None = None
    variable: _Word | None = None
    argument: _Word | None = None
    values: Annotated[dict[_Word, Literal["prefill", "decode", "mixed", "none"]], Field(min_length=1, max_length=64)]
    confidence: Literal["high", "medium", "low"] = "high"

    @model_validator(mode="after")
    def _one_place(self) -> _Rule:
        given = [where for where in _WHERE if getattr(self, where) is not None]
        if len(given) != 1:
            raise PydanticCustomError("places", " and ".join(given) or "nowhere")
        return self


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    disable: Annotated[list[str], Field(max_length=64)] = []
    mixed: Literal["leave", "prefill", "decode"] = "leave"
    rules: Annotated[list[_Rule], Field(max_length=200)] = []


def read_rules(text: str, file: str) -> Rules:
    """The table with the file's rows in it. Raises BadInput. An empty text is the built-in table."""
    if len(text) > MAX_BYTES:
        raise BadInput(file, f"{len(text)} characters", f"at most {MAX_BYTES} are read")
    loaded = _loaded(text, file)
    if loaded is None:
        return BUILT_IN
    try:
        given = _RuleFile.model_validate(loaded)
    except ValidationError as error:
        raise _refused(file, error.errors(include_url=False)[0]) from None
    names = {row.name for row in ROWS if row.rank != _OWN}
    for name in given.disable:
        if name not in names:
            known = ", ".join(f'"{each}"' for each in sorted(names))  # some hold commas
            raise BadInput(f"{file}: disable", name, f"use the name of a row: {known}")
    rows = [row for row in ROWS if row.name not in given.disable] + [_row(rule) for rule in given.rules]
    # Rows of equal rank keep this order: the file's before the built-in one.
    rows.sort(key=lambda row: (row.rank, row in ROWS))
    return Rules(tuple(rows), None if given.mixed == "leave" else given.mixed)


def _loaded(text: str, file: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}" if error.problem_mark else "a line"
        raise BadInput(file, at, f"it must be YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(file, "not readable", f"it must be YAML: {str(error).splitlines()[0]}") from None


def _refused(file: str, error: ErrorDetails) -> BadInput:
    """pydantic's first error as our sentence: where, what stands there, what may stand there."""
    inside = next((part for part in error["loc"] if part in _RuleFile.model_fields), "")
    kind, given = error["type"], error["input"]
    loc = error["loc"][:-1] if kind == "missing" else error["loc"]
    at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc if part != "[key]").lstrip(".")
    field = f"{file}: {at}" if at else file
    keys = f"name, values, confidence and one of {', '.join(_WHERE)}" if inside == "rules" else "disable, mixed, rules"
    if kind == "missing":
        return BadInput(f"{field}.{error['loc'][-1]}", "missing", f"a rule has {keys}")
    if kind == "places":
        return BadInput(f"{field}: where it looks", error["msg"], f"give one of {', '.join(_WHERE)}")
    if kind == "extra_forbidden":
        return BadInput(field, _shown(given), f"there is no such key; the keys are {keys}")
    return BadInput(field, _shown(given), _allowed(error, keys))


def _allowed(error: ErrorDetails, keys: str) -> str:
    """What may stand where a value is of another type, or too short or long."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "it must map values to phases" if "values" in error["loc"] else f"it must be a mapping with {keys}"
    if kind == "list_type":
        return "it must be a list"
    if kind == "string_type":
        return "it must be text: put it in quotes"
    if kind == "literal_error":
        return f"use {context['expected'].replace(chr(39), '')}"
    if "min_length" in context:
        return "it must not be empty"
    if "max_length" in context:
        return f"at most {context['max_length']} {'characters' if kind.startswith('string') else 'entries'} are read"
    return error["msg"][:1].lower() + error["msg"][1:]


def _shown(value: Any) -> Any:
    if isinstance(value, dict | list):
        return "empty" if not value else "a mapping" if isinstance(value, dict) else "a list"
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _row(rule: _Rule) -> SignalRow:
    where = next(where for where in _WHERE if getattr(rule, where) is not None)
    key = str(getattr(rule, where))
    sign = {value.lower(): _SIGNS[phase] for value, phase in rule.values.items()}
    yields = ", ".join(f"{value} = {phase}" for value, phase in rule.values.items())
    read = _read(where, key, sign, rule.name)
    confidence = Confidence(rule.confidence)
    return SignalRow(_FIRST[rule.confidence], rule.name, f"{where} `{key}`", yields, confidence, "rule file", read)


def _read(where: str, key: str, sign: Mapping[str, PhaseSign], name: str) -> Lookup:
    def read(pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[Finding]:
        for value in _values(where, key, pod, calls):
            found = sign.get(value.lower())
            if found:
                yield Finding(found, f"rule {name}: {where} {key} {value}")

    return read


def _values(where: str, key: str, pod: Pod, calls: tuple[EngineCall, ...]) -> Iterator[str]:
    if where == "label":
        yield pod.metadata.label(key)
    elif where == "annotation":
        yield pod.metadata.annotation(key)
    elif where == "argument":
        flag = "--" + key.lstrip("-").replace("_", "-")
        for call in calls:
            yield from dict.fromkeys(call.flags.get(flag, ()))
    else:
        for container in pod.spec.containers:
            for variable in container.env or ():
                if variable.name == key:
                    yield variable.value
