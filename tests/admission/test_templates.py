"""Every template that people write: what it is, written down by hand, and what we read.

`templates/pods.yaml`, `teams.yaml` and `engines.yaml` have one pod a case, `templates/public_manifests.yaml` the public
manifests of the data folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.commands.admit import Admitted, admitted
from admission.recognition.pod_settings import read_settings
from admission.templates.manifest_file import Document, documents

HERE = Path(__file__).with_name("templates")
DATA = Path(os.environ.get("ISOCHRONE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "manifests"
PODS: dict[str, Any] = yaml.safe_load(
    (HERE / "pods.yaml").read_text() + (HERE / "teams.yaml").read_text() + (HERE / "engines.yaml").read_text()
)
PUBLIC: dict[str, Any] = yaml.safe_load((HERE / "public_manifests.yaml").read_text())


def pod(case: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": case.get("container", "engine"),
        "image": case.get("image", "registry.example/engine:1"),
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    container |= {key: case[key] for key in ("command", "args") if key in case}
    if "env" in case:
        container["env"] = [{"name": name, "value": value} for name, value in case["env"].items()]
    if case.get("env_from"):
        container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    containers = [container, case["beside"]] if "beside" in case else [container]
    metadata = {"name": case.get("name", "engine-7"), "namespace": "team-a", "labels": case.get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def read(content: dict[str, Any]) -> Admitted:
    (entry,) = admitted([Document("here", content)])
    return entry


@pytest.mark.parametrize("name", PODS)
def test_a_pod(name: str) -> None:
    case = PODS[name]
    entry = read(pod(case))
    assert [entry.phase, entry.tagging.gang, str(entry.reading.confidence)] == case["expect"]
    assert entry.existing_group == case.get("existing")
    assert bool(entry.warnings) is ("tells" in case), entry.warnings
    assert case.get("tells", "") in " ".join(entry.warnings)


@pytest.mark.parametrize("file", PUBLIC)
def test_a_public_manifest(file: str) -> None:
    path = DATA / file
    if not path.exists():
        pytest.skip(f"{path} is not here; set ISOCHRONE_DATA to the folder that holds manifests/")
    found = admitted(documents(path.read_text(), file))
    seen = [[e.template.template, e.phase, e.tagging.gang, e.existing_group, e.reading.signal] for e in found]
    assert seen == PUBLIC[file]
    for entry in found:
        settings, wrong = read_settings(entry.template.pod.metadata.annotations, requests=True)
        assert (settings.min_prefill or 1, settings.min_decode or 1, wrong) == (1, 1, ())


def test_every_public_manifest_is_expected() -> None:
    if not DATA.exists():
        pytest.skip(f"{DATA} is not here; set ISOCHRONE_DATA to the folder that holds manifests/")
    assert {path.name for path in DATA.glob("*.yaml")} == set(PUBLIC)


WORKLOADS: dict[str, Any] = yaml.safe_load((HERE / "workloads.yaml").read_text())


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload(name: str) -> None:
    case = WORKLOADS[name]
    found = admitted(documents(case["manifest"], "here"))
    seen = [
        [e.template.kind, e.template.name, e.template.template, e.phase, e.tagging.gang, e.existing_group]
        for e in found
    ]
    assert seen == case["expect"]
    if "units" in case:
        assert [f"{e.unit}, {e.size} pods" for e in found] == case["units"]
    output = " ".join(warning for entry in found for warning in entry.warnings)
    assert all(text in output for text in case.get("tells", [])), output
