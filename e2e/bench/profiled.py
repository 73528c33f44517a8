"""PROFILE=1: Isochrone's services under cProfile.

`profiled` is for the benchmark; `python -m e2e.bench.profiled FOLDER COMMAND...` is what it starts instead of the
command line itself.
"""

import contextlib
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final
from unittest.mock import patch

from e2e.bench.report import FOLDER
from e2e.stack import isochrone as product
from e2e.stack.build import say
from e2e.stack.cluster import Cluster

LINES: Final = 50
STOP_LIMIT_S: Final = 20.0


@contextlib.contextmanager
def profiled(cluster: Cluster, label: str) -> Iterator[None]:
    """Services installed meanwhile are profiled; at the end they are stopped and `build/bench/profile-*` written."""
    with tempfile.TemporaryDirectory(prefix="isochrone-profile-") as name:
        folder = Path(name)
        with patch.object(product, "PROGRAM", (sys.executable, "-m", "e2e.bench.profiled", name)):
            yield
        for service in (product.WEBHOOK, product.CONTROLLER):
            cluster.stop(service, STOP_LIMIT_S)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.pstats")):
            _keep(path, FOLDER / f"profile-{label}-{path.stem}")


def _keep(path: Path, target: Path) -> None:
    for order in ("tottime", "cumtime"):
        text = StringIO()
        pstats.Stats(str(path), stream=text).sort_stats(order).print_stats(LINES)
        target.with_suffix(f".{order}.txt").write_text(text.getvalue())
    target.with_suffix(".pstats").write_bytes(path.read_bytes())
    say(f"profile: {target}.*")


def run(folder: Path, command: list[str]) -> None:
    """Runs the command as the shell would, and writes its profile when it ends."""
    from admission.cli import main

    profile = cProfile.Profile()
    sys.argv = ["isochrone", *command]
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(folder / f"{command[0]}.pstats")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
