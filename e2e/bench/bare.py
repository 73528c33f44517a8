"""A client that lets gangs go with Isochrone's writes and nothing else: the least that holding and releasing costs.

It knows beforehand which node a gang goes to, watches nothing, and explains nothing. Pods are tagged and held by the
webhook as always. What Isochrone costs above this is what it costs to watch, plan and explain.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from admission.recognition.gang_identity import podgroup_name
from e2e.bench.bodies import POD_GROUPS, SIZE, Post, pod_group
from e2e.stack.client import JSON, JSON_PATCH, MERGE_PATCH
from topology.labels import GATE, HOSTNAME

Send = Callable[[str, str, bytes, str], Awaitable[None]]
"""One request: method, path, body, content type. Raises when it is refused."""

SET_SIZE: Final = 16
"""Nodes within a gang's bound."""
EXPLAINED: Final = {"bench/placement": "x" * 430, "bench/decision": "x" * 180}
"""Annotations as long as those of an everyday release."""
AFTER_RELEASE_S: Final = 0.05
"""Isochrone's own watch shows the open gates about so long after they were written; Volcano's does no sooner."""


class BareRelease:
    """Told of each pod that was created; lets a gang go once its last one was. Belongs to one event loop."""

    def __init__(self, send: Send, nodes: Sequence[str]) -> None:
        self._send, self._nodes = send, nodes
        self._created: dict[str, list[Post]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def created(self, post: Post) -> None:
        """Gangs are told apart by the pods' names: `GANG-PHASE-INDEX`."""
        gang = post.name.rsplit("-", 2)[0]
        pods = self._created.setdefault(gang, [])
        pods.append(post)
        if len(pods) == SIZE:
            del self._created[gang]
            self._tasks.add(asyncio.create_task(self._let_go(gang, pods)))

    def failed(self) -> BaseException | None:
        """What went wrong with a gang, if anything did; ended gangs are forgotten."""
        ended = {task for task in self._tasks if task.done()}
        self._tasks -= ended
        return next((error for task in ended if (error := task.exception()) is not None), None)

    async def _let_go(self, gang: str, pods: Sequence[Post]) -> None:
        # Gangs fill a node each, and are numbered.
        at = int(gang.rsplit("-", 1)[1]) % len(self._nodes)
        near = self._nodes[at // SET_SIZE * SET_SIZE :][:SET_SIZE]
        nominated = _body({"status": {"nominatedNodeName": self._nodes[at]}})
        await asyncio.gather(
            *(self._send("PATCH", f"{pod.path}/{pod.name}/status", nominated, MERGE_PATCH) for pod in pods)
        )
        released = _body(_release(near))
        await asyncio.gather(*(self._send("PATCH", f"{pod.path}/{pod.name}", released, JSON_PATCH) for pod in pods))
        await asyncio.sleep(AFTER_RELEASE_S)
        namespace = pods[0].path.split("/")[-2]
        await self._send("POST", POD_GROUPS.format(namespace=namespace), _body(pod_group(podgroup_name(gang))), JSON)


def _release(near: Sequence[str]) -> list[dict[str, Any]]:
    """The gate out, the nodes within the bound in, the words beside."""
    expression = {"key": HOSTNAME, "operator": "In", "values": list(near)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
        {"op": "add", "path": "/spec/affinity", "value": affinity},
        *(
            {"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}
            for key, value in EXPLAINED.items()
        ),
    ]


def _body(item: Any) -> bytes:
    return json.dumps(item).encode()
