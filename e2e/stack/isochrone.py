"""Isochrone itself on a running cluster: its chart's objects, and its two services as processes beside it.

The objects are the chart's own (rendered by helm), so its rights and its webhook configuration are what is tested.
Three things differ from a real installation, because nothing here runs containers: Deployments and the like are
left out; the webhook's Service is an ExternalName of loopback, so the API server still calls it by its service name
and checks the certificate for that name; listen addresses point to loopback. And the API server and Volcano wait
longer for answers: a pod that was not tagged, or not scored, in time would make a test fail for a busy machine.
"""

import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from e2e.stack.build import CHECKOUT
from e2e.stack.cluster import Cluster
from e2e.stack.control_plane import ControlPlane
from e2e.stack.processes import LIMIT_S
from e2e.stack.volcano_conf import scheduler_conf, with_extender_stanza

NAMESPACE: Final = "isochrone-system"
RELEASE: Final = "isochrone"
WEBHOOK: Final = "isochrone-webhook"
CONTROLLER: Final = "isochrone-controller"
WEBHOOK_CONFIGURATION: Final = "zz-isochrone"
CONFIGURATIONS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CHART: Final = CHECKOUT / "manifests" / "chart"

# How the services are started: change flags here and nowhere else. The words after the program are the chart's own
# container args, and their environment is the chart's own container env; these lines win over it.
PROGRAM: Final = (sys.executable, "-m", "admission.cli")
WEBHOOK_ENV: Final = {
    "ISOCHRONE_LISTEN": "127.0.0.1:{port}",
    "ISOCHRONE_HEALTH_LISTEN": "127.0.0.1:{health}",
    "ISOCHRONE_NAMESPACE": NAMESPACE,
    # Nothing routes to it by endpoints here, so there is nothing to drain; five seconds per teardown add up.
    "ISOCHRONE_DRAIN": "100ms",
}
CONTROLLER_ENV: Final = {
    "ISOCHRONE_EXTENDER_LISTEN": "127.0.0.1:{port}",
    "ISOCHRONE_HEALTH_LISTEN": "127.0.0.1:{health}",
    "ISOCHRONE_NAMESPACE": NAMESPACE,
}
MOST_TIMEOUT_S: Final = 30  # the most that the API server allows for a webhook
EXTENDER_TIMEOUT: Final = "10s"
READY_PATH: Final = "/readyz"

NOT_APPLIED: Final = {"Deployment", "Job", "PodDisruptionBudget", "NetworkPolicy", "Service", "Namespace"}
"""Kinds of the chart that need containers, or that `install` makes itself."""

ORDER: Final = ("ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")


@dataclass(frozen=True, slots=True)
class Service:
    """One running service: the process's name in the cluster and where it listens."""

    name: str
    port: int
    health_port: int

    @property
    def health_url(self) -> str:
        """Health checks and metrics."""
        return f"http://127.0.0.1:{self.health_port}"

    def metrics(self) -> str:
        """Its metrics as text."""
        with urllib.request.urlopen(f"{self.health_url}/metrics", timeout=LIMIT_S) as answer:
            text: str = answer.read().decode()
        return text

    def answers(self) -> bool:
        """Whether it says that it is ready."""
        with urllib.request.urlopen(f"{self.health_url}{READY_PATH}", timeout=LIMIT_S) as answer:
            return bool(answer.status == 200)


@dataclass(frozen=True, slots=True)
class Isochrone:
    """What `install` made."""

    cluster: Cluster
    webhook: Service
    controller: Service

    @property
    def extender_url(self) -> str:
        """What Volcano's `extender.urlPrefix` is set to."""
        return f"http://127.0.0.1:{self.controller.port}"

    def wait_ready(self, *services: Service) -> None:
        """Waits until the given services (default: both) say that they are ready."""
        for service in services or (self.webhook, self.controller):
            self.cluster.wait_for(service.answers, LIMIT_S, f"{service.name} ready")

    def wait_webhook_called(self) -> None:
        """Waits until the API server knows the webhook's certificate authority."""

        def has_bundle() -> bool:
            hooks = []
            for kind in CONFIGURATIONS:
                path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s/{WEBHOOK_CONFIGURATION}"
                hooks += self.cluster.api("GET", path)["webhooks"]
            return all(hook["clientConfig"].get("caBundle") for hook in hooks)

        self.cluster.wait_for(has_bundle, LIMIT_S, "the webhook's certificate authority is in its configuration")


def render(cluster: ControlPlane, settings: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The chart's objects; `settings` are `name=value` pairs for helm's --set."""
    argv = [str(cluster.bin("helm")), "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    # Without a cluster helm knows few kinds; this API server has the policy.
    argv += ["--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"]
    for setting in settings:
        argv += ["--set", setting]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"helm template: {done.stderr.strip()}")
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def install(cluster: Cluster, settings: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Isochrone:
    """Applies the chart, starts both services, points Volcano's scheduler to the extender; returns when all answer.

    `env` is added to both services' environment. When it returns, pods are tagged and gangs are planned.
    """
    items = render(cluster, settings)
    if cluster.get(f"/api/v1/namespaces/{NAMESPACE}") is None:
        cluster.create_namespace(NAMESPACE)
    webhook, controller = (Service(name, cluster.ports.take(), cluster.ports.take()) for name in (WEBHOOK, CONTROLLER))
    _apply_rights(cluster, items)
    isochrone = Isochrone(cluster, webhook, controller)
    _start(cluster, controller, items, CONTROLLER_ENV, env or {})
    cluster.create(external_name(WEBHOOK))
    # The configuration exists before the webhook starts: it writes its certificate authority there.
    for kind in CONFIGURATIONS:
        cluster.apply(routed(_one(items, kind, WEBHOOK_CONFIGURATION), webhook.port))
    _start(cluster, webhook, items, WEBHOOK_ENV, env or {})
    isochrone.wait_ready()
    isochrone.wait_webhook_called()
    cluster.set_scheduler_conf(conf_with_extender(isochrone.extender_url))
    return isochrone


def conf_with_extender(url: str, conf: str | None = None) -> str:
    """Volcano's conf (or another) with the stanza that the product itself prints, with more patience, as above."""
    from scheduler.extender.scheduler_config import stanza

    return with_extender_stanza(conf or scheduler_conf(), stanza(url, EXTENDER_TIMEOUT))


def external_name(name: str) -> dict[str, Any]:
    """A Service through which the API server reaches a loopback port by the Service's name."""
    spec = {"type": "ExternalName", "externalName": "localhost"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def routed(configuration: Mapping[str, Any], port: int) -> dict[str, Any]:
    """The webhook configuration with the Service's port replaced, and more patience; everything else is the chart's."""

    def at_port(hook: Mapping[str, Any]) -> dict[str, Any]:
        client = dict(hook["clientConfig"])
        service = client["service"] | {"port": port}
        return {**hook, "clientConfig": client | {"service": service}, "timeoutSeconds": MOST_TIMEOUT_S}

    return {**configuration, "webhooks": [at_port(hook) for hook in configuration["webhooks"]]}


def _apply_rights(cluster: Cluster, items: Iterable[dict[str, Any]]) -> None:
    rank = {kind: place for place, kind in enumerate(ORDER)}
    own = {*NOT_APPLIED, *CONFIGURATIONS}
    # Whatever else the chart gains later (a ConfigMap, a policy) is applied too, last.
    for item in sorted(items, key=lambda each: rank.get(each["kind"], len(rank))):
        if item["kind"] not in own:
            cluster.apply(item, NAMESPACE)


def _one(items: Iterable[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    found = [item for item in items if item["kind"] == kind and item["metadata"]["name"] == name]
    assert len(found) == 1, f"the chart has {len(found)} objects {kind} {name}"
    return found[0]


def _start(
    cluster: Cluster,
    service: Service,
    items: Iterable[dict[str, Any]],
    own: Mapping[str, str],
    extra: Mapping[str, str],
) -> None:
    pod = _one(items, "Deployment", service.name)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    token = cluster.service_account_token(NAMESPACE, pod["serviceAccountName"])
    kubeconfig = cluster.write_kubeconfig(service.name, token)
    charted = {entry["name"]: str(entry["value"]) for entry in container.get("env", []) if "value" in entry}
    ours = {name: value.format(port=service.port, health=service.health_port) for name, value in own.items()}
    identity = {"ISOCHRONE_KUBECONFIG": str(kubeconfig), "POD_NAME": f"{service.name}-{secrets.token_hex(3)}"}
    # The checkout is what is tested, also when another version is installed.
    path = {"PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"}
    env = charted | ours | identity | path | dict(extra)
    cluster.start_process(service.name, [*PROGRAM, *container.get("args", [])], env)
