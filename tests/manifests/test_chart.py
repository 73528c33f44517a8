"""The chart as it is rendered, and install.yaml, which is the rendering."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.controller.agent_identity import AUDIENCE
from admission.recognition.rule_file import read_rules
from admission.settings import ControllerSettings
from admission.templates.inspection import EXCLUDED
from manifests.render import CHART, INSTALL, find_helm, render
from scheduler.extender.scheduler_config import stanza
from topology.agent.settings import AgentSettings
from topology.labels import CONFLICT, DECISION, ENABLED, GANG, PHASE, PLACEMENT, SIGNAL

Object = dict[str, Any]
LOCKS = ("requirements.lock", "requirements-runtime.lock")


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_helm(), *arguments], capture_output=True, text=True, timeout=120, check=False)


def template(*settings: str) -> list[Object]:
    sets = [part for setting in settings for part in ("--set", setting)]
    done = run_helm("template", "isochrone", str(CHART), "--namespace", "elsewhere", *sets)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def installed() -> list[Object]:
    return [each for each in yaml.safe_load_all(INSTALL.read_text()) if each]


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def named(kind: str, name: str, objects: list[Object]) -> Object:
    (found,) = [each for each in of_kind(kind, objects) if each["metadata"]["name"] == name]
    return found


def webhooks(objects: list[Object]) -> dict[str, Object]:
    (configuration,) = of_kind("MutatingWebhookConfiguration", objects)
    return {each["name"]: each for each in configuration["webhooks"]}


def pod_specs(objects: list[Object]) -> Iterator[Object]:
    for each in objects:
        if each["kind"] in ("Deployment", "Job"):
            yield each["spec"]["template"]["spec"]


# --- the golden file and the chart's own checks -------------------------------------------------


@pytest.mark.e2e
def test_install_yaml_is_the_rendered_chart() -> None:
    assert INSTALL.read_text() == render(find_helm()), "run: python -m manifests.render"


@pytest.mark.e2e
def test_helm_lint_has_nothing_to_say() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize(
    "setting",
    [
        "webhook.replicas=0",
        "webhook.failurePolicy=Fail",
        "webhook.timeoutSeconds=31",
        "webhook.recogniseEverywhere=yes",
        "webhook.validate=never",
        "webhook.rules=file",
        "webhook.excludeNamespaces={Kube-System}",
        "controller.replicas=2",
        "controller.settle=500",
        "controller.quiet=500",
        "controller.maxBody=512",
        "image.pullPolicy=Sometimes",
        "logLevel=loud",
        "release.timeoutSeconds=1",
        "webhok.replicas=2",
    ],
)
def test_a_wrong_value_is_refused(setting: str) -> None:
    done = run_helm("template", "isochrone", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert setting.split("=")[0].split(".")[-1] in done.stderr or "additional properties" in done.stderr.lower()


@pytest.mark.e2e
@pytest.mark.parametrize("names", [("settle", "bypassLimit"), ("quiet", "overtaking")])
def test_values_by_their_old_names_still_count(names: tuple[str, str]) -> None:
    objects = template(f"controller.{names[0]}=7s", f"controller.{names[1]}=0")
    container = named("Deployment", "isochrone-controller", objects)["spec"]["template"]["spec"]["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["ISOCHRONE_SETTLE"], env["ISOCHRONE_BYPASS_LIMIT"]) == ("7s", "0")
    assert not {"ISOCHRONE_QUIET", "ISOCHRONE_OVERTAKING"} & set(env)


@pytest.mark.e2e
def test_the_notes_hold_the_stanza_that_the_command_prints() -> None:
    done = run_helm("install", "isochrone", str(CHART), "--namespace", "elsewhere", "--dry-run=client")
    assert stanza("http://isochrone-controller.elsewhere.svc:8800") in done.stdout


@pytest.mark.e2e
def test_nothing_is_pinned_to_a_namespace_of_ours() -> None:
    objects = template("createNamespace=true", "webhook.recogniseEverywhere=true")
    assert "isochrone-system" not in yaml.safe_dump_all(objects)
    named("Namespace", "elsewhere", objects)


@pytest.mark.e2e
def test_recognition_everywhere_is_a_third_path_for_unlabelled_gpu_pods() -> None:
    assert "recognise.isochrone.dev" not in webhooks(installed())
    hook = webhooks(template("webhook.recogniseEverywhere=true"))["recognise.isochrone.dev"]
    assert hook["clientConfig"]["service"]["path"] == "/mutate/recognise"
    assert {"key": ENABLED, "operator": "NotIn", "values": ["true", "false"]} in expressions(hook, "namespaceSelector")
    assert [each["name"] for each in hook["matchConditions"]] == ["not-placed", "asks-for-gpu"]


@pytest.mark.e2e
def test_the_uninstall_hook_releases_everything_first() -> None:
    objects = template()
    job = named("Job", "isochrone-release", objects)
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    spec = job["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "isochrone-release"
    assert spec["containers"][0]["args"] == ["release", "--all", "--remove-webhook"]
    assert not of_kind("Job", template("release.onUninstall=false"))
    check_pods(objects)


@pytest.mark.e2e
def test_the_extender_can_be_closed_to_all_but_volcano() -> None:
    assert not of_kind("NetworkPolicy", installed())
    (policy,) = of_kind("NetworkPolicy", template("controller.networkPolicy.enabled=true"))
    rule = policy["spec"]["ingress"][0]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "volcano-system"}


@pytest.mark.e2e
def test_one_webhook_replica_needs_no_disruption_budget() -> None:
    assert of_kind("PodDisruptionBudget", installed())
    assert not of_kind("PodDisruptionBudget", template("webhook.replicas=1"))


# --- the webhook configuration --------------------------------------------------------------------


def expressions(hook: Object, selector: str) -> list[Object]:
    found: list[Object] = hook[selector]["matchExpressions"]
    return found


def test_the_webhook_sorts_after_volcanos() -> None:
    (configuration,) = of_kind("MutatingWebhookConfiguration", installed())
    assert configuration["metadata"]["name"] > "volcano-admission-service-pods-mutate"


def test_no_entry_can_stop_a_pod() -> None:
    hooks = webhooks(installed())
    assert list(hooks) == ["labelled.isochrone.dev", "gang.isochrone.dev", "namespace.isochrone.dev"]
    for hook in hooks.values():
        assert hook["failurePolicy"] == "Ignore"
        assert hook["timeoutSeconds"] == 3
        assert hook["sideEffects"] == "None"
        assert hook["reinvocationPolicy"] == "IfNeeded"
        assert hook["admissionReviewVersions"] == ["v1"]
        assert "caBundle" not in hook["clientConfig"]
        assert hook["rules"] == [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ]


def test_system_namespaces_and_opted_out_pods_never_come() -> None:
    left_out = ["isochrone-system", "kube-system", "volcano-system"]
    for hook in webhooks(installed()).values():
        assert {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": left_out} in expressions(
            hook, "namespaceSelector"
        )
        assert {"key": ENABLED, "operator": "NotIn", "values": ["false"]} in expressions(hook, "objectSelector")


def test_each_pod_has_at_most_one_entry() -> None:
    """Over every mix of our two labels, in a namespace that is enabled."""
    hooks = webhooks(installed())
    paths = {name: hook["clientConfig"]["service"]["path"] for name, hook in hooks.items()}
    for labels in ({}, {PHASE: "decode"}, {GANG: "chat"}, {PHASE: "decode", GANG: "chat"}):
        asked = [name for name, hook in hooks.items() if selects(expressions(hook, "objectSelector"), labels)]
        assert len(asked) == 1
        assert paths[asked[0]] == ("/mutate/labelled" if labels else "/mutate/namespace")
        assert not [
            name
            for name, hook in hooks.items()
            if selects(expressions(hook, "objectSelector"), {**labels, ENABLED: "false"})
        ]


def selects(matches: list[Object], labels: dict[str, str]) -> bool:
    """A label selector, as the API server reads it."""
    return all(
        {
            "Exists": match["key"] in labels,
            "DoesNotExist": match["key"] not in labels,
            "In": labels.get(match["key"]) in match.get("values", ()),
            "NotIn": labels.get(match["key"]) not in match.get("values", ()),
        }[match["operator"]]
        for match in matches
    )


def test_in_enabled_namespaces_only_gpu_pods_come() -> None:
    hook = webhooks(installed())["namespace.isochrone.dev"]
    assert {"key": ENABLED, "operator": "In", "values": ["true"]} in expressions(hook, "namespaceSelector")
    conditions = {each["name"]: each["expression"] for each in hook["matchConditions"]}
    assert list(conditions) == ["not-placed", "asks-for-gpu"]
    for part in ("resourceClaims", "initContainers", "nvidia.com/", "contains('gpu')", "isochrone.dev/"):
        assert part in conditions["asks-for-gpu"]


def test_admit_knows_the_namespaces_that_the_chart_excludes() -> None:
    for hook in webhooks(installed()).values():
        (other,) = [each for each in expressions(hook, "namespaceSelector") if each["operator"] == "NotIn"]
        assert tuple(other["values"]) == EXCLUDED


def test_the_validating_part_is_shown_owners_alone_and_is_no_condition_for_anything() -> None:
    (configuration,) = of_kind("ValidatingWebhookConfiguration", installed())
    owner, misplaced = configuration["webhooks"]
    assert [owner["name"], misplaced["name"]] == ["owner.isochrone.dev", "misplaced.isochrone.dev"]
    for hook in (owner, misplaced):
        assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Ignore", "None", 3)
        assert hook["clientConfig"]["service"]["path"] == "/validate"
        assert hook["matchConditions"], "without a condition every owner of the cluster would be sent"
        assert not any("pods" in rule["resources"] for rule in hook["rules"])
    assert owner["rules"] == misplaced["rules"]
    assert not any("/" in resource for rule in owner["rules"] for resource in rule["resources"])  # no status, no scale
    names = [each["name"] for each in owner["matchConditions"]]
    assert names == ["template-has-a-key-of-ours", "template-is-new", "may-be-refused-or-made-by-a-person"]


def test_what_we_wrote_is_protected_from_everybody_but_us() -> None:
    policy = named("ValidatingAdmissionPolicy", "isochrone-own-annotations", installed())["spec"]
    assert policy["failurePolicy"] == "Ignore"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods"])
    # Pods of others are let by before any expression is evaluated.
    assert policy["matchConstraints"]["objectSelector"]["matchExpressions"] == [{"key": PHASE, "operator": "Exists"}]
    exempt = policy["matchConditions"][0]["expression"]
    assert "system:serviceaccount:isochrone-system:isochrone-controller" in exempt
    for key in (DECISION, PLACEMENT, SIGNAL, CONFLICT):
        assert f"'{key}'" in policy["matchConditions"][1]["expression"]
    assert [each["expression"] for each in policy["validations"]] == ["false"]  # whatever changes them is refused
    binding = named("ValidatingAdmissionPolicyBinding", "isochrone-own-annotations", installed())["spec"]
    assert binding == {"policyName": "isochrone-own-annotations", "validationActions": ["Deny"]}


@pytest.mark.e2e
def test_rules_are_mounted_as_a_folder_that_changes() -> None:
    objects = template("webhook.rules.mixed=decode")
    (rules,) = [each for each in of_kind("ConfigMap", objects) if each["metadata"]["name"] == "isochrone-rules"]
    assert read_rules(rules["data"]["rules.yaml"], "rules.yaml").mixed_as == "decode"
    spec = named("Deployment", "isochrone-webhook", objects)["spec"]["template"]["spec"]
    assert {"name": "rules", "configMap": {"name": "isochrone-rules"}} in spec["volumes"]
    (path,) = [each["value"] for each in spec["containers"][0]["env"] if each["name"] == "ISOCHRONE_RULES"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "rules"]
    assert path == f"{mount['mountPath']}/rules.yaml"
    assert "subPath" not in mount


# --- rights ---------------------------------------------------------------------------------------


def rights(name: str) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """(kind of role, group/resource, verb, names) of one process."""
    return {
        (role["kind"], f"{group}/{resource}", verb, tuple(rule.get("resourceNames", ())))
        for role in installed()
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] == name
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_no_right_is_a_wildcard() -> None:
    for role in of_kind("ClusterRole", installed()) + of_kind("Role", installed()):
        for rule in role["rules"]:
            for tokens in rule.values():
                assert not [word for word in tokens if "*" in word and word]


def test_the_webhook_may_touch_its_certificate_and_its_configuration() -> None:
    secret = ("isochrone-webhook-cert",)
    assert rights("isochrone-webhook") == {
        *(
            ("ClusterRole", f"admissionregistration.k8s.io/{kind}webhookconfigurations", verb, ("zz-isochrone",))
            for kind in ("mutating", "validating")
            for verb in ("get", "patch")
        ),
        ("Role", "/secrets", "get", secret),
        ("Role", "/secrets", "update", secret),
        ("Role", "/secrets", "patch", secret),
        ("Role", "/secrets", "create", ()),
    }


def test_the_controller_changes_pods_podgroups_events_and_its_lease() -> None:
    changing = {right[1:3] for right in rights("isochrone-controller") if right[2] not in ("get", "list", "watch")}
    assert changing == {
        ("/pods", "patch"),
        ("/pods", "delete"),
        ("/pods/status", "patch"),
        ("/events", "create"),
        ("/events", "patch"),
        ("scheduling.volcano.sh/podgroups", "create"),
        ("scheduling.volcano.sh/podgroups", "delete"),
        ("scheduling.volcano.sh/podgroups", "patch"),
        ("coordination.k8s.io/leases", "create"),
        ("coordination.k8s.io/leases", "update"),
        ("coordination.k8s.io/leases", "patch"),
    }
    read = {right[1] for right in rights("isochrone-controller") if right[2] == "watch"}
    assert read == {
        "/pods",
        "/nodes",
        "apps/deployments",
        "apps/replicasets",
        "apps/statefulsets",
        "leaderworkerset.x-k8s.io/leaderworkersets",
        "scheduling.volcano.sh/queues",
        "scheduling.volcano.sh/podgroups",
        "topology.volcano.sh/hypernodes",
    }


def test_release_opens_gates_makes_podgroups_and_removes_the_webhook() -> None:
    assert {right[1:] for right in rights("isochrone-release")} == {
        ("/pods", "get", ()),
        ("/pods", "list", ()),
        ("/pods", "patch", ()),
        ("scheduling.volcano.sh/podgroups", "get", ()),
        ("scheduling.volcano.sh/podgroups", "create", ()),
        ("admissionregistration.k8s.io/mutatingwebhookconfigurations", "delete", ("zz-isochrone",)),
    }


# --- pods and labels ------------------------------------------------------------------------------


def check_pods(objects: list[Object]) -> None:
    for spec in pod_specs(objects):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]


def test_pods_run_with_nothing_they_do_not_need() -> None:
    check_pods(installed())
    controller = named("Deployment", "isochrone-controller", installed())["spec"]
    assert (controller["replicas"], controller["strategy"]) == (1, {"type": "Recreate"})
    for spec in pod_specs(installed()):
        (container,) = spec["containers"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert {"name": "metrics", "containerPort": 8081} in container["ports"]


def test_services_lead_to_the_ports_that_pods_have() -> None:
    for service in of_kind("Service", installed()):
        spec = named("Deployment", service["metadata"]["name"], installed())["spec"]["template"]
        assert service["spec"]["selector"].items() <= spec["metadata"]["labels"].items()
        ports = {port["name"] for port in spec["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_object_says_what_it_belongs_to() -> None:
    usual = {"name", "instance", "version", "component", "part-of", "managed-by"}
    for each in installed():
        labels = each["metadata"]["labels"]
        assert {f"app.kubernetes.io/{key}" for key in usual} | {"helm.sh/chart"} <= set(labels)
        if each["kind"] in ("Deployment", "PodDisruptionBudget"):
            keys = {key.removeprefix("app.kubernetes.io/") for key in each["spec"]["selector"]["matchLabels"]}
            assert keys == {"name", "instance", "component"}


def test_every_value_is_described() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        leaf = re.match(r" *[a-zA-Z]+: *\S", line)
        if leaf and not line.strip().startswith(("#", "requests:", "limits:")):
            assert before.strip().startswith("# --"), line


def test_the_image_has_the_runtime_packages_of_the_lock() -> None:
    root = Path(INSTALL).parents[1]
    pins = {name: set(re.findall(r"^([a-z0-9.-]+==\S+)", (root / name).read_text(), re.MULTILINE)) for name in LOCKS}
    assert pins[LOCKS[1]] < pins[LOCKS[0]], "compile requirements-runtime.lock again"


@pytest.mark.e2e
def test_agents_are_off_and_with_them_hub_port_and_host_folders() -> None:
    assert not of_kind("DaemonSet", installed())
    assert "8830" not in INSTALL.read_text()


@pytest.mark.e2e
def test_an_agent_runs_on_gpu_nodes_with_read_only_host_folders_and_a_token_for_the_hub_alone() -> None:
    objects = template("agent.enabled=true", "createNamespace=true", "controller.networkPolicy.enabled=true")
    spec = named("DaemonSet", "isochrone-agent", objects)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["ISOCHRONE_HUB"] == "isochrone-controller.elsewhere.svc:8830"
    named_node = container["env"][0]
    assert named_node == {"name": "ISOCHRONE_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    folders = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
    assert folders == ["/sys", "/var/lib/kubelet/pod-resources"]
    [enrol] = [volume["projected"]["sources"] for volume in spec["volumes"] if "projected" in volume]
    token, ca = enrol
    assert token["serviceAccountToken"]["audience"] == AUDIENCE
    assert ca["configMap"]["name"] == ControllerSettings().hub_ca_config_map
    assert env["ISOCHRONE_ENROL"] == "isochrone-controller.elsewhere.svc:8831"
    assert {"name": "enrol", "mountPath": env["ISOCHRONE_ENROL_DIR"], "readOnly": True} in container["volumeMounts"]
    assert spec["serviceAccountName"] == ControllerSettings().agent_account
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert (spec["runtimeClassName"], spec["nodeSelector"]) == ("nvidia", {"nvidia.com/gpu.present": "true"})
    # What only an agent's settings know is read by the agent alone.
    known = {f"ISOCHRONE_{field.upper()}" for field in AgentSettings.model_fields}
    assert {name for name in env if name.startswith("ISOCHRONE_")} <= known
    labels = named("Namespace", "elsewhere", objects)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.e2e
@pytest.mark.parametrize(("plaintext", "enrol"), [("false", "false"), ("false", "true"), ("true", "true")])
def test_the_controller_serves_the_hub_for_agents(plaintext: str, enrol: str) -> None:
    objects = template(
        "agent.enabled=true",
        f"agent.plaintext={plaintext}",
        f"agent.enrol={enrol}",
        "controller.networkPolicy.enabled=true",
    )
    spec = named("Deployment", "isochrone-controller", objects)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["ISOCHRONE_HUB_LISTEN"] == "0.0.0.0:8830"
    assert ("ISOCHRONE_HUB_PLAINTEXT" in env) == (plaintext == "true")
    mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
    assert mounts.get("hub") == env.get("ISOCHRONE_HUB_TLS_DIR")
    secrets = [volume["secret"]["secretName"] for volume in spec.get("volumes", []) if "secret" in volume]
    assert secrets == (["isochrone-hub-tls"] if (plaintext, enrol) == ("false", "false") else [])
    # Certificates are given out, with the rights that this wants, where they are neither brought nor done without.
    gives = (plaintext, enrol) == ("false", "true")
    assert ("ISOCHRONE_ENROL_LISTEN" in env) == gives
    rules = named("ClusterRole", "isochrone-controller", objects)["rules"]
    assert ({"authentication.k8s.io"} in [set(rule["apiGroups"]) for rule in rules]) == gives
    retained = [
        rule for rule in named("Role", "isochrone-controller", objects)["rules"] if "secrets" in rule["resources"]
    ]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in retained] == (
        [(["isochrone-hub-cert"], ["get", "update"]), (None, ["create"])] if gives else []
    )
    daemon = named("DaemonSet", "isochrone-agent", objects)["spec"]["template"]["spec"]
    assert ("/etc/isochrone/agent" in str(daemon["volumes"])) == ((plaintext, enrol) == ("false", "false"))
    service = named("Service", "isochrone-controller", objects)
    assert {"name": "hub", "port": 8830, "targetPort": "hub"} in service["spec"]["ports"]
    (policy,) = of_kind("NetworkPolicy", objects)
    assert {"ports": [{"protocol": "TCP", "port": "hub"}]} in policy["spec"]["ingress"]
    assert ({"name": "enrol", "port": 8831, "targetPort": "enrol"} in service["spec"]["ports"]) == gives
    assert ({"ports": [{"protocol": "TCP", "port": "enrol"}]} in policy["spec"]["ingress"]) == gives


def test_measured_reach_is_mounted_where_the_controller_looks() -> None:
    [controller] = [
        each
        for each in template("controller.measuredReach=ours")
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "isochrone-controller"
    ]
    spec = controller["spec"]["template"]["spec"]
    [container] = spec["containers"]
    [env] = [each for each in container["env"] if each["name"] == "ISOCHRONE_MEASURED_REACH"]
    [mount] = container["volumeMounts"]
    assert env["value"] == f"{mount['mountPath']}/reach.json"
    assert spec["volumes"] == [{"name": mount["name"], "configMap": {"name": "ours", "optional": True}}]


def test_a_topology_file_is_mounted_where_the_controller_looks() -> None:
    rendered = template("controller.topologyFile=fabric", "controller.measuredReach=ours")
    spec = named("Deployment", "isochrone-controller", rendered)["spec"]["template"]["spec"]
    [container] = spec["containers"]
    [env] = [each for each in container["env"] if each["name"] == "ISOCHRONE_TOPOLOGY_FILE"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "topology"]
    assert env["value"] == f"{mount['mountPath']}/topology"
    assert "subPath" not in mount  # a file mounted by itself does not change
    assert {"name": "topology", "configMap": {"name": "fabric", "optional": True}} in spec["volumes"]
    assert "measured" in {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize(("publish", "more"), [("false", set()), ("true", {"patch"})])
def test_nodes_are_written_only_where_that_is_asked_for(publish: str, more: set[str]) -> None:
    rendered = template(f"controller.publishNodeLabels={publish}")
    rules = [
        rule
        for rule in named("ClusterRole", "isochrone-controller", rendered)["rules"]
        if rule["resources"] == ["nodes"]
    ]
    assert [set(rule["verbs"]) for rule in rules] == [{"get", "list", "watch"} | more]
    assert ("ISOCHRONE_PUBLISH_NODE_LABELS" in str(rendered)) == bool(more)


@pytest.mark.parametrize(("publish", "more"), [("false", set()), ("true", {"create", "patch", "delete"})])
def test_hypernodes_are_written_only_where_that_is_asked_for(publish: str, more: set[str]) -> None:
    rendered = template(f"controller.publishHyperNodes={publish}")
    rules = [
        rule
        for each in rendered
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "isochrone-controller"
        for rule in each["rules"]
        if rule["resources"] == ["hypernodes"]
    ]
    assert [set(rule["verbs"]) for rule in rules] == [{"get", "list", "watch"} | more]
    assert ("ISOCHRONE_PUBLISH_HYPERNODES" in str(rendered)) == bool(more)
