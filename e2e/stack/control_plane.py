"""Kubernetes' control plane (etcd, kube-apiserver, kube-controller-manager) and every process beside it.

The floor below `cluster.Cluster`, which adds Volcano, KWOK and nodes. Owns the work folder, the ports, the
process group and the logs.
"""

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from e2e.stack import flags
from e2e.stack.access import USERS, Access
from e2e.stack.build import CHECKOUT, Stack
from e2e.stack.certificates import Authority, write_key, write_public_key
from e2e.stack.client import ApiClient
from e2e.stack.ports import Ports
from e2e.stack.processes import LIMIT_S, Group, Process, tail

T = TypeVar("T")

FOLDERS = ("tmp", "etcd", "audit", "scheduler", "logs", "kubeconfigs")


class GivenUpError(RuntimeError):
    """A wait ended because its cluster is being closed."""


class ControlPlane(Access):
    """An API server with its processes; `close` always leaves nothing behind."""

    live: ClassVar[set["ControlPlane"]] = set()
    """What runs in this Python now, so that a failing test can keep the logs."""

    def __init__(self, stack: Stack, name: str, audit: bool) -> None:
        super().__init__(stack, Path(tempfile.mkdtemp(prefix="isochrone-stack-")))
        for folder in FOLDERS:
            (self.workdir / folder).mkdir()
        self.name = name
        self.logs = self.workdir / "logs"
        self.ports = Ports()
        self.timings: dict[str, float] = {}
        """Seconds since the start at which each step was done."""
        self.authority = Authority(self.workdir / "certificates")
        """Signs certificates for further loopback servers (webhooks)."""
        self._audit_log = self.workdir / "audit" / "audit.jsonl" if audit else None
        self._files = self._write_server_files()
        self._group: Group | None = None
        self._closing = threading.Lock()
        self.given_up = threading.Event()
        """Set when waiting for this cluster has lost its point."""
        self._began = 0.0

    # -- processes -------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        """The cluster's processes."""
        assert self._group is not None, "the cluster is not started, or closed"
        return self._group

    def start_process(
        self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, *, quick_kill: bool = False
    ) -> Process:
        """Starts an extra program that lives and dies with the cluster; `env` is added to the environment."""
        own = {"TMPDIR": str(self.workdir / "tmp"), "DEBUG_SOCKET_DIR": str(self.workdir / "tmp" / name)}
        process = Process(name, argv, self.logs / f"{name}.log", dict(os.environ) | own | dict(env or {}), quick_kill)
        return self.group.start(process)

    def kill(self, name: str) -> None:
        """SIGKILL, as a failing machine does it; the cluster does not count it as a death of its own."""
        self.group.kill(name)

    def stop(self, name: str, limit_s: float = 5.0) -> None:
        """SIGTERM, and SIGKILL after the limit."""
        self.group.stop(name, limit_s)

    def restart(self, name: str) -> Process:
        """Starts a killed or stopped program again, as it was started before; its log goes on."""
        return self.group.start(self.group[name])

    def pids(self) -> dict[str, int]:
        """Pids of all that runs for this cluster."""
        return self.group.pids()

    def check(self) -> None:
        """Raises when a process of the cluster ended by itself, or when the cluster is given up."""
        self.group.check()
        if self.given_up.is_set():
            raise GivenUpError(f"{self.name} is given up")

    def close(self) -> None:
        """Stops everything and removes the work folder; may be called twice."""
        with self._closing:
            ControlPlane.live.discard(self)
            if self._client is not None:
                self._client.close()
            if self._group is not None:
                self._group.close()
                self._group = None
            shutil.rmtree(self.workdir, ignore_errors=True)
            self.ports.close()

    # -- evidence --------------------------------------------------------------------------------------------

    def log(self, name: str) -> str:
        """A process's whole log."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def audit_events(self) -> list[dict[str, Any]]:
        """The API server's audit log so far: who wrote what (reads are left out). Needs `audit=True`."""
        assert self._audit_log is not None, "start the cluster with audit=True"
        lines = self._audit_log.read_text().split("\n") if self._audit_log.exists() else []
        # The piece after the last line break is empty, or a line still being written.
        return [json.loads(line) for line in lines[:-1]]

    def keep_logs(self, name: str | None = None) -> Path:
        """Copies all logs to build/logs/<name>/ in the checkout."""
        target = CHECKOUT / "build" / "logs" / (name or self.name)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        retained = [*self.logs.glob("*.log"), *([self._audit_log] if self._audit_log else [])]
        for source in retained:
            if source.exists():
                shutil.copy2(source, target / source.name)
        return target

    def tails(self, size: int = 1_500) -> str:
        """The end of every log, for a message that has to stand alone."""
        parts = [f"=== {path.name}\n{tail(path, size)}" for path in sorted(self.logs.glob("*.log"))]
        return "\n".join(parts)

    def wait_for(self, predicate: Callable[[], T], limit_s: float, what: str) -> T:
        """Polls until `predicate` is truthy and returns it; when time is up the text holds the logs' ends."""
        try:
            return super().wait_for(predicate, limit_s, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.tails()}") from None

    def failed(self) -> None:
        """Keeps the logs and says where; never hides the error it was called for."""
        with contextlib.suppress(OSError):
            print(f"logs of {self.name} are kept in {self.keep_logs()}", file=sys.stderr)

    # -- start -----------------------------------------------------------------------------------------------

    def since_start(self) -> float:
        """Seconds since the first process was started."""
        return time.monotonic() - self._began

    def mark(self, step: str) -> None:
        """Notes when a step of the start was done."""
        self.timings[step] = round(self.since_start(), 2)

    def start_api_server(self) -> None:
        """etcd and kube-apiserver; returns when requests are served."""
        self._began = time.monotonic()
        self._group = Group(self.workdir)
        ControlPlane.live.add(self)
        port, etcd_port = self.ports.take(), self.ports.take()
        self.url = f"https://127.0.0.1:{port}"
        for user, token in self.tokens.items():
            self.write_kubeconfig(user, token)
        audit = None
        if self._audit_log is not None:
            policy = self._audit_log.with_name("policy.yaml")
            policy.write_text(flags.AUDIT_POLICY)
            audit = (policy, self._audit_log)
        argv = flags.etcd(self.bin("etcd"), self.workdir / "etcd", etcd_port, self.ports.take())
        self.start_process("etcd", argv, flags.RELAXED_GC, quick_kill=True)
        argv = flags.kube_apiserver(self.bin("kube-apiserver"), port, etcd_port, self._files, audit)
        # Left alone it takes a minute to leave, and its data is thrown away.
        self.start_process("kube-apiserver", argv, flags.RELAXED_GC, quick_kill=True)
        self._client = ApiClient(self.url, self.ca_file, self.admin_token)
        self.wait_for(lambda: self.client.request("GET", "/readyz")[0] == 200, LIMIT_S, "kube-apiserver ready")
        self.mark("kube-apiserver")

    def start_controllers(self) -> None:
        """kube-controller-manager; does not wait."""
        kubeconfig = self.kubeconfig.with_name("kube-controller-manager.yaml")
        binary = self.bin("kube-controller-manager")
        argv = flags.kube_controller_manager(binary, self.ports.take(), kubeconfig, self._files)
        self.start_process("kube-controller-manager", argv, quick_kill=True)

    def _write_server_files(self) -> flags.ServerFiles:
        folder = self.ca_file.parent
        serving = self.authority.issue("kube-apiserver")
        public = folder / "service-account.pub"
        write_public_key(write_key(folder / "service-account.key"), public)
        self.tokens = {user: secrets.token_hex(16) for user in USERS}
        tokens = folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f'{token},{user},{user},"system:masters"\n' for user, token in self.tokens.items()))
        return flags.ServerFiles(
            tls_certificate=serving.certificate,
            tls_key=serving.key,
            ca=self.ca_file,
            service_account_key=folder / "service-account.key",
            service_account_public=public,
            tokens=tokens,
            certificates=folder,
        )
