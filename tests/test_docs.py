"""Pages say what the code says: tables that come from it, and the paths that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
TOP = ("admission", "docs", "e2e", "manifests", "scheduler", "tests", "topology")
WALK_LIMIT = 14


def paths(text: str) -> list[str]:
    """The paths of this repository that stand in backticks, in their order."""
    return [each for each in re.findall(r"`([\w.*/-]+)`", text) if "/" in each and each.split("/")[0] in TOP]


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


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_a_page_names_exist(page: str) -> None:
    missing = [path for path in paths((ROOT / page).read_text()) if not any(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_the_walk_of_one_pod_names_few_files_and_each_once() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    (walk,) = re.findall(r"^## One pod from AdmissionReview to Event$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    files = paths(walk)
    assert len(files) == len(set(files)), "each file once"
    assert 0 < len(files) <= WALK_LIMIT
    assert all((ROOT / path).is_file() for path in files)
    assert [path for path in paths(page) if path in files] == files, "nowhere else on the page"
    steps = re.findall(r"^\d+\. `([^`]+)`", walk, re.MULTILINE)
    assert steps == files, "each step begins with its file"
