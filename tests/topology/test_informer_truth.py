"""Whatever happens between server and informer, in whatever order, ends with the server's truth."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.topology.list_watch_server import PATH, ListWatchServer, line, running, status, until
from topology.kube.api import KubeApi
from topology.kube.informer import Change, ChangeKind, Informer, InformerSettings
from topology.objects import Pod

QUICK = InformerSettings(page_size=3, silence_s=0.1, backoff_first_s=0.005, backoff_cap_s=0.02, brief_s=0.05)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef")),
        st.tuples(st.just("remove"), st.sampled_from("abcdef")),
        st.tuples(
            st.sampled_from(
                ["cut", "half line", "end", "garbage", "silence", "compact", "bookmark", "again", "500", "429", "pause"]
            ),
            st.just(""),
        ),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans())
def test_any_interleaving_ends_with_the_truth(steps: list[tuple[str, str]], gone_as_event: bool) -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with ListWatchServer(Path(folder)) as server:
                server.gone_as_event = gone_as_event
                replayed: dict[str, str] = {}

                def replay(changes: Sequence[Change[Pod]]) -> None:
                    for change in changes:
                        pod = change.new or change.old
                        assert pod is not None
                        key = pod.key
                        assert (key in replayed) == (change.kind is not ChangeKind.ADDED)
                        replayed.pop(key, None)
                        if change.new is not None:
                            replayed[key] = pod.metadata.resource_version

                async with await KubeApi.connect(server.kubeconfig) as api:
                    informer = Informer(api, PATH, Pod, on_change=replay, settings=QUICK, rng=random.Random(3))
                    async with running(informer.run()):
                        for what, name in steps:
                            await act(server, what, name)
                        await until(lambda: informer.synced.is_set() and server.same_as(informer.objects))
                        truth = {key: pod.metadata.resource_version for key, pod in informer.objects.items()}
                        assert replayed == truth  # the changes tell the same story as the objects

    asyncio.run(story())


async def act(server: ListWatchServer, what: str, name: str) -> None:
    if what in ("cut", "half line", "end", "garbage", "silence", "bookmark", "again"):
        with suppress(TimeoutError):  # a fault needs somebody to hit; queued refusals may keep everybody away
            await until(lambda: bool(server.open), 0.1)
    match what:
        case "put":
            server.put(name)
        case "remove":
            if f"default/{name}" in server.objects:
                server.remove(name)
        case "cut" | "end" | "silence":
            server.report(what)
            server.open.clear()
        case "half line":
            server.report("cut", b'{"type":"DELETED","object":{"metadata":{"name":"a"')
            server.open.clear()
        case "garbage":
            server.report("line", b"\xff{]\n")
        case "compact":
            server.forget_history()
        case "bookmark":
            server.bookmark()
        case "again":
            for _, kind, obj in server.history[-2:]:
                server.report("line", line(kind, obj))
            for _, kind, obj in server.history[-2:]:
                server.report("line", line(kind, obj))
        case "500":
            server.list_answers.append(lambda: status(500, "InternalError"))
        case "429":
            server.watch_answers.append(lambda: status(429, "TooManyRequests"))
        case "pause":
            await asyncio.sleep(0.003)
