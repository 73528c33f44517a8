"""The test library built with the C compiler, and processes that load it through the real pynvml."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml.profiles import Machine, write_nvml
from topology.agent.nvml_reader import PER_GPU_S, NvmlReading

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def build() -> Path:
    """The folder with the library, for LD_LIBRARY_PATH; built once for each state of the source."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = ROOT / "build" / "nvml" / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    if not (folder / LIBRARY).exists():
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"{LIBRARY}.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
        subprocess.run([compiler, *flags, "-o", str(aside), str(SOURCE)], timeout=120, check=True)
        aside.replace(folder / LIBRARY)
    return folder


def environment(library: Path, folder: Path) -> dict[str, str]:
    """For a process that is to find this library and the profile in `folder`."""
    retained = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "TMPDIR")}
    return retained | {
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(library),
        "ISOCHRONE_TEST_NVML": str(folder / "nvml"),
    }


class NvmlProcess:
    """A process with a reader in it that looks when told."""

    def __init__(self, library: Path, folder: Path, per_gpu_s: float) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.nvml.library", str(per_gpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(library, folder),
            cwd=ROOT,
        )

    def read(self, machine: Machine | None = None, *, fresh: bool = False) -> NvmlReading:
        """What the reader reads of this machine; `fresh`: with a reader that knows nothing yet."""
        if machine is not None:
            write_nvml(machine, self._folder)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("fresh\n" if fresh else "look\n")
        self._process.stdin.flush()
        reading = pickle.loads(base64.b64decode(self._process.stdout.readline()))
        assert isinstance(reading, NvmlReading)
        return reading

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextlib.contextmanager
def nvml_process(folder: Path, library: Path | None = None, *, per_gpu_s: float = PER_GPU_S) -> Iterator[NvmlProcess]:
    """A process of its own while the context lasts. `per_gpu_s`: what one GPU may cost a look."""
    process = NvmlProcess(library or build(), folder, per_gpu_s)
    try:
        yield process
    finally:
        process.close()


def _serve() -> None:
    """Inside the process: a look for each line, as a pickle."""
    from topology.agent.nvml_reader import NvmlReader
    from topology.agent.nvml_session import Session

    per_gpu_s = float(sys.argv[1])
    reader, now_s = NvmlReader(Session(first_pause_s=0.0), per_gpu_s=per_gpu_s), 1000.0
    for line in sys.stdin:
        if line.strip() == "fresh":
            reader.close()
            reader = NvmlReader(Session(first_pause_s=0.0), per_gpu_s=per_gpu_s)
        now_s += 10
        print(base64.b64encode(pickle.dumps(reader.read(now_s))).decode(), flush=True)


if __name__ == "__main__":
    _serve()
