"""Renews the committed go.mod and go.sum files: run after a version in `versions.py` changed."""

import shutil
import tempfile
from pathlib import Path

from e2e.stack.build import PINNED, Sources, cache_root, say, third_party, write_module
from e2e.stack.gotool import BuildError, find_go, parse_version
from e2e.stack.versions import Module, modules, render_go_mod, render_imports


def pin(module: Module) -> None:
    """`go mod tidy` on the rendered module; the result goes to `gomod/<name>/`."""
    archive = third_party() / module.apis_archive if module.apis_archive else None
    if archive is not None and not archive.exists():
        raise BuildError(f"{archive.name} is not in {archive.parent}: it is needed to pin {module.name}")
    rendered = {"go.mod": render_go_mod(module), "imports.go": render_imports(module)}
    with tempfile.TemporaryDirectory(prefix="isochrone-pin-") as scratch:
        folder = Path(scratch) / "module"
        write_module(Sources(rendered, pinned=False, archive=archive), folder)
        cache = cache_root()
        cache.mkdir(parents=True, exist_ok=True)
        go = find_go(parse_version(module.go), cache, say)
        go.output(["mod", "tidy"], folder, mod="mod")
        target = PINNED / module.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(folder / name, target / name)
    say(f"pinned {module.name}")


def pin_all() -> None:
    """Every module the stack knows."""
    for module in modules():
        pin(module)
