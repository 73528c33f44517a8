"""Makes topology/*_pb2.py and .pyi from topology/*.proto, the same bytes every time.

    python -m manifests.messages

A test makes them again and compares.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ("topology/agent.proto", "topology/podresources.proto")


def generate(folder: Path) -> list[Path]:
    """Writes the code under `folder`/topology; gives the files."""
    (folder / "topology").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}"]
    subprocess.run([*command, *PROTOS], cwd=ROOT, timeout=60, check=True)
    return sorted((folder / "topology").glob("*_pb2.py*"))


if __name__ == "__main__":
    generate(ROOT)
