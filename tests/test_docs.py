"""Pages whose tables come from the code say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_tables_of_the_reach_page_are_the_link_table() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "update_reach.py"), "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, "run python docs/update_reach.py"
