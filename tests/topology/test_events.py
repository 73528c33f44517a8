"""Events against a real server on loopback that only knows create and patch, and validates as Kubernetes does."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.list_watch_server import LIMIT_S, running, status, write_kubeconfig
from topology.kube.api import KubeApi
from topology.kube.events import NORMAL, WARNING, EventSettings, EventSink, Involved, cut_message, event_name

CASES = Path(__file__).parents[1] / "cases"
POD = Involved("Pod", "v1", "prod", "chat-decode-8", "6f1c")
QUICK = EventSettings(per_second=10_000, busy_wait_s=0.5, busy_poll_s=0.005, request_s=LIMIT_S)


class EventServer:
    """Keeps Events by namespace and name, as posted and patched; `refusals` are answered first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: dict[str, dict[str, Any]] = {}
        self.methods: list[str] = []
        self.refusals: deque[tuple[int, str]] = deque()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._create)
        app.router.add_patch("/api/v1/namespaces/{namespace}/events/{name}", self._patch)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _create(self, request: web.Request) -> web.Response:
        self.methods.append("POST")
        if self.refusals:
            return status(*self.refusals.popleft())
        event = json.loads(await request.read())
        namespace, name = request.match_info["namespace"], event["metadata"]["name"]
        assert event["metadata"]["namespace"] == namespace
        assert event["involvedObject"].get("namespace", "default") == namespace
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name)
        if f"{namespace}/{name}" in self.events:
            return status(409, "AlreadyExists")
        return self._keep(f"{namespace}/{name}", event)

    async def _patch(self, request: web.Request) -> web.Response:
        self.methods.append("PATCH")
        if self.refusals:
            return status(*self.refusals.popleft())
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        key = "{namespace}/{name}".format(**request.match_info)
        if key not in self.events:
            return status(404, "NotFound")
        return self._keep(key, self.events[key] | json.loads(await request.read()))

    def _keep(self, key: str, event: dict[str, Any]) -> web.Response:
        if len(event["message"].encode()) > 1024:
            return status(422, "Invalid", "can have at most 1024 bytes")
        self.events[key] = event
        return web.json_response(event)

    @property
    def messages(self) -> list[str]:
        return [event["message"] for event in self.events.values()]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[EventServer, None]:
    async with EventServer(tmp_path) as made:
        yield made


@asynccontextmanager
async def posting(server: EventServer, how: EventSettings = QUICK, **more: Any) -> AsyncGenerator[EventSink, None]:
    async with await KubeApi.connect(write_kubeconfig(server.folder, server.url)) as api:
        sink = EventSink(api, "isochrone-controller", settings=how, **more)
        async with running(sink.run()):
            yield sink


def pod(number: int) -> Involved:
    return Involved("Pod", "v1", "prod", f"p{number}", f"uid-{number}")


async def test_the_first_is_created_with_all_that_kubectl_shows(server: EventServer) -> None:
    async with posting(server) as sink:
        sink.post(POD, WARNING, "ReachExceeded", "No node within\n1.00 ms", key="a")
        assert await sink.drain(LIMIT_S)
    (event,) = server.events.values()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["firstTimestamp"])
    name = event_name(POD, "ReachExceeded", "a")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "prod"},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "prod",
            "name": "chat-decode-8",
            "uid": "6f1c",
        },
        "type": "Warning",
        "reason": "ReachExceeded",
        "message": "No node within 1.00 ms",
        "source": {"component": "isochrone-controller"},
        "reportingComponent": "isochrone-controller",
        "firstTimestamp": event["firstTimestamp"],
        "lastTimestamp": event["firstTimestamp"],
        "count": 1,
    }
    assert (sink.posted, sink.suppressed, sink.dropped.total()) == (1, 0, 0)


async def test_a_repeat_is_suppressed_in_its_window_and_counted_after_it(server: EventServer) -> None:
    async with posting(server) as sink:
        sink.post(POD, NORMAL, "WaitingForGang", "1 of 2 here", key="k")
        assert await sink.drain(LIMIT_S)
        sink.post(POD, NORMAL, "WaitingForGang", "1 of 2 here, still", key="k")  # five minutes are not over
        assert (sink.posted, sink.suppressed) == (1, 1)
        sink.post(POD, NORMAL, "WaitingForGang", "1 of 2 here, after all", key="k", window_s=0)
        assert await sink.drain(LIMIT_S)
    assert server.methods == ["POST", "PATCH"]
    (event,) = server.events.values()
    assert (event["count"], event["message"]) == (2, "1 of 2 here, after all")


async def test_another_reason_key_or_pod_is_another_event(server: EventServer) -> None:
    async with posting(server) as sink:
        sink.post(POD, NORMAL, "Placed", "x", key="k")
        sink.post(POD, NORMAL, "Placed", "x", key="other")
        sink.post(POD, NORMAL, "Fragmented", "x", key="k")
        sink.post(pod(1), NORMAL, "Placed", "x", key="k")
        sink.post(POD, NORMAL, "Undecided", "without a key its text is the key")
        sink.post(POD, NORMAL, "Undecided", "so this is another")
        assert await sink.drain(LIMIT_S)
    assert len(server.events) == 6


async def test_what_still_waits_takes_the_newest_words(server: EventServer) -> None:
    busy = True
    async with posting(server, busy=lambda: busy) as sink:
        sink.post(POD, NORMAL, "Placed", "old", key="k")
        sink.post(POD, NORMAL, "Placed", "new", key="k")
        busy = False
        assert await sink.drain(LIMIT_S)
    assert server.messages == ["new"]


async def test_after_a_restart_the_count_goes_on(server: EventServer) -> None:
    for expected in (1, 2, 3):
        async with posting(server) as sink:
            sink.post(POD, NORMAL, "Placed", f"time {expected}", key="k")
            assert await sink.drain(LIMIT_S)
        (event,) = server.events.values()
        assert (event["count"], event["message"]) == (expected, f"time {expected}")


async def test_an_event_that_the_server_forgot_is_created_anew(server: EventServer) -> None:
    async with posting(server) as sink:
        sink.post(POD, NORMAL, "Placed", "x", key="k", window_s=0)
        assert await sink.drain(LIMIT_S)
        server.events.clear()
        sink.post(POD, NORMAL, "Placed", "y", key="k", window_s=0)
        assert await sink.drain(LIMIT_S)
    (event,) = server.events.values()
    assert event["count"] == 1
    assert server.methods == ["POST", "PATCH", "POST"]


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        ((403, "Forbidden"), "forbidden"),
        ((404, "NotFound"), "not-found"),
        ((422, "Invalid"), "refused"),
    ],
)
async def test_a_refusal_is_counted_and_the_next_may_try(
    server: EventServer, refusal: tuple[int, str], why: str
) -> None:
    async with posting(server) as sink:
        server.refusals.append(refusal)
        sink.post(POD, NORMAL, "Placed", "x", key="k")
        assert await sink.drain(LIMIT_S)
        assert (dict(sink.dropped), sink.posted) == ({why: 1}, 0)
        sink.post(POD, NORMAL, "Placed", "x", key="k")  # in its window, but nobody saw the first
        assert await sink.drain(LIMIT_S)
        assert sink.posted == 1


async def test_a_server_that_is_away_costs_the_event_only(server: EventServer) -> None:
    async with posting(server) as sink:
        await server._runner.cleanup()
        sink.post(POD, NORMAL, "Placed", "x", key="k")
        assert await sink.drain(LIMIT_S)
        assert dict(sink.dropped) == {"unreachable": 1}


async def test_a_full_queue_drops_and_urgent_ones_take_the_place_of_others(server: EventServer) -> None:
    busy = True
    async with posting(server, EventSettings(queued=2, busy_wait_s=60, busy_poll_s=0.002), busy=lambda: busy) as sink:
        for number in range(4):
            sink.post(pod(number), NORMAL, "Placed", f"normal {number}", key="")
        sink.post(pod(4), NORMAL, "Placed", "urgent", key="", urgent=True)
        assert dict(sink.dropped) == {"queue-full": 3}
        busy = False
        assert await sink.drain(LIMIT_S)
    assert server.messages == ["urgent", "normal 1"]


async def test_what_is_forgotten_about_an_object_leaves_the_others_in_their_order(server: EventServer) -> None:
    busy = True
    async with posting(server, EventSettings(busy_wait_s=60, busy_poll_s=0.002), busy=lambda: busy) as sink:
        for number in (1, 2, 3):
            sink.post(pod(number), NORMAL, "Placed", f"placed {number}", key="")
            sink.post(pod(number), WARNING, "ReachExceeded", f"held {number}", key="")
        sink.forget(pod(2).uid, keep="ReachExceeded")
        sink.forget(pod(3).uid)
        sink.forget("nobody")
        assert dict(sink.dropped) == {"outdated": 3}
        sink.post(pod(3), NORMAL, "Placed", "placed 3 again", key="")  # its window does not count: nobody saw the first
        busy = False
        assert await sink.drain(LIMIT_S)
        assert sink._names == {}
    assert server.messages == ["placed 1", "held 1", "held 2", "placed 3 again"]


async def test_urgent_ones_do_not_wait_for_decisions_and_others_not_for_ever(server: EventServer) -> None:
    async with posting(server, busy=lambda: True) as sink:
        began = asyncio.get_running_loop().time()
        sink.post(pod(1), NORMAL, "Placed", "normal", key="")
        sink.post(pod(2), WARNING, "ReachBreached", "urgent", key="", urgent=True)
        assert await sink.drain(LIMIT_S)
        assert asyncio.get_running_loop().time() - began >= QUICK.busy_wait_s
    assert server.messages == ["urgent", "normal"]


async def test_the_rate_is_limited_after_a_burst(server: EventServer) -> None:
    async with posting(server, EventSettings(per_second=20, burst=5)) as sink:
        began = asyncio.get_running_loop().time()
        for number in range(10):
            sink.post(pod(number), NORMAL, "Placed", "x", key="")
        assert await sink.drain(LIMIT_S)
        assert asyncio.get_running_loop().time() - began >= 0.2  # five more at 20 a second
    assert len(server.events) == 10


async def test_what_is_remembered_is_bounded(server: EventServer) -> None:
    async with posting(server, EventSettings(per_second=10_000, remembered=10)) as sink:
        for number in range(40):
            sink.post(pod(number), NORMAL, "Placed", "x", key="")
        assert await sink.drain(LIMIT_S)
        assert len(sink._known) == 10
    assert len(server.events) == 40


async def test_cluster_wide_objects_have_their_events_in_default(server: EventServer) -> None:
    async with posting(server) as sink:
        sink.post(Involved("Node", "v1", "", "gpu-12", "n"), WARNING, "FactsStale", "x", key="")
        assert await sink.drain(LIMIT_S)
    (key,) = server.events
    assert key.startswith("default/gpu-12.")


async def test_a_very_long_name_still_makes_a_legal_one(server: EventServer) -> None:
    long = Involved("Pod", "v1", "prod", "a" * 235 + "." + "b" * 17, "u")
    async with posting(server) as sink:
        sink.post(long, NORMAL, "Placed", "x", key="")
        assert await sink.drain(LIMIT_S)
    (key,) = server.events
    assert len(key.removeprefix("prod/")) <= 253


@pytest.mark.parametrize("path", [CASES / "C124.yaml"], ids=lambda path: path.stem)
async def test_case(path: Path, server: EventServer) -> None:
    case = yaml.safe_load(path.read_text())  # noqa: ASYNC240  # a small file, before anything runs
    given_, expect = case["input"], case["expect"]
    message = given_["head"] + "".join(given_["each"].format(number=n + 1) for n in range(given_["numbers"]))
    async with posting(server) as sink:
        sink.post(POD, WARNING, "ReachExceeded", message, key="k")
        assert await sink.drain(LIMIT_S)
    (stored,) = server.messages
    assert stored.startswith(expect["starts_with"])
    assert stored.endswith(expect["ends_with"])
    assert stored.count(", ") == expect["whole_reasons"]
    assert len(stored.encode()) == expect["bytes"]


@given(st.text(st.characters(exclude_categories=[]), max_size=1500))
def test_any_text_becomes_one_legal_line(text: str) -> None:
    cut = cut_message(text)
    data = cut.encode()  # raises if a character was split
    assert len(data) <= 1024
    assert cut.splitlines() == ([cut] if cut else [])
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", cut)
    if not cut.endswith(" ..."):
        assert len(data) == len(
            re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip().encode("utf-8", "replace")
        )
