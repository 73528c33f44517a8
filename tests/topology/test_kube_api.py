"""The client against real servers on loopback: what is sent, errors, limits, retries, watches."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.topology.list_watch_server import LIMIT_S, status, until, write_kubeconfig
from tests.topology.scripted_server import DROP, Answer, ScriptedServer
from topology.kube.api import ApiError, ApiUnreachable, KubeApi, Retry

POD = "/api/v1/namespaces/default/pods/a"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer, None]:
    async with ScriptedServer(tmp_path) as made:
        yield made


@pytest.fixture
async def api(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[KubeApi, None]:
    monkeypatch.setattr("topology.kube.api._PAUSE_FIRST_S", 0.001)
    path = write_kubeconfig(server.folder, server.url, token="first")
    async with await KubeApi.connect(path, user_agent="isochrone-test", rng=random.Random(1)) as made:
        yield made


# --- what is sent ------------------------------------------------------------------------------


async def test_each_write_says_what_it_is(server: ScriptedServer, api: KubeApi) -> None:
    await api.apply(POD, {"kind": "Pod"})
    await api.patch_json(POD, [{"op": "remove", "path": "/x"}])
    await api.patch_merge(POD, {"status": {"nominatedNodeName": "n1"}}, subresource="status")
    await api.create("/api/v1/namespaces/default/pods", {"kind": "Pod"})
    assert await api.delete(POD, uid="u1")
    assert await api.get("/api/v1/pods", params={"labelSelector": "a in (b, c)"}) == b"{}"
    sent = [(seen.method, seen.headers.get("Content-Type"), json.loads(seen.body or b"null")) for seen in server.seen]
    assert sent == [
        ("PATCH", "application/apply-patch+yaml", {"kind": "Pod"}),
        ("PATCH", "application/json-patch+json", [{"op": "remove", "path": "/x"}]),
        ("PATCH", "application/merge-patch+json", {"status": {"nominatedNodeName": "n1"}}),
        ("POST", "application/json", {"kind": "Pod"}),
        ("DELETE", "application/json", {"preconditions": {"uid": "u1"}}),
        ("GET", None, None),
    ]
    assert server.seen[0].query == {"fieldManager": "isochrone", "force": "true"}
    assert server.seen[2].path == POD + "/status"
    assert server.seen[5].query == {"labelSelector": "a in (b, c)"}
    headers = server.seen[0].headers
    assert (headers["Authorization"], headers["User-Agent"]) == ("Bearer first", "isochrone-test")


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "true"),
    [
        (409, "Conflict", {"conflict"}),
        (409, "AlreadyExists", {"already_exists"}),
        (404, "NotFound", {"not_found"}),
        (410, "Expired", {"gone"}),
        (403, "Forbidden", {"forbidden"}),
        (422, "Invalid", {"invalid"}),
        (400, "BadRequest", set()),
    ],
)
async def test_an_answer_outside_2xx_is_one_line(
    server: ScriptedServer, api: KubeApi, code: int, reason: str, true: set[str]
) -> None:
    server.answers.append(lambda: status(code, reason, "two\nlines"))
    with pytest.raises(ApiError) as caught:
        await api.request("GET", POD)
    error = caught.value
    assert str(error) == f"GET {POD}: {code} {reason}: two lines"
    names = ("conflict", "already_exists", "not_found", "gone", "forbidden", "invalid")
    assert {name for name in names if getattr(error, name)} == true


async def test_a_proxy_that_answers_in_html(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(lambda: web.Response(text="<html>\x1b[31mno</html>", status=502))
    with pytest.raises(ApiError, match=r"502 Bad Gateway: <html> \[31mno</html>$"):
        await api.request("GET", POD)


async def test_no_redirect_takes_the_token_elsewhere(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(lambda: web.Response(status=302, headers={"Location": server.url + "/elsewhere"}))
    with pytest.raises(ApiError, match="302"):
        await api.request("GET", POD)
    assert len(server.seen) == 1


async def test_a_late_answer_is_unreachable(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(None)
    with pytest.raises(ApiUnreachable, match=r"no answer within 0\.05 s") as caught:
        await api.request("GET", POD, timeout_s=0.05)
    assert caught.value.sent


async def test_nobody_there_is_unreachable_and_unsent(tmp_path: Path) -> None:
    async with ScriptedServer(tmp_path) as gone:
        pass
    async with await KubeApi.connect(write_kubeconfig(tmp_path, gone.url)) as api:
        with pytest.raises(ApiUnreachable, match=r"no connection to 127\.0\.0\.1:\d+: Connect call failed") as caught:
            await api.request("POST", POD, body=b"{}")
    assert not caught.value.sent


async def test_an_answer_without_end_is_refused(server: ScriptedServer) -> None:
    server.answers.append(lambda: web.Response(body=b"x" * 5000))
    path = write_kubeconfig(server.folder, server.url)
    async with await KubeApi.connect(path, max_response_bytes=4000) as api:
        with pytest.raises(ApiError, match="ResponseTooLarge: the answer is larger than 4000 bytes"):
            await api.request("GET", POD)


# --- retries -----------------------------------------------------------------------------------


def throttled(**headers: str) -> web.Response:
    return status(429, "TooManyRequests", "slow down", **headers)


async def test_refused_is_repeated_whatever_it_was(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.extend([throttled, throttled])
    await api.request("POST", POD, body=b"{}")
    assert len(server.seen) == 3


async def test_refused_for_ever_ends(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.extend([throttled] * 9)
    with pytest.raises(ApiError, match="429 TooManyRequests: slow down"):
        await api.request("POST", POD, body=b"{}")
    assert len(server.seen) == 3


async def test_retry_after_is_waited_for(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(lambda: throttled(**{"Retry-After": "1"}))
    began = asyncio.get_running_loop().time()
    await api.get(POD)
    assert asyncio.get_running_loop().time() - began >= 1.0


async def test_too_long_a_retry_after_is_an_error_at_once(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(lambda: throttled(**{"Retry-After": "3600"}))
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(api.get(POD), LIMIT_S)
    assert caught.value.retry_after_s == 3600


def broken() -> web.Response:
    return status(500, "InternalError")


@pytest.mark.parametrize("trouble", [broken, DROP], ids=["500", "lost answer"])
async def test_only_what_can_be_repeated_is(server: ScriptedServer, api: KubeApi, trouble: Answer) -> None:
    async def tries(call: Callable[[], Any]) -> int:
        server.seen.clear()
        server.answers.clear()
        server.answers.extend([trouble] * 9)
        with pytest.raises((ApiError, ApiUnreachable)):
            await call()
        return len(server.seen)

    assert await tries(lambda: api.apply(POD, {})) == 3
    assert await tries(lambda: api.patch_merge(POD, {})) == 3
    assert await tries(lambda: api.get(POD)) >= 3  # aiohttp itself repeats a GET on a kept connection that was closed
    assert await tries(lambda: api.create(POD, {})) == 1
    assert await tries(lambda: api.patch_json(POD, [])) == 1
    assert await tries(lambda: api.patch_json(POD, [], retry=Retry.REPEATABLE)) == 3
    assert await tries(lambda: api.request("PATCH", POD, body=b"{}")) == 1


async def test_a_server_that_comes_back_is_found_again(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.extend([broken, DROP])
    assert await api.apply(POD, {}) == b"{}"


async def test_a_deletion_that_is_done_already_is_done(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.extend([DROP, lambda: status(404, "NotFound")])
    assert await api.delete(POD, uid="u") is False
    server.answers.append(lambda: status(409, "Conflict", "Precondition failed: UID in precondition: u"))
    assert await api.delete(POD, uid="u") is False  # somebody else has the name now: that pod is not ours to delete
    server.answers.append(lambda: status(409, "Conflict"))
    with pytest.raises(ApiError):
        await api.delete(POD)


# --- watches -----------------------------------------------------------------------------------


async def test_lines_split_anywhere_come_out_whole(server: ScriptedServer, api: KubeApi) -> None:
    big = b"x" * 300_000
    server.answers.append(lambda: web.Response(body=b"one\ntwo\n" + big + b"\nhalf"))
    got: list[bytes] = []
    async with aclosing(api.watch_lines("/w", params={"a": "b"}, silence_s=LIMIT_S)) as batches:
        async for lines in batches:
            got += lines
    assert got == [b"one", b"two", big]
    assert server.seen[0].query == {"a": "b", "watch": "true"}


async def test_a_watch_that_never_begins_is_noticed(server: ScriptedServer, api: KubeApi) -> None:
    server.answers.append(None)
    async with aclosing(api.watch_lines("/w", params={}, silence_s=0.1)) as batches:
        with pytest.raises(ApiUnreachable, match=r"WATCH /w: no answer within 0\.1 s"):
            await asyncio.wait_for(anext(batches), LIMIT_S)


async def test_watches_take_no_connection_from_writes(server: ScriptedServer) -> None:
    path = write_kubeconfig(server.folder, server.url)
    async with await KubeApi.connect(path, connections=1) as api:
        server.answers.extend([None, None])
        watches = [asyncio.ensure_future(anext(api.watch_lines("/w", params={}, silence_s=LIMIT_S))) for _ in range(2)]
        await until(lambda: len(server.seen) == 2)
        await api.get(POD, timeout_s=LIMIT_S)
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches, timeout=LIMIT_S)
