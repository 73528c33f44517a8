"""What each container's engine was told on its command line: flags, program and model.

Decides how `command` and `args` become commands, which flags and which model they name. It must never know what a
flag means for placement, never run or look up anything, and never raise: garbage in, no flags out. Everything read
is bounded, because whoever may create a pod may put 1 MiB of text in front of the webhook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from admission.recognition.programs import Program, program_of
from admission.recognition.start_script import Allowance, expanded, script_commands, script_position
from topology.objects import Container, Pod

END: Final = ";"  # stands behind each command, so that no flag takes a value from the next one
_UNREAD: Final = ("sh", "$SCRIPT")  # stands for the commands of a script that is not read: any may be among them
_MAX_CONTAINERS: Final = 32
_MAX_TOKENS: Final = 4096  # per container
_MAX_WORD_CHARS: Final = 32 * 1024
_MAX_POD_CHARS: Final = 128 * 1024
_MAX_MODEL_CHARS: Final = 512
_MAX_SCRIPT_CHARS: Final = 100
_SCRIPT_ENDINGS: Final = frozenset({"sh", "bash", "py"})
_FIRST_TOKENS: Final = 8
_SERVERS: Final = frozenset({"vllm", "vllm.entrypoints.cli.main", "sglang", "trtllm-serve"})
_RAY_SCRIPT: Final = "multi-node-serving.sh"  # vllm-project/vllm examples/online_serving
_MODEL_FLAGS: Final = ("--model", "--model-path", "--model-dir")  # the last is LightLLM's
# Commands that show, test or set text but never serve: an option that they are given is somebody else's.
_SILENT: Final = frozenset(
    {
        *(
            "echo",
            "printf",
            "[",
            "[[",
            "test",
            "cat",
            "grep",
            "logger",
            ":",
            "read",
            "sed",
            "awk",
            "ls",
            "sleep",
            "tail",
        ),
        *("mkdir", "touch", "rm", "cp", "mv", "ln", "chmod", "chown", "cd", "apt", "apt-get", "pip", "pip3"),
    }
)
_BEFORE_A_COMMAND: Final = frozenset({"exec", "time"})


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One container's command line. Flag names have dashes only; one value a command, in order."""

    container: str
    flags: Mapping[str, tuple[str, ...]]
    program: Program
    scripts: tuple[str, ...]  # names of the shell and Python files that it starts, without folder and ending
    plain_tokens: tuple[str, ...]  # the first of each command that are no options
    ray: bool  # Ray spans its copy over several pods, which have different command lines
    model: str  # "" when it is not said, or said through a variable that cannot be read here

    @property
    def is_engine(self) -> bool:
        """It is not known to be something else: an engine, or a program that we do not know."""
        return not self.program.other


def engine_calls(pod: Pod) -> tuple[EngineCall, ...]:
    """The command lines of the pod's main containers (init containers and sidecars run no engine)."""
    calls, left, allowance = [], _MAX_POD_CHARS, Allowance()
    for container in pod.spec.containers[:_MAX_CONTAINERS]:
        argv = []
        for word in [*(container.command or ()), *(container.args or ())][:_MAX_TOKENS]:
            taken = word[: min(_MAX_WORD_CHARS, left)]
            left -= len(taken)
            argv.append(taken)
        commands = _commands(argv, container, allowance)
        tokens = list(chain.from_iterable(commands))
        flags = _flags(commands)
        program = program_of(commands, flags, container.image, bool(container.command))
        if container.command and not commands:
            program = Program(other="waiting shell")  # `sleep infinity`: whoever comes to it starts what he likes
        calls.append(
            EngineCall(
                container.name,
                flags,
                program,
                _scripts(commands),
                _plain_tokens(commands),
                _by_ray(commands, flags),
                _model(container, tokens, flags),
            )
        )
    return tuple(calls)


def _commands(argv: Sequence[str], container: Container, allowance: Allowance) -> list[list[str]]:
    """The commands that may serve, each with END behind it."""
    if not argv:
        return []
    env = {variable.name: variable.value for variable in container.env or ()}
    complete = not container.env_from  # else a variable that is not listed may have a value all the same
    argv = [expanded(word, env, allowance) for word in argv]
    return [
        [*command, END] for command in _started(argv, env, complete, allowance) if _program_word(command) not in _SILENT
    ]


def _started(argv: list[str], env: Mapping[str, str], complete: bool, allowance: Allowance) -> Iterator[list[str]]:
    """The commands that one comes to: those of its script, and of the shells that this starts, in its place."""
    at = script_position(argv)
    if at < 0:
        yield argv
        return
    commands = script_commands(argv[at], env, complete, argv[at + 2 :] if at else (), allowance)
    if at:
        yield argv[:at]
    if commands is None:
        yield list(_UNREAD)
        return
    *others, last = commands or [[]]
    for command in (*others, [*last, *argv[at + 1 :]]):
        if script_position(command) > 0:
            yield from _started(command, env, complete, allowance)
        elif command:
            yield command


def _program_word(command: Sequence[str]) -> str:
    for word in command:
        assigns = word.partition("=")[0].isidentifier() and "=" in word
        if word not in _BEFORE_A_COMMAND and not assigns:
            return word.rpartition("/")[2]
    return ""


def _flags(commands: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Every flag with its values, one a command: given twice to one program, the last counts, as argparse has it."""
    found: dict[str, tuple[str, ...]] = {}
    for tokens in commands:
        for name, value in _flags_of(tokens).items():
            found[name] = (*found.get(name, ()), value)
    return found


def _flags_of(tokens: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for position, word in enumerate(tokens):
        if not word.startswith("--") or len(word) > _MAX_WORD_CHARS:
            continue
        name, equals, value = word.partition("=")
        if not equals:
            after = tokens[position + 1]  # every command ends with END
            value = "" if after == END or after.startswith("--") else after
        found[name.replace("_", "-")] = value
    return found


def _scripts(commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The files that the commands start: the command's own word, or the first one behind its interpreter."""
    found: dict[str, None] = {}
    for command in commands:
        for word in command[:_FIRST_TOKENS]:
            base, _, ending = word.rpartition("/")[2].rpartition(".")
            if ending in _SCRIPT_ENDINGS and base and len(base) <= _MAX_SCRIPT_CHARS:
                found[base] = None
                break
    return tuple(found)


def _plain_tokens(commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(
        word
        for command in commands
        for word in command[1:_FIRST_TOKENS]
        if word != END and word[:1] != "-" and len(word) <= _MAX_SCRIPT_CHARS
    )


def _by_ray(commands: Sequence[Sequence[str]], flags: Mapping[str, tuple[str, ...]]) -> bool:
    """It is the head of a Ray cluster, or joins one: by `ray start`, vLLM's own script around it, or the engine's flag.

    A script that does both tells its pods apart itself, and each of them names the engine.
    """
    heads, joins = "ray" in flags.get("--distributed-executor-backend", ()), False
    for command in commands:
        for before, word in pairwise(command):
            base = before.rpartition("/")[2]
            if base == _RAY_SCRIPT:
                heads, joins = heads or word == "leader", joins or word != "leader"
            elif base == "ray" and word == "start":
                heads, joins = heads or "--head" in command, joins or "--head" not in command
    return heads != joins


def _model(container: Container, tokens: Sequence[str], flags: Mapping[str, tuple[str, ...]]) -> str:
    """The served model: the same field is asked first everywhere, so that both halves of a service agree."""
    named = (value for flag in _MODEL_FLAGS for value in flags.get(flag, ()))
    given = [*named, _positional(container, tokens, flags)]
    for value in [*given, *flags.get("--served-model-name", ())]:
        if value and "$" not in value and not value.startswith("-") and len(value) <= _MAX_MODEL_CHARS:
            return value
    return ""


def _positional(container: Container, tokens: Sequence[str], flags: Mapping[str, tuple[str, ...]]) -> str:
    before = ""
    for position, word in enumerate(tokens):
        # args alone: the image's entry point is `vllm`
        starts = before in _SERVERS or (not position and not container.command)
        if word == "serve" and starts:
            return tokens[position + 1]
        if before in ("trtllm-serve", "api_server") and not word.startswith("-") and word not in (END, "disaggregated"):
            return word
        before = word.rpartition("/")[2]
    # args alone, and the image's entry point is `vllm serve`
    alone = not container.command and tokens and tokens[0] != "serve" and "--kv-transfer-config" in flags
    return tokens[0] if alone else ""
