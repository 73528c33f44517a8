"""Who a node agent is, by what the API server says of its token: an account of ours, in a pod, on a node.

Public sources: Kubernetes API, authentication.k8s.io/v1 TokenReview; KEP-1205 (bound service account tokens: the pod in
`extra`); KEP-4193 (the node in `extra`, on by default since Kubernetes 1.30).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from topology.objects import Pod

AUDIENCE: Final = "isochrone-hub"
TOKEN_CHARS: Final = 8192
_EXTRA: Final = "authentication.kubernetes.io/"


class NotVouchedForError(Exception):
    """The API server does not vouch for the token."""


class WrongIdentityError(Exception):
    """The token is good, and not one that may have this certificate."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """The pod that a token is bound to. `node` is "" where the token does not say it."""

    namespace: str
    name: str
    uid: str
    node: str


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None
    audiences: list[str] | None = None


class _Review(msgspec.Struct):
    status: _Status | None = None


def review_of(token: str) -> Mapping[str, Any]:
    """The TokenReview to ask the API server with."""
    spec = {"token": token, "audiences": [AUDIENCE]}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}


def pod_of(answer: bytes, namespace: str, account: str) -> AgentPod:
    """The pod behind a reviewed token, if it runs as this account of this namespace.

    Raises NotVouchedForError and WrongIdentityError, with one sentence.
    """
    try:
        status = msgspec.json.decode(answer, type=_Review).status or _Status()
    except msgspec.MsgspecError:
        raise NotVouchedForError("the API server's answer about the token cannot be read") from None
    # A server that knows no audiences answers without them, and has then not looked at the token's.
    if not status.authenticated or status.user is None or AUDIENCE not in (status.audiences or ()):
        raise NotVouchedForError(f"the API server does not vouch for the token with audience {AUDIENCE}")
    wanted = f"system:serviceaccount:{namespace}:{account}"
    if status.user.username != wanted:
        raise WrongIdentityError(f"the token is of {status.user.username[:300]!r}, agents are {wanted!r}")
    reported = {key: values[0] for key, values in (status.user.extra or {}).items() if len(values) == 1}
    name, uid = reported.get(f"{_EXTRA}pod-name", ""), reported.get(f"{_EXTRA}pod-uid", "")
    if not name or not uid:
        raise WrongIdentityError("the token is bound to no pod")
    return AgentPod(namespace, name, uid, reported.get(f"{_EXTRA}node-name", ""))


def node_of(bound: AgentPod, pod: Pod | None) -> str:
    """The node of a pod, which `pod` tells where the token does not: what is there under the pod's name now.

    Raises WrongIdentityError.
    """
    if bound.node:
        return bound.node
    if pod is None or pod.metadata.uid != bound.uid:
        raise WrongIdentityError(f"pod {bound.name} of the token is gone")
    if not pod.spec.node_name:
        raise WrongIdentityError(f"pod {bound.name} of the token is on no node")
    return pod.spec.node_name
