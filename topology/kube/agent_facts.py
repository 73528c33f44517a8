"""EDGE. What the controller knows from the agent of one node, asked through the API server's proxy to its Service.

So it takes the rights of whoever asks (`get` on `services/proxy`), and no other way into the cluster. What the answer
means: topology/facts/node_json.py.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topology.bad_input import BadInput
from topology.facts.age import PartAges
from topology.facts.node_json import read
from topology.facts.report import NodeFacts
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError

SERVICE: Final = "http:isochrone-controller:metrics"


class _ErrorBody(msgspec.Struct):
    error: str = ""


async def agent_facts(api: KubeApi, namespace: str, node: str) -> tuple[NodeFacts, PartAges] | str:
    """The facts and their ages, or why there are none, in one sentence. Raises ApiUnreachable; BadInput for an answer
    that is something else."""
    path = f"/api/v1/namespaces/{namespace}/services/{SERVICE}/proxy/topology/{node}"
    try:
        named, facts, ages = read(await api.get(path))
    except ApiError as error:
        if error.forbidden:
            return f"what its agent sees is not shown: no right to get services/proxy {SERVICE} in {namespace}"
        if error.not_found:
            try:
                value = msgspec.json.decode(error.message, type=_ErrorBody).error
            except msgspec.MsgspecError:
                value = ""
            return value or f"there is no Service isochrone-controller in {namespace}, so no agent is asked"
        return f"the controller does not say what its agent sees: {error.status} {error.reason}"
    if named != node:
        raise BadInput("the controller's answer", named, f"it was asked about {node}")
    return facts, ages
