"""What a test may ask of a running cluster: API calls, kubectl, tokens, kubeconfigs, waits.

Starts and stops nothing; `cluster.Cluster` does.
"""

import base64
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e.stack.build import Stack
from e2e.stack.client import JSON, MERGE_PATCH, NOT_REACHED, ApiClient, ApiError, path_of
from e2e.stack.processes import LIMIT_S, wait_until
from e2e.stack.stages import UNMANAGED

T = TypeVar("T")

USERS = ("admin", "kube-controller-manager", "volcano-scheduler", "volcano-controllers", "kwok")
"""Names in the token file, all in system:masters; their own RBAC is not what is tested here."""


def kubeconfig_text(url: str, ca: bytes, user: str, token: str) -> str:
    """A kubeconfig that holds everything it needs, so it can be copied anywhere."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stack", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "stack", "context": {"cluster": "stack", "user": user, "namespace": "default"}}],
        "current-context": "stack",
    }
    return yaml.safe_dump(config, sort_keys=False)


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a node's Ready condition is True."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class Access:
    """The client's side of a cluster; the attributes are set while it starts."""

    def __init__(self, stack: Stack, workdir: Path) -> None:
        self.stack = stack
        self.workdir = workdir
        self.url = ""
        self.ca_file = workdir / "certificates" / "ca.crt"
        self.tokens: dict[str, str] = {}
        self.kubeconfig = workdir / "kubeconfigs" / "admin.yaml"
        self._client: ApiClient | None = None

    @property
    def admin_token(self) -> str:
        """A token in system:masters."""
        return self.tokens["admin"]

    @property
    def client(self) -> ApiClient:
        """The admin's client."""
        assert self._client is not None, "the cluster is not started"
        return self._client

    def bin(self, name: str) -> Path:
        """A program of the stack, for example `bin("kubectl")`."""
        return self.stack.bin(name)

    def api(
        self, method: str, path: str, body: Any = None, content_type: str | None = None, token: str | None = None
    ) -> Any:
        """One API call, parsed; ApiError on refusal. A PATCH is a merge patch unless told otherwise."""
        kind = content_type or (MERGE_PATCH if method == "PATCH" else JSON)
        return self.client.call(method, path, body, kind, token)

    def get(self, path: str) -> Any:
        """A GET that gives None for 404."""
        try:
            return self.api("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def create(self, item: dict[str, Any], namespace: str = "default") -> Any:
        """Creates any object of a kind in `client.path_of`'s reach."""
        return self.api("POST", path_of(item, namespace), item)

    def create_many(self, items: Iterable[dict[str, Any]], namespace: str = "default", threads: int = 16) -> None:
        """Creates many objects of one kind in parallel."""
        listed = list(items)
        if listed:
            self.client.create_all(path_of(listed[0], namespace), listed, threads)

    def apply(self, item: dict[str, Any], namespace: str = "default") -> Any:
        """Server-side apply, with force."""
        path = f"{path_of(item, namespace)}/{item['metadata']['name']}?fieldManager=e2e&force=true"
        return self.api("PATCH", path, item, "application/apply-patch+yaml")

    def kubectl(self, *args: str, input: str | None = None, timeout: float = LIMIT_S) -> str:  # noqa: A002 - subprocess's name
        """kubectl as admin: its standard output; RuntimeError with its standard error if it fails."""
        argv = [str(self.bin("kubectl")), f"--kubeconfig={self.kubeconfig}", *args]
        env = dict(os.environ) | {"KUBECACHEDIR": str(self.workdir / "kube-cache")}
        done = subprocess.run(
            argv, input=input or "", capture_output=True, text=True, timeout=timeout, env=env, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def service_account_token(self, namespace: str, name: str, seconds: int = 86_400) -> str:
        """A real token of a service account, from the TokenRequest API."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        token: str = self.api("POST", path, request)["status"]["token"]
        return token

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig for this token, in the work folder."""
        path = self.workdir / "kubeconfigs" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(kubeconfig_text(self.url, self.ca_file.read_bytes(), name, token))
        return path

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        """A namespace whose default service account exists already, so pods can be created at once."""
        item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
        self.create(item)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait_for(lambda: self.get(account), LIMIT_S, f"default service account of namespace {name}")
        return name

    def create_nodes(self, nodes: Iterable[dict[str, Any]], ready: bool = True, threads: int = 16) -> None:
        """Creates nodes in parallel and, with `ready`, waits until KWOK has made them Ready."""
        listed = list(nodes)
        self.create_many(listed, threads=threads)
        if ready:
            self.wait_nodes_ready({node["metadata"]["name"] for node in listed})

    def wait_nodes_ready(self, names: set[str]) -> None:
        """Waits until all of these nodes are Ready."""

        def all_ready() -> bool:
            nodes = self.api("GET", "/api/v1/nodes?resourceVersion=0")["items"]
            return names <= {node["metadata"]["name"] for node in nodes if is_ready(node)}

        if names:
            self.wait_for(all_ready, LIMIT_S + len(names) / 20, f"{len(names)} nodes Ready")

    def set_node_ready(self, name: str, ready: bool) -> None:
        """Plays a kubelet that fails (and, later, recovers): KWOK stops or resumes managing the node's status."""
        path = f"/api/v1/nodes/{name}"
        if ready:
            self.api("PATCH", path, {"metadata": {"annotations": {UNMANAGED: None}}})
            return
        self.api("PATCH", path, {"metadata": {"annotations": {UNMANAGED: "true"}}})
        condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "stopped by a test"}
        patch = {"status": {"conditions": [condition]}}
        self.api("PATCH", f"{path}/status", patch, "application/strategic-merge-patch+json")

    def pods(self, namespace: str = "default", selector: str = "") -> list[dict[str, Any]]:
        """Pods as the API server has them now."""
        query = f"?labelSelector={selector}" if selector else ""
        items: list[dict[str, Any]] = self.api("GET", f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        return items

    def wait_for(self, predicate: Callable[[], T], limit_s: float, what: str) -> T:
        """Polls until `predicate` is truthy and returns it; a refused or unanswered API call counts as "not yet"."""
        return wait_until(predicate, limit_s, what, self.check, (ApiError, *NOT_REACHED))

    def check(self) -> None:
        """Raises when a process of the cluster ended by itself."""
