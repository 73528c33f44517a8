"""The command line of every program of the stack: pure functions, one per program.

Speed on two cores is bought only where it costs no truth: throw-away durability, no leader election, no
controllers that nothing here uses. Authorisation, service accounts and admission are real.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SERVICE_CIDR = "10.96.0.0/24"
POD_CIDR = "10.0.0.0/14"
"""KWOK's default /24 runs out of addresses at 254 pods."""

UNUSED_CONTROLLERS = (
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "endpoints-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "service-cidr-controller",
    "service-lb-controller",
    "storageversion-garbage-collector-controller",
    "ttl-controller",
    "validatingadmissionpolicy-status-controller",
    "volumeattributesclass-protection-controller",
)

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
"""
"""Writes only: the question put to the log is who wrote what."""

RELAXED_GC = {"GOGC": "300"}
"""Memory is plentiful, the two cores are not."""


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Files kube-apiserver and kube-controller-manager read."""

    tls_certificate: Path
    tls_key: Path
    ca: Path
    service_account_key: Path
    service_account_public: Path
    tokens: Path
    certificates: Path


def etcd(binary: Path, data: Path, client_port: int, peer_port: int) -> list[str]:
    """One member, no fsync: its data is thrown away."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(binary),
        "--name=one",
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=one={peer}",
        "--log-level=warn",
        # 1,000 nodes with heartbeats and a benchmark's pods must not reach the 2 GiB default.
        "--quota-backend-bytes=4294967296",
    ]


def kube_apiserver(
    binary: Path, port: int, etcd_port: int, files: ServerFiles, audit: tuple[Path, Path] | None
) -> list[str]:
    """`audit` is (policy file, log file), or None for no audit log."""
    argv = [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        # A machine without a default route has no address to advertise, and nobody needs one.
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={files.certificates}",
        f"--tls-cert-file={files.tls_certificate}",
        f"--tls-private-key-file={files.tls_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={files.service_account_public}",
        f"--service-account-signing-key-file={files.service_account_key}",
        f"--token-auth-file={files.tokens}",
        "--authorization-mode=RBAC",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        # New nodes would be tainted until the node lifecycle controller has seen them Ready: seconds lost.
        # The controller still taints nodes that stop being ready.
        "--disable-admission-plugins=TaintNodesByCondition",
        # One tenant: fair queuing between flows only costs time.
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        "--allow-privileged=true",
        "--event-ttl=1h",
        "--profiling=false",
        "--v=1",
    ]
    if audit is not None:
        policy, log = audit
        # Blocking: what a client got an answer for is in the log.
        argv += [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-mode=blocking"]
    return argv


def kube_controller_manager(binary: Path, port: int, kubeconfig: Path, files: ServerFiles) -> list[str]:
    """Deployments, StatefulSets, Jobs, service accounts, garbage collection, node lifecycle, quotas."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={files.certificates}",
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        f"--service-account-private-key-file={files.service_account_key}",
        f"--root-ca-file={files.ca}",
        "--controllers=" + ",".join(["*", *(f"-{name}" for name in UNUSED_CONTROLLERS)]),
        # KWOK sends no heartbeats here (1,000 nodes would cost 100 writes a second): a node is unready only when
        # a test says so, and is then tainted as usual.
        "--node-monitor-grace-period=24h",
        # The default of 20 requests a second makes a Deployment of hundreds of pods a matter of minutes.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
        "--v=1",
    ]


def schedules_for(names: Sequence[str]) -> list[str]:
    """Whose pods Volcano's two programs take, by `spec.schedulerName`; without it those of `volcano` alone."""
    return [f"--scheduler-name={name}" for name in names]


def vc_controller_manager(binary: Path, port: int, kubeconfig: Path, extra: Sequence[str] = ()) -> list[str]:
    """Volcano's controllers: queues become Open, pods without a PodGroup get one."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--enable-healthz=true",
        f"--healthz-address=127.0.0.1:{port}",
        "--enable-metrics=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--logtostderr=true",
        "-v=2",
        *extra,
    ]


def vc_scheduler(
    binary: Path, health_port: int, metrics_port: int, kubeconfig: Path, conf: Path, verbosity: int, extra: list[str]
) -> list[str]:
    """Volcano's scheduler; at verbosity 2 and above it says when it has taken a new conf."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--scheduler-conf={conf}",
        "--leader-elect=false",
        "--enable-healthz=true",
        f"--healthz-address=127.0.0.1:{health_port}",
        "--enable-metrics=true",
        f"--listen-address=127.0.0.1:{metrics_port}",
        "--logtostderr=true",
        f"-v={verbosity}",
        *extra,
    ]


def kwok(binary: Path, port: int, kubeconfig: Path, stages: Path) -> list[str]:
    """Plays the kubelet of every node; refuses to start without stages."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=true",
        f"--cidr={POD_CIDR}",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=0",
        f"--server-address=127.0.0.1:{port}",
    ]
