"""EDGE: `isochrone controller`: starts the controller and its servers (extender, health, hub), and ends them.

It wires and starts; every decision is made elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from admission.controller.controller import Controller
from admission.controller.facts_page import add_facts_page
from admission.controller.hub_serving import serving_hub
from admission.controller.metrics import ControllerMetrics
from admission.serving import background, health_app, stopped_by_signals
from admission.settings import ControllerSettings, old_names
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.server import Extender
from topology.http_server import listening
from topology.kube.api import KubeApi
from topology.units import HostPort

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the controller listens, with the ports that the system chose."""

    extender: HostPort
    health: HostPort
    hub: HostPort | None
    enrolment: HostPort | None


async def serve(
    settings: ControllerSettings, ready: Callable[[Listening], None] | None = None, *, stop: asyncio.Event | None = None
) -> None:
    """Runs until SIGTERM, SIGINT or `stop`; `ready` is called once Volcano and probes are answered.

    Raises BadInput for settings that cannot work.
    """
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for sentence in old_names(os.environ):
        log.warning("%s", sentence)
    stop = stop or asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stopped_by_signals(stop))
        api = await stack.enter_async_context(
            await KubeApi.connect(
                settings.kubeconfig or None, user_agent="isochrone-controller", named="ISOCHRONE_KUBECONFIG"
            )
        )
        controller = Controller(api, settings)
        metrics = ControllerMetrics(importlib.metadata.version("isochrone"), controller)
        health = health_app(metrics.registry, controller.checks)
        add_facts_page(health, controller.agents)
        probed = await stack.enter_async_context(listening(health, settings.health_listen, "HEALTH_LISTEN"))
        extender = Extender(
            controller,
            controller.decisions,
            max_body_bytes=settings.max_body,
            policy=controller.policy,
            metrics=ExtenderMetrics(metrics.registry),
        )
        asked = await stack.enter_async_context(listening(extender.app(), settings.extender_listen, "EXTENDER_LISTEN"))
        log.info("answering Volcano on %s, probes and metrics on %s", asked, probed)
        hub = enrolment = None
        if settings.hub_listen is not None:
            hub, enrolment = await stack.enter_async_context(
                serving_hub(controller, metrics, api, settings, settings.hub_listen)
            )
        running = await stack.enter_async_context(background(controller.run()))
        if ready:
            ready(Listening(asked, probed, hub, enrolment))
        running.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if running.done():
            running.result()
        controller.ending = True
        await controller.events.drain(2.0)
