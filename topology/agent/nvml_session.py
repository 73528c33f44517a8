"""EDGE: NVML itself: the right Python module, the library found, lost and found again, one question at a time.

Decides when NVML counts as up and when asking again makes sense; a question that is refused costs only its own field.
It must never know what is asked.

Public sources: NVML API reference (return codes), nvidia-ml-py (`pynvml.py`, BSD) for names and structs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from topology.clock import monotonic_s

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "nvidia-ml-py"
_FOREIGN: Final = ("pynvml", "nvidia-ml-py3")  # they install a module of the same name
_NEEDED: Final = ("nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlMemory_v2")
FIRST_PAUSE_S: Final = 5.0
LAST_PAUSE_S: Final = 60.0
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 6, 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, MISMATCH, VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 25, 999
_REASONS: Final = {
    UNINITIALIZED: "uninitialized",
    INVALID_ARGUMENT: "invalid_argument",
    NOT_SUPPORTED: "not_supported",
    NO_PERMISSION: "no_permission",
    NOT_FOUND: "not_found",
    DRIVER_NOT_LOADED: "driver_not_loaded",
    TIMEOUT: "timeout",
    LIBRARY_NOT_FOUND: "library_not_found",
    FUNCTION_NOT_FOUND: "function_not_found",
    GPU_IS_LOST: "gpu_is_lost",
    RESET_REQUIRED: "reset_required",
    MISMATCH: "driver_and_library_differ",
    VERSION_MISMATCH: "version_mismatch",
    7: "insufficient_size",
    8: "insufficient_power",
    11: "irq_issue",
    14: "corrupted_inforom",
    17: "operating_system",
    19: "in_use",
    20: "out_of_memory",
    21: "no_data",
    23: "insufficient_resources",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    UNKNOWN: "unknown",
}


_ODD: Final[set[str]] = set()  # functions whose odd answers were told of


def reason(code: int) -> str:
    """NVML's return code in a word."""
    return _REASONS.get(code, f"nvml_{code}")


class GpuGone(Exception):  # noqa: N818  # says what happened
    """The GPU that was asked fell off the bus."""


class NvmlGone(Exception):  # noqa: N818  # says what happened
    """NVML as a whole does not answer any more."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(reason(code))


def module_problem(found: Any = None) -> str:
    """Why the module that `import pynvml` gives is not NVIDIA's own, in one sentence; "" if it is.

    Three published distributions install a module of this name; two of them are old or a shim over the third.
    """
    spec = importlib.util.find_spec("pynvml")
    origin = (spec.origin if spec else None) or "nowhere"
    versions = {name: version for name in (DISTRIBUTION, *_FOREIGN) if (version := _version(name))}
    if DISTRIBUTION not in versions:
        other = f", from {' and '.join(f'{n} {v}' for n, v in versions.items())}" if versions else ""
        return f"pynvml is {origin}{other}; install {DISTRIBUTION} and remove the others"
    if Path(origin).name != "pynvml.py" or any(not hasattr(found, name) for name in _NEEDED if found is not None):
        others = " and ".join(f"{name} {version}" for name, version in versions.items() if name != DISTRIBUTION)
        also = f"{others} is installed too: remove it and" if others else "remove that file and"
        ours = f"{DISTRIBUTION} {versions[DISTRIBUTION]}"
        return f"pynvml is {origin}, not that of {ours}; {also} install {DISTRIBUTION} again"
    return ""


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def load_module() -> tuple[Any, str]:
    """NVIDIA's module, or None with the reason why not. The warnings of foreign ones are not let through."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = importlib.import_module("pynvml")
    except Exception as error:  # a foreign module may raise whatever it likes
        return None, module_problem() or f"pynvml cannot be imported: {error}"
    problem = module_problem(found)
    return (None, problem) if problem else (found, "")


class Session:
    """NVML as long as it works. For one thread."""

    def __init__(self, *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self.nvml: Any = None
        self.up = False
        self.was_up = False
        self.problem = ""  # one sentence while it is not up
        self.hopeless = False  # only a restart of the process can help
        self._first_pause_s = self._pause_s = first_pause_s
        self._next_s = 0.0

    def start(self) -> bool:
        """Whether NVML is up; tries again when the time has come, at most once a call."""
        if self.up or self.hopeless or monotonic_s() < self._next_s:
            return self.up
        if self.nvml is None:
            self.nvml, self.problem = load_module()
            if self.nvml is None:
                self.hopeless = True
                log.error("%s", self.problem)
                return False
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            self._failed(error.value, "NVML does not start")
            return False
        self.up, self.was_up, self.problem, self._pause_s = True, True, "", self._first_pause_s
        log.info("NVML is up")
        return True

    def lost(self, code: int) -> None:
        """NVML answered nothing any more: shut down, to be started again after a pause."""
        self.stop()
        self._failed(code, "NVML does not answer")

    def _failed(self, code: int, what: str) -> None:
        problem = f"{what}: {reason(code)}"
        if code == MISMATCH:
            # The old library stays mapped in this process: no new start can help.
            self.hopeless = True
            problem = "the NVIDIA driver was changed under the running agent: it must be started again"
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem
        self._next_s = monotonic_s() + self._pause_s
        self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)

    def stop(self) -> None:
        """At the end of the process, or before a new start."""
        if self.up:
            self.up = False
            try:
                self.nvml.nvmlShutdown()
            except self.nvml.NVMLError:
                log.debug("NVML could not be shut down")  # it is gone already


class NvmlQuery:
    """Questions about one GPU: the answer, or None and the reason in `refused`."""

    def __init__(self, nvml: Any, until_s: float) -> None:
        self.nvml, self._until_s = nvml, until_s
        self.refused: dict[str, str] = {}
        self.answered = 0
        self.reset_required = False  # some answer said that the GPU must be reset before it can be used

    def demand(self, field: str, function: str | Callable[..., Any], *args: Any, quiet: bool = False) -> Any:
        """The answer of a pynvml function (by name) or of our own; None if it is refused.

        Raises GpuGone and NvmlGone, which are about more than the field. `quiet`: refusals say nothing.
        """
        code, found = self.answer(function, *args)
        if code == 0:
            return found
        if not quiet:
            self.refused.setdefault(field, reason(code))
        return None

    def answer(self, function: str | Callable[..., Any], *args: Any) -> tuple[int, Any]:
        """(0, the answer) or (the return code, None)."""
        if monotonic_s() > self._until_s:
            return TIMEOUT, None
        call = getattr(self.nvml, function, None) if isinstance(function, str) else function
        if call is None:
            return FUNCTION_NOT_FOUND, None
        try:
            found = call(*args)
        except self.nvml.NVMLError as error:
            if error.value == GPU_IS_LOST:
                raise GpuGone from None
            if error.value == UNINITIALIZED:
                raise NvmlGone(error.value) from None
            self.reset_required |= error.value == RESET_REQUIRED
            return int(error.value), None
        except Exception:  # whatever the bindings make of an odd answer costs this field only
            if str(function) not in _ODD:
                _ODD.add(str(function))
                log.exception("NVML, %s", function)
            return UNKNOWN, None
        self.answered += 1
        return 0, found
