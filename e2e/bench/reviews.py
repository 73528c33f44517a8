"""Admission reviews of pods as people write them, encoded as the API server sends them: bench bodies of a few KiB."""

import json
from typing import Any, Final

_SCRIPT: Final = """\
ulimit -l unlimited
export UCX_TLS=rc,cuda_copy
if [ -n "$RDMA_DEV" ]; then
  export UCX_NET_DEVICES="${RDMA_DEV},eth1"
fi
# the other half of the service runs with kv_producer
exec python3 -m vllm.entrypoints.openai.api_server \\
  --host 0.0.0.0 --port 8000 \\
  --model /models/Qwen3-32B --served-model-name qwen3-32b \\
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' \\
  --max-model-len 40960 --tensor-parallel-size 4 --gpu-memory-utilization 0.92
"""
_ENV: Final = {
    "UCX_LOG_LEVEL": "info",
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IB_GID_INDEX": "7",
    "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "PYTHONHASHSEED": "1047",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "5558",
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "600",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "info",
    "HF_HUB_OFFLINE": "1",
}
_LABELLED: Final = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat", "app": "chat-decode"}

# Path below /mutate, labels, command, arguments: in turn, so that every kind of reading is in the mix.
KINDS: Final[tuple[tuple[str, dict[str, str], list[str], list[str]], ...]] = (
    ("labelled", _LABELLED, ["vllm", "serve", "qwen3"], ["--tensor-parallel-size", "4"]),
    ("namespace", {"app": "chat-decode"}, ["sh", "-c"], [_SCRIPT]),
    (
        "namespace",
        {"llm-d.ai/role": "prefill", "llm-d.ai/model": "qwen3"},
        ["vllm", "serve"],
        ["qwen3", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'],
    ),
    (
        "namespace",
        {"rbg.workloads.x-k8s.io/role-name": "decode", "rbg.workloads.x-k8s.io/group-name": "chat"},
        ["python3", "-m", "sglang.launch_server"],
        ["--model-path", "qwen3", "--disaggregation-mode", "decode"],
    ),
    ("recognise", {"app": "train"}, ["torchrun"], ["--nproc-per-node", "8", "train.py", "--lr", "1e-4"]),
)


def reviews() -> list[tuple[str, bytes]]:
    """Path and body of one review of each kind."""
    return [(f"/mutate/{entry}", _body(labels, command, args)) for entry, labels, command, args in KINDS]


def _body(labels: dict[str, str], command: list[str], args: list[str]) -> bytes:
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5, "failureThreshold": 3}
    amounts = {"nvidia.com/gpu": "4", "cpu": "16", "memory": "128Gi"}
    engine: dict[str, Any] = {
        "name": "engine",
        "image": "registry.example/vllm-openai:v0.11.0",
        "command": command,
        "args": args,
        "env": [{"name": name, "value": value} for name, value in _ENV.items()]
        + [{"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
        "resources": {"limits": amounts, "requests": amounts},
        "ports": [{"containerPort": 8000, "name": "http", "protocol": "TCP"}],
        "readinessProbe": probe,
        "livenessProbe": probe,
        "startupProbe": probe,
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-7459345bb", "controller": True}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "chat-7459345bb-",
            "creationTimestamp": None,
            "labels": {**labels, "pod-template-hash": "7459345bb"},
            "ownerReferences": [{**owner, "uid": "5b1f7a0e-5d43-4f43-9d5b-0f6a3c3d8f11", "blockOwnerDeletion": True}],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {
                        "f:spec": {"f:containers": {'k:{"name":"engine"}': {f"f:{key}": {} for key in engine}}}
                    },
                }
            ],
        },
        "spec": {
            "containers": [engine],
            "volumes": [{"name": "models", "hostPath": {"path": "/data/models", "type": "Directory"}}],
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "enableServiceLinks": True,
        },
        "status": {},
    }
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team-a",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller",
            "groups": ["system:masters"],
        },
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()
