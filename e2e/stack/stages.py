"""KWOK's stages for this stack: its own fast ones, with a way for a test to keep a node unready."""

from pathlib import Path
from typing import Any

import yaml

UNMANAGED = "e2e.isochrone.dev/unmanaged"
"""Annotation on a node that tells KWOK to leave the node's status alone."""


def stages(folders: list[Path]) -> str:
    """All stages found in the folders as one file."""
    documents: list[dict[str, Any]] = []
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            documents += [each for each in yaml.safe_load_all(path.read_text()) if each]
    assert documents, f"no KWOK stages in {folders}"
    return yaml.safe_dump_all([_guarded(stage) for stage in documents], sort_keys=False)


def _guarded(stage: dict[str, Any]) -> dict[str, Any]:
    spec = stage["spec"]
    if spec["resourceRef"]["kind"] == "Node":
        # KWOK makes an unready node ready again at once, so a failing node could not be played otherwise.
        expressions = spec.setdefault("selector", {}).setdefault("matchExpressions", [])
        expressions.append({"key": f'.metadata.annotations["{UNMANAGED}"]', "operator": "DoesNotExist"})
    return stage
