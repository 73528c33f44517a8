"""EDGE. The servers for node agents: the hub, and beside it, where that is asked for, the place to get certificates.

It wires and starts; gRPC and cryptography are imported only where they are used (12 MB each).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from admission.controller.controller import Controller
from admission.controller.metrics import ControllerMetrics
from admission.controller.probe_orders import ProbeOrders
from admission.serving import background
from admission.settings import ControllerSettings
from topology.bad_input import BadInput
from topology.kube.api import KubeApi
from topology.units import HostPort

if TYPE_CHECKING:
    from admission.controller.hub_certificate import HubCertificate

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving_hub(
    controller: Controller,
    metrics: ControllerMetrics,
    api: KubeApi,
    settings: ControllerSettings,
    where: HostPort,
) -> AsyncIterator[tuple[HostPort, HostPort | None]]:
    """Serves while the context lasts; yields where the hub and, if there is one, enrolment listen. Raises BadInput."""
    from topology.hub import server as hub

    if not settings.hub_tls_dir and not settings.hub_plaintext and settings.enrol_listen is None:
        allowed = (
            "it must hold tls.crt, tls.key and ca.crt for ISOCHRONE_HUB_LISTEN, or set ISOCHRONE_ENROL_LISTEN for "
            "agents to get certificates here, or ISOCHRONE_HUB_PLAINTEXT=true"
        )
        raise BadInput("ISOCHRONE_HUB_TLS_DIR", "", allowed)
    if settings.enrol_listen is not None and (settings.hub_tls_dir or settings.hub_plaintext):
        other = "ISOCHRONE_HUB_TLS_DIR" if settings.hub_tls_dir else "ISOCHRONE_HUB_PLAINTEXT"
        raise BadInput("ISOCHRONE_ENROL_LISTEN", str(settings.enrol_listen), f"set it or {other}, not both")
    served = hub.Hub(controller.agents, bound=bool(settings.hub_tls_dir) or settings.enrol_listen is not None)
    probes = ProbeOrders(
        served, controller.agents, controller.state, every_s=settings.probe_every, size_bytes=settings.probe_size
    )
    controller.probes = probes
    metrics.follow_hub(controller.agents, served)
    async with contextlib.AsyncExitStack() as stack:
        certificate, enrolment, longest_s = None, None, 0.0
        if settings.enrol_listen is not None:
            from admission.certificates.authority import AGENT_LIFE, service_names
            from admission.controller.hub_certificate import HubCertificate

            # A connection of an agent that should have no certificate any more does not last for ever.
            longest_s = AGENT_LIFE.total_seconds() / 2
            names = service_names(settings.hub_service, settings.namespace)
            certificate = HubCertificate(
                api, settings.namespace, settings.hub_secret, settings.hub_ca_config_map, names
            )
            enrolment = await stack.enter_async_context(
                _enrolling(metrics, api, settings, settings.enrol_listen, certificate)
            )
        port = await stack.enter_async_context(
            hub.listening(
                served,
                where.host,
                where.port,
                settings.hub_tls_dir,
                tls=certificate.parts if certificate is not None else None,
                longest_s=longest_s,
            )
        )
        bound = HostPort(where.host, port)
        log.info("agents report to %s", bound)
        for work in (probes.run(), controller.ages.run()):
            await stack.enter_async_context(background(work))
        yield bound, enrolment


@contextlib.asynccontextmanager
async def _enrolling(
    metrics: ControllerMetrics,
    api: KubeApi,
    settings: ControllerSettings,
    where: HostPort,
    certificate: HubCertificate,
) -> AsyncIterator[HostPort]:
    from admission.controller.enrolment import EnrolmentServer, listening

    enrolment = EnrolmentServer(api, certificate.bundle, settings.namespace, settings.agent_account)
    metrics.follow_enrolment(enrolment)
    async with background(certificate.run()), listening(enrolment, where, certificate.parts) as bound:
        log.info("agents get certificates at %s", bound)
        yield bound
