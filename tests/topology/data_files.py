"""Real topology files, which stay outside the repository: found by name, skipped where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("ISOCHRONE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def data(name: str) -> bytes:
    """One file, as `topo/NAME.txt`."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set ISOCHRONE_DATA to the folder that holds {name.split('/')[0]}/")
    return path.read_bytes()


def files(*folders: str) -> list[str]:
    """All files of these folders; one name that does not exist, so that the test says why it is skipped, if none."""
    found = [f"{folder}/{path.name}" for folder in folders for path in sorted((FOLDER / folder).glob("*"))]
    return found or [f"{folder}/*" for folder in folders]
