"""Which program a container runs: a serving engine, something that serves beside engines, or nothing that we know.

Read from the words of its commands first, then, for an entry point that only the image knows, from the image's name. A
router, a proxy, a frontend, a planner or a KV store is no engine, whatever its options are called: it names prefill and
decode because it sends requests to both. It must never know phases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Final

VLLM: Final = "vLLM"
SGLANG: Final = "SGLang"
DYNAMO: Final = "Dynamo"
TRTLLM: Final = "TensorRT-LLM"
LMDEPLOY: Final = "LMDeploy"
FASTDEPLOY: Final = "FastDeploy"
LIGHTLLM: Final = "LightLLM"

_ENGINES: Final = (
    # start of `module` or of `program subcommand`, engine
    ("vllm serve", VLLM),
    ("vllm.entrypoints.", VLLM),
    ("llm-d-inference-sim", VLLM),
    ("sglang.launch_server", SGLANG),
    ("sglang serve", SGLANG),
    ("dynamo.vllm", DYNAMO),
    ("dynamo.sglang", DYNAMO),
    ("dynamo.trtllm", DYNAMO),
    ("dynamo.mocker", DYNAMO),
    ("trtllm-serve", TRTLLM),
    ("lmdeploy serve api_server", LMDEPLOY),
    ("text-generation-launcher", "TGI"),
    ("fastdeploy.entrypoints", FASTDEPLOY),
    ("lightllm.server.api_server", LIGHTLLM),
)
_OTHERS: Final = (
    ("trtllm-serve disaggregated", "router"),
    ("sglang_router", "router"),
    ("sglang-router", "router"),
    ("smg", "router"),
    ("vllm_router", "router"),
    ("vllm-router", "router"),
    ("lmdeploy serve proxy", "router"),
    ("fastdeploy.router", "router"),
    ("fastdeploy.golang_router", "router"),
    ("fd-router", "router"),
    ("dynamo.frontend", "frontend"),
    ("dynamo.router", "router"),
    ("dynamo.global_router", "router"),
    ("dynamo.planner", "planner"),
    ("dynamo.grove", "planner"),
    ("mooncake_master", "KV store"),
    ("mooncake.mooncake_store", "KV store"),
    ("mooncake_store", "KV store"),
    ("mooncake.store", "KV store"),
    ("lmcache_server", "KV store"),
    ("lmcache.server", "KV store"),
    ("lmcache.v1.server", "KV store"),
    ("lmcache_controller", "KV store"),
    ("lmcache.v1.api_server", "KV store"),
    ("redis-server", "KV store"),
    ("etcd", "KV store"),
    ("nats-server", "KV store"),
    ("epp", "endpoint picker"),
    ("pd-sidecar", "router"),
    ("vllm bench", "load generator"),
    ("sglang.bench", "load generator"),
    ("genai-perf", "load generator"),
    ("aiperf", "load generator"),
    ("guidellm", "load generator"),
    ("lm_eval", "load generator"),
    ("locust", "load generator"),
    ("axolotl", "training"),
    ("llamafactory-cli train", "training"),
    ("deepspeed", "training"),
    ("jupyter", "notebook"),
    ("jupyter-lab", "notebook"),
    ("jupyter-notebook", "notebook"),
    ("code-server", "notebook"),
)
NOT_SERVING: Final = frozenset({"load generator", "training", "model download", "notebook"})  # whatever its labels say
# What only fetches files, if nothing is started after it.
_FETCHERS: Final = ("hf download", "huggingface-cli download", "modelscope download")
_SCRIPTS: Final = re.compile(
    r"(proxy|router|gateway|frontend|load_?balanc|planner|bench|download|(?<![a-z])(?:pre)?train(?:ing)?(?![a-z])|finetun)"
    r"[a-z0-9_.-]*\.py$"
)
_BENCHMARK: Final = re.compile(r"(?:bench|benchmark|[-_]perf|perftest)$")  # nixlbench, all_reduce_perf
_SCRIPT_KINDS: Final = {
    "bench": "load generator",
    "planner": "planner",
    "frontend": "frontend",
    "download": "model download",
    **dict.fromkeys(("train", "training", "pretrain", "pretraining", "finetun"), "training"),
}
_TARGET: Final = (
    r"(?:er)?s?(?:-(?:urls?|hosts?|servers?|selectors?|instances?|endpoints?|addr|address|model-labels|nodes?))?"
)
_TO_PREFILL: Final = re.compile(rf"--prefill{_TARGET}")
_TO_DECODE: Final = re.compile(rf"--decode{_TARGET}|--decoder(?:-(?:hosts?|ports?|urls?))?")
_ROUTER_FLAGS: Final = frozenset(
    {"--pd-disaggregation", "--vllm-pd-disaggregation", "--routing-logic", "--routing-strategy", "--service-discovery"}
)
_IMAGE_OTHERS: Final = {
    "router": "router",
    "gateway": "router",
    "proxy": "router",
    "sidecar": "router",
    "frontend": "frontend",
    "planner": "planner",
    "epp": "endpoint picker",
    "picker": "endpoint picker",
    "scheduler": "endpoint picker",
    "exporter": "exporter",
    "curl": "client",
    "redis": "KV store",
    "valkey": "KV store",
    "etcd": "KV store",
    "nats": "KV store",
}
_IMAGE_ENGINES: Final = (
    ("sglang", SGLANG),
    ("vllm", VLLM),
    ("trtllm", TRTLLM),
    ("tensorrtllm", TRTLLM),
    ("inference-sim", VLLM),
    ("text-generation-inference", "TGI"),
    ("huggingfaceserver", VLLM),  # KServe's own server, whose engine is vLLM
)
# What makes a TensorRT-LLM server a context or a generation server stands in this file alone.
_TRTLLM_FILES: Final = frozenset({"--extra-llm-api-options", "--extra-llm-api-config", "--metadata-server-config-file"})
_STARTERS: Final = frozenset({"exec", "then", "do", "else", "nohup", "time", "--", "tini", "env"})
_LONGEST: Final = 200  # a longer word names no program


@dataclass(frozen=True, slots=True)
class Program:
    """`engine` is a known engine's name, `other` what it is instead of an engine; both empty: not known.

    `readable`: its whole command line was seen, so what is not there was not said.
    """

    engine: str = ""
    other: str = ""
    readable: bool = False


def program_of(
    commands: Sequence[Sequence[str]], flags: Mapping[str, tuple[str, ...]], image: str, has_command: bool
) -> Program:
    """What the commands of one container run. `has_command`: the image's entry point is not used."""
    engine, other = _of_names(list(_names(commands)))
    if not _ROUTER_FLAGS.isdisjoint(flags):
        return Program(other="router")
    if not engine and not other:
        other = _other_by_use(commands, flags)
    if engine or other:
        return Program(engine, other, bool(engine) and _complete(_starting(commands), flags, engine))
    engine, other = _of_image(image)
    # Without a command of its own the image's entry point reads the arguments.
    seen = bool(commands) and not has_command
    return Program(engine, other, bool(engine) and seen and _complete(commands, flags, engine))


def _of_names(names: Sequence[tuple[str, bool]]) -> tuple[str, str]:
    """The engine that one of the commands names, else another program; empty where there is none."""
    engine = next((found for name, _ in names if (found := _engine(name))), "")
    # An engine may be started by another program (numactl, mpirun); for what is no engine that would be a guess.
    other = "" if engine else next((found for name, first in names if first and (found := _other(name))), "")
    return engine, other


def _other_by_use(commands: Sequence[Sequence[str]], flags: Mapping[str, tuple[str, ...]]) -> str:
    """What a program without a known name is by its flags or its last command; empty if unknown."""
    if _sends_to_both(flags):
        return "router"
    fetches = any(first and name.startswith(_FETCHERS) for name, first in _names(commands[-1:]))
    return "model download" if fetches else ""


def _starting(commands: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The commands that start an engine: what others of a script are given is not its business."""
    return [command for command in commands if any(_engine(name) for name, _ in _names([command]))]


def _complete(commands: Sequence[Sequence[str]], flags: Mapping[str, tuple[str, ...]], engine: str) -> bool:
    """Neither a configuration file nor a variable that may hold options: what is not there was not said."""
    if "--config" in flags or (engine == TRTLLM and not _TRTLLM_FILES.isdisjoint(flags)):
        return False
    for command in commands:
        if "xargs" in command:
            return False
        for before, word in pairwise(command):
            if word.startswith("$") and not before.startswith("--") and before != "serve":
                return False
    return True


def _names(commands: Sequence[Sequence[str]]) -> Iterator[tuple[str, bool]]:
    """Modules, scripts, and programs with their subcommand; whether it is what the command starts."""
    for command in commands:
        for position, word in enumerate(command[:-1]):
            if len(word) > _LONGEST or word.startswith("--"):
                continue
            after = command[position + 1]
            if word == "-m":
                yield after, True
            elif not position or word[-1:].isalpha():
                base = word.rpartition("/")[2]
                before = command[position - 1] if position else ""
                first = (
                    not position or before in _STARTERS or ("=" in before and before[0] != "-") or base.endswith(".py")
                )
                spoken = [base, *takewhile(_is_word, command[position + 1 : position + 3])]
                yield " ".join(spoken), first


def _is_word(text: str) -> bool:
    return text.replace("_", "").isalpha()


def _engine(name: str) -> str:
    if name.startswith("trtllm-serve disaggregated"):
        return ""
    return next((engine for start, engine in _ENGINES if name.startswith(start)), "")


def _other(name: str) -> str:
    base = name.split(" ", 1)[0]
    if base.endswith(".py"):
        named = _SCRIPTS.search(base.lower())
        return _SCRIPT_KINDS.get(named[1], "router") if named else ""
    if _BENCHMARK.search(base):
        return "load generator"
    for start, kind in _OTHERS:
        if name == start or base == start or (name.startswith(start) and name[len(start) : len(start) + 1] in "._ "):
            return kind
    return ""


def _sends_to_both(flags: Mapping[str, tuple[str, ...]]) -> bool:
    return any(map(_TO_PREFILL.fullmatch, flags)) and any(map(_TO_DECODE.fullmatch, flags))


@lru_cache(maxsize=512)
def _of_image(image: str) -> tuple[str, str]:
    """The last part of the image's name without its tag: folders and registries are called anything."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()
    tokens = re.split(r"[-_.]", name)
    other = next((_IMAGE_OTHERS[word] for word in tokens if word in _IMAGE_OTHERS), "")
    if other:
        return "", other
    return next((engine for part, engine in _IMAGE_ENGINES if part in name), ""), ""
