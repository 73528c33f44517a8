"""Puts what `make demo` prints today into README.md, between its two markers: `python docs/update_readme.py`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- demo-output -->", "<!-- /demo-output -->"
SECTIONS = ("1.", "4.")  # one gang that is placed, one that has to wait; the demo shows more
REPEATED = "\n\nPodGroup isochrone-reason\n"  # from here on the last section explains a placement, as the first one did
LIMIT_S = 120


def demo_text() -> str:
    """Runs the demo. Raises CalledProcessError if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo.txt"
        argv = [sys.executable, "-m", "admission.demo.play", "--output", str(output)]
        subprocess.run(argv, cwd=ROOT, timeout=LIMIT_S, check=True, stdout=subprocess.DEVNULL)
        return output.read_text(encoding="utf-8")


def chosen(text: str) -> str:
    """The introduction and the sections of the README."""
    introduction, *sections = re.split(r"(?m)^(?=--- )", text)
    retained = [section for section in sections if section.removeprefix("--- ").startswith(SECTIONS)]
    return "\n\n".join(part.partition(REPEATED)[0].strip() for part in [introduction, *retained])


def replaced(readme: str, text: str) -> str:
    """The README with a new block. Raises ValueError if the markers are not there once each, in order."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end) or START in rest or END in after:
        raise ValueError(f"README.md needs {START} and {END}, once each and in this order")
    return f"{before}{START}\n```text\n{text}\n```\n{END}{after}"


def main() -> None:
    """README.md, or the file named."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    path.write_text(replaced(readme, chosen(demo_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
