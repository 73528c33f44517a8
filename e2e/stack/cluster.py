"""A whole cluster as plain processes on loopback, ready in seconds, gone at the end of a `with`.

    with Cluster(grid(16)) as cluster:
        cluster.kubectl("get", "nodes")

Whatever ends the owner (an exception, Ctrl-C, SIGKILL), no process and no folder stays behind.
"""

import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.stack import flags
from e2e.stack.build import Stack, build
from e2e.stack.client import YAML
from e2e.stack.control_plane import ControlPlane, GivenUpError
from e2e.stack.processes import LIMIT_S
from e2e.stack.stages import stages
from e2e.stack.volcano_conf import scheduler_conf

CONF_TAKEN = b"Finished loading scheduler config"
"""What vc-scheduler logs at verbosity 2 once a conf is in use."""

DEFAULT_QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Cluster(ControlPlane):
    """The control plane, Volcano, KWOK and nodes; a context manager."""

    def __init__(
        self,
        nodes: Iterable[dict[str, Any]] = (),
        *,
        name: str = "cluster",
        conf: str | None = None,
        audit: bool = False,
        scheduler_verbosity: int = 3,
        scheduler_flags: Sequence[str] = (),
        schedules_for: Sequence[str] = (),
        stack: Stack | None = None,
    ) -> None:
        """`conf` is the scheduler conf's text; `name` names the folder under build/logs when something fails.

        `schedules_for`: the scheduler names whose pods Volcano takes, when not `volcano` alone.
        """
        super().__init__(stack or build(), name, audit)
        self._nodes = list(nodes)
        self._verbosity = scheduler_verbosity
        self._named = flags.schedules_for(schedules_for)
        self._scheduler_flags = [*self._named, *scheduler_flags]
        self._conf_path = self.workdir / "scheduler" / "volcano-scheduler.conf"
        self._metrics_port = 0
        self._write_conf(scheduler_conf() if conf is None else conf)

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException as error:
            if isinstance(error, Exception):
                self.failed()
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An interruption is no failure of the cluster: its logs tell nothing.
        if kind is not None and issubclass(kind, Exception):
            self.failed()
        self.close()

    def start(self) -> None:
        """Starts everything and returns when the nodes are Ready and Volcano takes work."""
        self.start_api_server()
        self.start_controllers()
        self._start_kwok()
        with ThreadPoolExecutor(3) as pool:
            steps = [pool.submit(step) for step in (self._bring_volcano, self._bring_nodes, self._await_account)]
            try:
                wait(steps, return_when=FIRST_EXCEPTION)
            finally:
                # After an error or an interruption the other steps' waits end too, not only at their limits.
                if not all(step.done() for step in steps):
                    self.given_up.set()
        _raise_cause(steps)
        self.check()
        self.mark("ready")

    # -- Volcano ---------------------------------------------------------------------------------------------

    @property
    def scheduler_metrics_url(self) -> str:
        """Where vc-scheduler shows its metrics."""
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    def set_scheduler_conf(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Overwrites the watched conf and returns when the scheduler has taken it."""
        log = self.group["vc-scheduler"].log
        before = log.stat().st_size
        self._write_conf(text)

        def taken() -> bool:
            with log.open("rb") as file:
                file.seek(before)
                return CONF_TAKEN in file.read()

        self.wait_for(taken, limit_s, "vc-scheduler takes its new conf")

    def _write_conf(self, text: str) -> None:
        # Written outside the watched folder and renamed: the scheduler never reads half a file, and there is
        # one event for one conf.
        aside = self.workdir / "volcano-scheduler.conf.new"
        aside.write_text(text)
        aside.replace(self._conf_path)

    # -- steps of the start ----------------------------------------------------------------------------------

    def _bring_volcano(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}}
        self.create(namespace)
        self.install_crds([self.stack.share("crd/volcano"), self.stack.share("crd/jobflow")])
        self.mark("CRDs")
        health, controllers_health = self.ports.take(), self.ports.take()
        self._metrics_port = self.ports.take()
        config = self.kubeconfig.with_name("volcano-controllers.yaml")
        argv = flags.vc_controller_manager(self.bin("vc-controller-manager"), controllers_health, config, self._named)
        self.start_process("vc-controller-manager", argv, quick_kill=True)
        argv = flags.vc_scheduler(
            self.bin("vc-scheduler"),
            health,
            self._metrics_port,
            self.kubeconfig.with_name("volcano-scheduler.yaml"),
            self._conf_path,
            self._verbosity,
            self._scheduler_flags,
        )
        self.start_process("vc-scheduler", argv, quick_kill=True)
        self.wait_for(_healthy(health), LIMIT_S, "vc-scheduler healthy")
        self.wait_for(self._queue_open, LIMIT_S, "Volcano's default queue Open")
        self.mark("Volcano")

    def install_crds(self, folders: Iterable[Path]) -> None:
        """Creates CRDs and waits until all are Established."""
        texts = [path.read_text() for folder in folders for path in sorted(folder.glob("*.yaml"))]
        # Sent as they are: Python needs seconds to parse a megabyte of YAML, the server does not.
        created = self.client.create_all(CRDS, texts, content_type=YAML)
        names = {item["metadata"]["name"] for item in created}

        def established() -> bool:
            return names <= {item["metadata"]["name"] for item in self.api("GET", CRDS)["items"] if _established(item)}

        self.wait_for(established, LIMIT_S, "CRDs Established")

    def _queue_open(self) -> bool:
        queue = self.get(DEFAULT_QUEUE)
        return bool(queue and queue.get("status", {}).get("state") == "Open")

    def _start_kwok(self) -> None:
        path = self.workdir / "kwok-stages.yaml"
        path.write_text(stages([self.stack.share("kwok/node"), self.stack.share("kwok/pod")]))
        argv = flags.kwok(self.bin("kwok"), self.ports.take(), self.kubeconfig.with_name("kwok.yaml"), path)
        self.start_process("kwok", argv, quick_kill=True)

    def _bring_nodes(self) -> None:
        self.create_nodes(self._nodes)
        self.mark("nodes")

    def _await_account(self) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait_for(lambda: self.get(path), LIMIT_S, "default service account")
        self.mark("kube-controller-manager")


def _established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _healthy(port: int) -> Callable[[], bool]:
    def answers() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=LIMIT_S) as answer:
            return bool(answer.status == 200)

    return answers


def _raise_cause(steps: Sequence[Future[None]]) -> None:
    """Raises the error that came first, not the "given up" of a step that was stopped because of it."""
    errors = [error for step in steps if (error := step.exception()) is not None]
    for error in sorted(errors, key=lambda each: isinstance(each, GivenUpError)):
        raise error
