"""Writes install.yaml: the chart as one file for `kubectl apply`, the same bytes every time.

    python -m manifests.render [HELM]

The uninstall hook is left out: applied as a plain Job it would run at once. CI fails if the file and the chart differ.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CHART = Path(__file__).with_name("chart")
INSTALL = Path(__file__).with_name("install.yaml")
NAMESPACE = "isochrone-system"
HEAD = "# Made from manifests/chart by `python -m manifests.render`; change the chart, not this file.\n"


def render(helm: str) -> str:
    """The chart with its defaults and its Namespace."""
    command = [helm, "template", "isochrone", str(CHART), "--namespace", NAMESPACE, "--no-hooks"]
    # Without a cluster helm knows few kinds; every Kubernetes that we support has this one.
    command += ["--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"]
    done = subprocess.run(
        [*command, "--set", "createNamespace=true"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"helm template: {done.stderr.strip()}")
    # Helm puts a blank line or none at the end of a template, depending on its last statement.
    documents = [document.strip() for document in done.stdout.split("\n---\n")]
    return HEAD + "".join(f"---\n{document.removeprefix('---').strip()}\n" for document in documents if document)


def find_helm() -> str:
    """The test stack's helm if it is built, else the one on PATH."""
    from e2e.stack.build import locate

    built = locate().bin("helm")
    helm = str(built) if built.exists() else shutil.which("helm")
    if helm is None:
        raise SystemExit("no helm: run `python -m e2e.stack build`, or name one: python -m manifests.render HELM")
    return helm


if __name__ == "__main__":
    INSTALL.write_text(render(sys.argv[1] if len(sys.argv) > 1 else find_helm()))
