"""EDGE. `/topology/NODE` beside the metrics: what the agent of a node reports of its hardware, as JSON.

Read only, one node a call, without secrets: whoever may read the metrics may read it. It decides nothing.
"""

from __future__ import annotations

from aiohttp import web

from topology.clock import monotonic_s
from topology.hub.state import HubState

PATH = "/topology/{node}"


def add_facts_page(app: web.Application, agents: HubState) -> None:
    """Adds the page to an application that is not served yet."""

    async def facts(request: web.Request) -> web.Response:
        from topology.facts.node_json import written  # protobuf's JSON, loaded when somebody asks

        node = request.match_info["node"]
        found = agents.facts(node, monotonic_s())
        if found is None:
            why = "no agent of this node reports" if len(agents) else "no agent reports to this controller"
            return web.json_response({"error": why}, status=404)
        return web.Response(body=written(node, *found), content_type="application/json")

    app.router.add_get(PATH, facts)
