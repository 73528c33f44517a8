"""Builds the stack's programs once into a cache outside the checkout, and says how it gets on.

One `go build` per component; each component has a folder named by the hash of all that goes into it, so a
second Volcano shares etcd, Kubernetes, KWOK and Helm, and an interrupted build goes on where it stopped.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.stack.gotool import BUILD_LIMIT_S, BuildError, Go, Report, find_go, parse_version, run_logged
from e2e.stack.versions import (
    LOCAL_APIS,
    Component,
    Module,
    components,
    render_go_mod,
    render_imports,
    volcano_version,
)

CHECKOUT = Path(__file__).resolve().parents[2]
PINNED = Path(__file__).with_name("gomod")
LDFLAGS = "-s -w"
LOCK_LIMIT_S = 3600.0


def say(line: str) -> None:
    """Progress goes to standard error: standard output carries results."""
    print(line, file=sys.stderr, flush=True)


def cache_root() -> Path:
    """Where everything built is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "isochrone" / "stack"


def third_party() -> Path:
    """The folder of source archives, beside the data folder."""
    data = os.environ.get("ISOCHRONE_DATA")
    return (Path(data) if data else CHECKOUT.parent / "shared" / "data").parent / "third_party"


def minutes(seconds: float) -> str:
    """`2m10s`."""
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of one generated Go module."""

    files: dict[str, str]
    pinned: bool
    archive: Path | None


def sources(module: Module) -> Sources:
    """Committed go.mod and go.sum if the module has them, else the rendered go.mod (which then needs a tidy)."""
    archive = third_party() / module.apis_archive if module.apis_archive else None
    folder = PINNED / module.name
    pinned = (folder / "go.mod").exists()
    go_mod = (folder / "go.mod").read_text() if pinned else render_go_mod(module)
    files = {"go.mod": go_mod, "imports.go": render_imports(module)}
    if pinned:
        files["go.sum"] = (folder / "go.sum").read_text()
    if archive is not None and not archive.exists():
        # Without the archive the published module is used; the pinned sums do not know it.
        files["go.mod"] = "".join(line for line in go_mod.splitlines(True) if not line.rstrip().endswith(LOCAL_APIS))
        return Sources(files, pinned=False, archive=None)
    return Sources(files, pinned, archive)


def key(component: Component, made_from: Sources) -> str:
    """A hash of all that decides what comes out."""
    digest = hashlib.sha256()
    for name, text in sorted(made_from.files.items()):
        digest.update(f"{name}\0{text}\0".encode())
    digest.update(repr((component.programs, component.shares, LDFLAGS, platform.system(), platform.machine())).encode())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the programs and files of one set of versions are."""

    volcano: str
    folders: tuple[tuple[Component, Path], ...]

    def bin(self, name: str) -> Path:
        """A program by name."""
        for component, folder in self.folders:
            if any(program == name for program, _ in component.programs):
                return folder / "bin" / name
        raise KeyError(f"no component of the stack has a program {name}")

    def share(self, into: str) -> Path:
        """A folder of files that came with a component's source, for example `crd/volcano`."""
        for component, folder in self.folders:
            if any(shared.into == into for shared in component.shares):
                return folder / "share" / into
        raise KeyError(f"no component of the stack has files {into}")

    def missing(self) -> list[Component]:
        """What is not built yet."""
        return [component for component, folder in self.folders if not folder.exists()]


def locate(volcano: str | None = None) -> Stack:
    """The stack for this Volcano (default: the environment's VOLCANO), built or not."""
    version = volcano or volcano_version()
    root = cache_root()
    return Stack(
        version,
        tuple(
            (part, root / f"{part.name}-{part.version}-{key(part, sources(part.module))}")
            for part in components(version)
        ),
    )


def build(volcano: str | None = None, report: Report = say) -> Stack:
    """Builds what is missing; a second call at the same time waits for the first."""
    stack = locate(volcano)
    if not stack.missing():
        return stack
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with locked(root / "lock", report):
        wanted = stack.missing()
        if wanted:
            go = find_go(max(go_needed(part.module) for part in wanted), root, report)
        for index, component in enumerate(wanted, 1):
            folder = next(folder for part, folder in stack.folders if part is component)
            place = f"({index} of {len(wanted)})"
            build_component(component, folder, go, place, started, report)
    return stack


def go_needed(module: Module) -> tuple[int, ...]:
    """The Go version named in the module's go.mod (`go mod tidy` raised it to what the dependencies need)."""
    for line in sources(module).files["go.mod"].splitlines():
        if line.startswith("go "):
            return parse_version(line)
    return parse_version(module.go)


@contextmanager
def locked(path: Path, report: Report) -> Iterator[None]:
    """One build at a time; the kernel drops the lock of a killed one."""
    until = time.monotonic() + LOCK_LIMIT_S
    with path.open("a") as file:
        value = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now > until:
                    raise BuildError(f"another build holds the lock for {minutes(LOCK_LIMIT_S)}: look at it") from None
                if now - value > 30:
                    value = now
                    report("waiting for another build of the stack")
                time.sleep(0.5)
        yield


def write_module(made_from: Sources, folder: Path) -> None:
    """The generated module's files, and the unpacked API source where it is used."""
    folder.mkdir(parents=True)
    for name, text in made_from.files.items():
        (folder / name).write_text(text)
    if made_from.archive is not None:
        with tarfile.open(made_from.archive) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (inner,) = (folder / "unpacked").iterdir()
        inner.rename(folder / LOCAL_APIS)


def build_component(component: Component, folder: Path, go: Go, place: str, started: float, report: Report) -> None:
    """Builds aside and renames at the end: a folder that exists is whole."""
    aside = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(aside, ignore_errors=True)
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    names = ", ".join(name for name, _ in component.programs)
    begun = time.monotonic()

    def so_far() -> str:
        return f"{minutes(time.monotonic() - started)} so far"

    def tick(seconds: float) -> None:
        linked = len(list((aside / "bin").iterdir()))
        report(
            f"  still building {names}: {minutes(seconds)}, {linked} of {len(component.programs)} linked, {so_far()}"
        )

    report(f"building {names} {component.version} {place}, {so_far()}")
    made_from = sources(component.module)
    module = aside / "module"
    write_module(made_from, module)
    (aside / "bin").mkdir()
    mod = "readonly" if made_from.pinned else "mod"
    if not made_from.pinned:
        tidy(component.module, module, go, log)
    packages = [package for _, package in component.programs]
    argv = [str(go.program), "build", f"-ldflags={LDFLAGS}", "-o", f"{aside / 'bin'}/", *packages]
    run_logged(argv, module, go.env(mod), log, BUILD_LIMIT_S, tick)
    for name, package in component.programs:
        (aside / "bin" / binary_name(package)).rename(aside / "bin" / name)
    copy_shares(component, module, aside / "share", go, mod)
    shutil.rmtree(aside / "module")
    aside.rename(folder)
    report(f"built {names} {component.version} {place} in {minutes(time.monotonic() - begun)}, {so_far()}")


def tidy(module: Module, folder: Path, go: Go, log: Path) -> None:
    """`go mod tidy`, for a module that has no committed sums."""
    try:
        run_logged([str(go.program), "mod", "tidy"], folder, go.env("mod"), log, BUILD_LIMIT_S)
    except BuildError as error:
        if module.apis_archive is None:
            raise
        raise BuildError(f"put {module.apis_archive} into the folder third_party beside the data: {error}") from None


def binary_name(package: str) -> str:
    """What `go build` calls a program: the last part of its path that is not a major version."""
    *_, before, last = package.split("/")
    return before if last[0] == "v" and last[1:].isdigit() else last


def copy_shares(component: Component, module: Path, into: Path, go: Go, mod: str) -> None:
    """Copies files out of the dependencies' sources."""
    for shared in component.shares:
        source = Path(go.output(["list", "-m", "-f", "{{.Dir}}", shared.module], module, mod).strip())
        found = sorted(source.glob(shared.pattern))
        if not found:
            raise BuildError(f"{shared.module} has no {shared.pattern}")
        (into / shared.into).mkdir(parents=True)
        for file in found:
            # The module cache is read-only; copies must not be.
            shutil.copyfile(file, into / shared.into / file.name)
