"""An informer of pods at work for the length of a block, and a record of what it told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from tests.topology.list_watch_server import LIMIT_S, PATH, ListWatchServer, running
from topology.kube.api import KubeApi
from topology.kube.informer import Change, ChangeKind, Informer, InformerSettings
from topology.objects import Pod

QUICK = InformerSettings(
    page_size=3, silence_s=60.0, backoff_first_s=0.005, backoff_cap_s=0.02, brief_s=0.05, absent_retry_s=0.05
)


class Seen:
    """Keeps what `on_change` was told, in batches."""

    def __init__(self) -> None:
        self.batches: list[list[Change[Pod]]] = []

    def __call__(self, changes: Sequence[Change[Pod]]) -> None:
        assert changes
        self.batches.append(list(changes))

    @property
    def tokens(self) -> list[str]:
        return [word(change) for batch in self.batches for change in batch]


def word(change: Change[Pod]) -> str:
    pod = change.new or change.old
    assert pod is not None
    assert (change.old is None) == (change.kind is ChangeKind.ADDED)
    assert (change.new is None) == (change.kind is ChangeKind.DELETED)
    return f"{change.kind.value} {pod.metadata.name}"


@asynccontextmanager
async def watching(
    server: ListWatchServer, seen: Seen | None = None, how: InformerSettings = QUICK, *, absent_ok: bool = False
) -> AsyncGenerator[Informer[Pod], None]:
    async with await KubeApi.connect(server.kubeconfig, rng=random.Random(1)) as api:
        informer = Informer(api, PATH, Pod, on_change=seen, absent_ok=absent_ok, settings=how, rng=random.Random(2))
        async with running(informer.run()):
            yield informer


async def synced(informer: Informer[Pod]) -> None:
    await asyncio.wait_for(informer.synced.wait(), LIMIT_S)
