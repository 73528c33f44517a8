"""When something is published: not before agents are back, again after a change, and again after a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from admission.controller import publishing
from admission.serving import background
from admission.settings import ControllerSettings
from tests.scheduler.clusters import node
from tests.topology.list_watch_server import until
from topology.cluster.domain_sources import NO_SOURCES, Sources
from topology.cluster.state import ClusterState
from topology.hypernodes import publication
from topology.hypernodes.label_publisher import NodeLabelPublisher
from topology.hypernodes.publication import Publication
from topology.hypernodes.publisher import HyperNodePublisher
from topology.kube.errors import ApiError
from topology.labels import ACCELERATOR, NVLINK_CLIQUE
from topology.objects import Node
from topology.units import HostPort


class _Recorder:
    """Notes which nodes each round is about; refuses on request."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.refuse = 0

    async def publish(self, nodes: Sequence[Node], sources: Sources) -> int:
        self.rounds.append([each.metadata.name for each in nodes])
        if self.refuse:
            self.refuse -= 1
            raise ApiError(403, "Forbidden", "not you")
        return 1


async def test_it_waits_for_agents_then_follows_changes_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "SETTLE_S", 0.001)
    monkeypatch.setattr(publication, "AGAIN_S", 0.001)
    recorder, settled, nodes = _Recorder(), asyncio.Event(), [node("n1")]
    recorder.refuse = 1

    async def agents_back() -> None:
        await settled.wait()

    published = Publication(
        lambda: nodes, lambda n: n.metadata.name != "cpu", lambda: NO_SOURCES, [recorder], agents_back
    )
    async with background(published.run()):
        published.changed()
        await asyncio.sleep(0.01)
        assert recorder.rounds == []
        settled.set()
        await until(lambda: len(recorder.rounds) == 2)  # refused, then again
        nodes += [node("n2"), node("cpu", gpus=0)]
        published.changed()
        await until(lambda: recorder.rounds[-1] == ["n1", "n2"])


async def test_a_disagreement_is_told_once_and_counted_though_nothing_is_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def at_once() -> None:
        """Nobody has to be waited for."""

    apart = [node(f"n{i}", labels={NVLINK_CLIQUE: "u.1", ACCELERATOR: f"x{i}"}) for i in range(2)]
    published = Publication(lambda: apart, lambda _: True, lambda: NO_SOURCES, [], at_once)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert await published.publish() == 0
    assert len(published.conflicts) == len(caplog.messages) == 1
    apart.pop()
    await published.publish()
    assert len(published.conflicts) == 0


@pytest.mark.parametrize(("hub", "waits"), [(None, False), (HostPort("127.0.0.1", 0), True)])
async def test_with_a_hub_the_agents_of_all_gpu_nodes_are_waited_for(
    hub: HostPort | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_POLL_S", 0.001)
    heard: set[str] = set()
    nodes = [node("n1"), node("n2"), node("cpu", gpus=0)]
    settings = ControllerSettings(hub_listen=hub, publish_hypernodes=True, publish_node_labels=True)
    made = publishing.publication(
        None,  # type: ignore[arg-type]  # nothing is written here
        settings,
        ClusterState(),
        lambda: nodes,
        list,
        heard.__contains__,
    )
    assert [type(each) for each in made._publishers] == [HyperNodePublisher, NodeLabelPublisher]
    waiting = asyncio.ensure_future(made._settled())
    await asyncio.sleep(0.01)
    assert waiting.done() is not waits
    heard.update({"n1", "n2"})
    await waiting
