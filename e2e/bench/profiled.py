"""`python -m e2e.bench.profiled FOLDER COMMAND...`: Isochrone's command line under cProfile, written when it ends."""

import cProfile
import sys
from pathlib import Path

from admission.cli import main


def run(folder: Path, command: list[str]) -> None:
    """Runs the command as the shell would."""
    profile = cProfile.Profile()
    sys.argv = ["isochrone", *command]
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(folder / f"{command[0]}.pstats")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
