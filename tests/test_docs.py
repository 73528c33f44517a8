"""Pages whose tables come from the code say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "script", ["update_reach.py", "update_recognition.py", "update_score.py", "update_topology.py"]
)
def test_what_comes_from_the_code_is_up_to_date(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / script), "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"run python docs/{script}"
