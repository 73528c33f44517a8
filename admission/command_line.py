"""What each container's engine was told on its command line: flags, module and model.

Decides how `command` and `args`, plain or as one shell script, are cut into words. It must never know what a flag
means for placement, never run or look up anything, and never raise: garbage in, no flags out. Everything read is
bounded, because whoever may create a pod may put 1 MiB of text in front of the webhook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from topology.objects import Container, Pod

_MAX_CONTAINERS: Final = 32
_MAX_WORDS: Final = 4096  # per container
_MAX_WORD_CHARS: Final = 32 * 1024
_MAX_POD_CHARS: Final = 128 * 1024
_MAX_MODEL_CHARS: Final = 512

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_SHELL_COMMAND_FLAG = re.compile(r"-[a-z]*c")
_END: Final = ";"  # stands between two commands of a script, so that no flag takes a value from the next one
_SCRIPT_WORD = re.compile(
    r"""
      (?<!\S)\#[^\n]*                                        # a comment, to the end of its line
    | [;&|\n]++                                              # the end of a command
    | (?: [^\s"'\\;&|]++ | "(?:[^"\\]|\\.)*+" | '[^']*+' | \\. )++
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_WORD = re.compile(r"[^\s\"'\\$#;&|]+")
_WORD_PART = re.compile(r'"((?:[^"\\]|\\.)*+)"|\'([^\']*+)\'|\\(.)|([^"\'\\]++)', re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_KUBELET_VARIABLE = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)", re.ASCII)
_ASSIGNMENT = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=", re.ASCII)


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One container's command line. Flag names have dashes only; every value given is kept, in order."""

    container: str
    flags: Mapping[str, tuple[str, ...]]
    module: str  # of `python -m MODULE`, else ""
    model: str  # "" when it is not said, or said through a variable that cannot be read here

    @property
    def is_router(self) -> bool:
        """It sends requests to engines and is none itself."""
        return "--pd-disaggregation" in self.flags or self.module.startswith("sglang_router")


def engine_calls(pod: Pod) -> tuple[EngineCall, ...]:
    """The command lines of the pod's main containers (init containers and sidecars run no engine)."""
    calls, left = [], _MAX_POD_CHARS
    for container in pod.spec.containers[:_MAX_CONTAINERS]:
        argv = []
        for word in [*(container.command or ()), *(container.args or ())][:_MAX_WORDS]:
            taken = word[: min(_MAX_WORD_CHARS, left)]
            left -= len(taken)
            argv.append(taken)
        if not argv:
            continue
        words = list(_words(argv, {variable.name: variable.value for variable in container.env or ()}))[:_MAX_WORDS]
        flags = _flags(words)
        module = next((after for word, after in pairwise(words) if word == "-m"), "")
        calls.append(EngineCall(container.name, flags, module, _model(container, words, flags)))
    return tuple(calls)


def _words(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """argv with its shell script, if there is one, cut into words, and known variables put in."""
    script_at = _script_position(argv)
    for position, raw in enumerate(argv):
        word = _KUBELET_VARIABLE.sub(lambda match: env.get(match[1]) or match[0], raw) if "$(" in raw else raw
        if position == script_at:
            yield from _script_words(word, env)
        else:
            yield word


def _script_position(argv: Sequence[str]) -> int:
    """Which element is a script: the one after `sh -c`, or a lone string that holds a whole command line."""
    for position, word in enumerate(argv[:-1]):
        shell = argv[position - 1].rpartition("/")[2] if position else "sh"  # position 0: the image's entry point
        if shell in _SHELLS and _SHELL_COMMAND_FLAG.fullmatch(word):
            return position + 1
    return 0 if len(argv) == 1 and " --" in argv[0] else -1


def _script_words(script: str, env: Mapping[str, str]) -> Iterator[str]:
    script = script.replace("\\\n", " ")
    assigned = {match[1] for match in _ASSIGNMENT.finditer(script)}
    # A variable that the script sets may differ from branch to branch: better unknown than wrong.
    known = {name: value for name, value in env.items() if name not in assigned and value}
    for match in _SCRIPT_WORD.finditer(script):
        word = match[0]
        if _PLAIN_WORD.fullmatch(word):
            yield word
        elif word[0] != "#":
            yield _END if word[0] in ";&|\n" else _unquoted(word, known)


def _unquoted(word: str, env: Mapping[str, str]) -> str:
    def put_in(text: str) -> str:
        return _SHELL_VARIABLE.sub(lambda match: env.get(match[1] or match[2], match[0]), text) if "$" in text else text

    parts = []
    for double, single, escaped, bare in _WORD_PART.findall(word):
        parts.append(put_in(_ESCAPED_IN_QUOTES.sub(r"\1", double)) or single or escaped or put_in(bare))
    return "".join(parts)


def _flags(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word, after in zip(words, [*words[1:], _END], strict=False):
        if not word.startswith("--") or len(word) > _MAX_WORD_CHARS:
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = "" if after == _END or after.startswith("--") else after
        name = name.replace("_", "-")
        found[name] = (*found.get(name, ()), value)
    return found


def _model(container: Container, words: Sequence[str], flags: Mapping[str, tuple[str, ...]]) -> str:
    """The served model: the same field is asked first everywhere, so that both halves of a service agree."""
    said = [*flags.get("--model", ()), *flags.get("--model-path", ()), _positional(container, words, flags)]
    for value in [*said, *flags.get("--served-model-name", ())]:
        if value and "$" not in value and not value.startswith("-") and len(value) <= _MAX_MODEL_CHARS:
            return value
    return ""


def _positional(container: Container, words: Sequence[str], flags: Mapping[str, tuple[str, ...]]) -> str:
    for before, word, after in zip(["", *words], words, words[1:], strict=False):
        # args alone: the image's entry point is `vllm`
        starts = before.rpartition("/")[2] == "vllm" or (not before and not container.command)
        if word == "serve" and starts and after != _END:
            return after
    # args alone, and the image's entry point is `vllm serve`
    alone = not container.command and words and words[0] != "serve" and "--kv-transfer-config" in flags
    return words[0] if alone else ""
