"""Makes *_pb2.py and .pyi beside each proto file of topology/, the same bytes every time.

    python -m manifests.messages

A test makes them again and compares.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ("topology/facts/agent.proto", "topology/facts/enrolment.proto", "topology/agent/podresources.proto")


def generate(folder: Path) -> list[Path]:
    """Writes the code below `folder`, each file where its proto is below the repository; gives the files."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}"]
    subprocess.run([*command, *PROTOS], cwd=ROOT, timeout=60, check=True)
    return sorted((folder / "topology").rglob("*_pb2.py*"))


if __name__ == "__main__":
    generate(ROOT)
