"""The informer against a real server on loopback: whatever happens in between, it ends with the server's truth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from tests.topology.list_watch_server import LIMIT_S, PATH, ListWatchServer, gone, line, running, status, until
from tests.topology.watched_pods import QUICK, Seen, synced, watching, word
from topology.clock import monotonic_s
from topology.kube.api import KubeApi
from topology.kube.informer import Change, Informer
from topology.objects import Pod


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ListWatchServer, None]:
    async with ListWatchServer(tmp_path) as made:
        yield made


async def test_lists_in_pages_then_watches(server: ListWatchServer) -> None:
    for number in range(8):
        server.put(f"p{number}")
    seen = Seen()
    async with watching(server, seen) as informer:
        await synced(informer)
        assert server.same_as(informer.objects)
        assert [query.get("continue", "") for query in server.lists] == ["", "token-1", "token-2"]
        assert {query["limit"] for query in server.lists} == {"3"}
        assert len(seen.batches) == 1  # the whole list is one batch
        await until(lambda: bool(server.open))
        assert server.watches[0]["resourceVersion"] == str(server.version)
        assert server.watches[0]["allowWatchBookmarks"] == "true"
        assert 270 <= int(server.watches[0]["timeoutSeconds"]) <= 330
        put_s = monotonic_s()
        server.put("p8", spec={"nodeName": "n1"})
        server.put("p0")
        server.remove("p1")
        await until(lambda: server.same_as(informer.objects))
        assert seen.tokens[8:] == ["ADDED p8", "MODIFIED p0", "DELETED p1"]
        assert informer.objects["default/p8"].spec.node_name == "n1"
        assert informer.last_heard_s >= put_s
        assert (informer.relists, informer.reconnects, informer.undecodable) == (1, 0, 0)


async def test_changes_that_arrive_together_are_one_batch(server: ListWatchServer) -> None:
    seen = Seen()
    async with watching(server, seen) as informer:
        await until(lambda: bool(server.open))
        lines = b"".join(line("ADDED", {"metadata": {"name": f"b{n}", "namespace": "x"}}) for n in range(50))
        server.report("line", lines)
        await until(lambda: len(informer.objects) == 50)
        assert [len(batch) for batch in seen.batches] == [50]


@pytest.mark.parametrize("as_event", [False, True], ids=["status 410", "ERROR event 410"])
async def test_an_expired_version_means_a_new_list(server: ListWatchServer, as_event: bool) -> None:
    server.gone_as_event = as_event
    server.put("stays")
    server.put("vanishes")
    server.put("changes")
    seen = Seen()
    async with watching(server, seen) as informer:
        await until(lambda: bool(server.open))
        server.report("cut")
        server.open.clear()  # what follows is not heard
        server.remove("vanishes")
        server.put("changes")
        server.put("new")
        server.forget_history()
        await until(lambda: server.same_as(informer.objects))
        assert seen.tokens[3:] == ["DELETED vanishes", "MODIFIED changes", "ADDED new"]
        assert informer.relists == 2


async def test_resumes_where_it_was_cut(server: ListWatchServer) -> None:
    server.put("a")
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.put("b")
        server.report("cut", b'{"type":"ADDED","object":{"metadata":{"name":"half","na')
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1]["resourceVersion"] == str(server.version)
        server.put("c")
        await until(lambda: server.same_as(informer.objects))
        assert (informer.relists, informer.reconnects, informer.undecodable) == (1, 1, 0)


async def test_a_server_restored_from_a_backup_is_listed_again(server: ListWatchServer) -> None:
    server.put("a")
    server.put("b")
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.report("cut")
        server.open.clear()
        server.version, server.objects = 1, {}  # a watch from the old version would be accepted, and silent
        server.history.clear()
        server.put("c")
        await until(lambda: server.same_as(informer.objects))
        assert informer.relists == 2
        assert len(server.probes) == 1


async def test_a_bookmark_moves_the_version_to_resume_from(server: ListWatchServer) -> None:
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.version += 50  # other kinds changed
        before = informer.last_heard_s
        server.bookmark()
        await until(lambda: informer.last_heard_s > before)
        server.report("end")
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1]["resourceVersion"] == str(server.version)
        assert informer.reconnects == 0  # an orderly end is no failure


async def test_a_silent_connection_is_dropped(server: ListWatchServer) -> None:
    async with watching(server, how=replace(QUICK, silence_s=0.15)) as informer:
        await until(lambda: bool(server.open))
        server.report("silence")
        await until(lambda: not server.open)
        server.put("a")
        await until(lambda: server.same_as(informer.objects))
        assert informer.reconnects >= 1
        assert informer.relists == 1


async def test_a_line_that_is_no_event_means_a_new_list(server: ListWatchServer) -> None:
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.put("before")
        server.report("line", b'{"type":"ADDED","object":{"metadata"\n')
        await until(lambda: informer.relists == 2)
        assert server.same_as(informer.objects)
        assert informer.undecodable == 1


async def test_one_unreadable_object_costs_only_itself(
    server: ListWatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.put("good")
    server.put("bad", spec={"priority": "not a number"})
    server.put("turns", spec={"nodeName": "n1"})
    async with watching(server) as informer:
        await synced(informer)
        assert sorted(informer.objects) == ["default/good", "default/turns"]
        await until(lambda: bool(server.open))
        server.put("turns", spec={"priority": "bad now"})
        server.put("later")
        await until(lambda: "default/later" in informer.objects)
        assert informer.objects["default/turns"].spec.node_name == "n1"  # its last good state
        server.forget_history()
        server.version += 1
        server.forget_history()
        server.report("cut")
        await until(lambda: informer.relists == 2)
        assert informer.objects["default/turns"].spec.node_name == "n1"
        await until(lambda: bool(server.open))
        server.remove("turns")  # a deletion needs no more than a name
        server.remove("bad")
        server.put("last")
        await until(lambda: "default/last" in informer.objects)
        assert sorted(informer.objects) == ["default/good", "default/last", "default/later"]
        assert informer.undecodable == 4
    assert len([record for record in caplog.records if "cannot be decoded" in record.message]) == 1


async def test_the_same_event_twice_is_told_once(server: ListWatchServer) -> None:
    seen = Seen()
    async with watching(server, seen) as informer:
        await until(lambda: bool(server.open))
        server.put("a")
        server.report("line", line("ADDED", server.objects["default/a"]))
        server.report("line", line("DELETED", {"metadata": {"name": "never-heard-of", "namespace": "default"}}))
        server.put("b")
        await until(lambda: server.same_as(informer.objects))
        assert seen.tokens == ["ADDED a", "ADDED b"]


async def test_a_version_is_never_compared_for_order(server: ListWatchServer) -> None:
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.put("a")
        older = {"metadata": {"name": "a", "namespace": "default", "uid": "uid-a", "resourceVersion": "7"}}
        server.report("line", line("MODIFIED", older))
        await until(lambda: bool(informer.objects) and informer.objects["default/a"].metadata.resource_version == "7")


async def test_a_name_with_another_uid_is_another_pod(server: ListWatchServer) -> None:
    server.put("web-0", uid="first")
    seen = Seen()
    async with watching(server, seen) as informer:
        await until(lambda: bool(server.open))
        server.report("cut")
        server.open.clear()
        server.remove("web-0")
        server.put("web-0", uid="second")
        server.forget_history()
        await until(lambda: server.same_as(informer.objects))
        assert seen.tokens == ["ADDED web-0", "DELETED web-0", "ADDED web-0"]


async def test_an_expired_continue_token_starts_the_list_again(server: ListWatchServer) -> None:
    for number in range(5):
        server.put(f"p{number}")

    def first_page_then_expire() -> web.Response:
        server.list_answers.append(lambda: gone("the continue token is too old"))
        return server._list({"limit": "3"})

    server.list_answers.append(first_page_then_expire)
    async with watching(server) as informer:
        await synced(informer)
        assert server.same_as(informer.objects)
        assert [bool(query.get("continue")) for query in server.lists] == [False, True, False, True]
        assert informer.relists == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda: status(500, "InternalError"),
        lambda: status(504, "Timeout", "Too large resource version"),
        lambda: web.Response(text="<html>a proxy</html>", status=502),
        lambda: web.Response(text="not a list"),
    ],
    ids=["500", "504", "502 of a proxy", "200 with nonsense"],
)
async def test_bad_answers_are_survived(server: ListWatchServer, answer: Callable[[], web.Response]) -> None:
    server.put("a")
    server.list_answers.extend([answer] * 3)
    server.watch_answers.extend([answer] * 3)
    async with watching(server) as informer:
        await until(lambda: bool(server.open))
        server.put("b")
        await until(lambda: server.same_as(informer.objects))


async def test_a_watch_that_ends_at_once_does_not_spin(server: ListWatchServer) -> None:
    def empty() -> web.Response:
        server.watch_answers.append(empty)
        return web.Response(text="")

    server.watch_answers.append(empty)
    how = replace(QUICK, backoff_first_s=0.1, backoff_cap_s=0.1)
    async with watching(server, how=how) as informer:
        await synced(informer)
        began_s = monotonic_s()
        await until(lambda: len(server.watches) >= 10)
        assert monotonic_s() - began_s > 0.1  # ten pauses of up to 0.1 s


async def test_an_optional_kind_may_be_absent_and_come_later(server: ListWatchServer) -> None:
    server.list_answers.extend([lambda: status(404, "NotFound")] * 2)
    server.put("a")
    async with watching(server, absent_ok=True) as informer:
        await synced(informer)
        assert informer.objects == {}
        await until(lambda: server.same_as(informer.objects))
        # And goes again: its objects went with it.
        server.list_answers.extend([lambda: status(404, "NotFound")] * 100)
        server.watch_answers.append(lambda: status(404, "NotFound"))
        server.report("end")
        await until(lambda: not informer.objects)


async def test_a_kind_that_must_exist_keeps_trying(server: ListWatchServer) -> None:
    server.list_answers.extend([lambda: status(404, "NotFound")] * 3)
    async with watching(server) as informer:
        await synced(informer)
        assert len(server.lists) == 4


async def test_forbidden_is_said_once_and_tried_again(
    server: ListWatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.list_answers.extend([lambda: status(403, "Forbidden", "pods is forbidden:\nno right")] * 4)
    async with watching(server) as informer:
        await synced(informer)
    value = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(value) == 1
    assert value[0].endswith("pods is forbidden: no right; grant list and watch on /api/v1/pods, trying again")


async def test_a_server_that_is_away_keeps_what_is_known(tmp_path: Path) -> None:
    async with ListWatchServer(tmp_path) as server:
        server.put("a")
        async with watching(server) as informer:
            await until(lambda: informer.watching)
            heard = informer.last_heard_s
            await server._runner.cleanup()
            await until(lambda: informer.reconnects >= 3)
            assert sorted(informer.objects) == ["default/a"]
            assert informer.last_heard_s == heard  # so its age shows


async def test_selectors_are_sent_with_both_requests(server: ListWatchServer) -> None:
    async with await KubeApi.connect(server.kubeconfig) as api:
        informer = Informer(
            api, PATH, Pod, label_selector="a in (b,c)", field_selector="spec.schedulerName=volcano", settings=QUICK
        )
        async with running(informer.run()):
            await until(lambda: bool(server.open))
    for query in (server.lists[0], server.watches[0]):
        assert query["labelSelector"] == "a in (b,c)"
        assert query["fieldSelector"] == "spec.schedulerName=volcano"


async def test_a_mistake_in_the_callback_is_not_hidden(server: ListWatchServer) -> None:
    server.put("a")

    def broken(_: Sequence[Change[Pod]]) -> None:
        raise ZeroDivisionError

    async with await KubeApi.connect(server.kubeconfig) as api:
        informer = Informer(api, PATH, Pod, on_change=broken, settings=QUICK)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(informer.run(), LIMIT_S)


async def test_what_comes_together_is_told_together(server: ListWatchServer) -> None:
    seen = Seen()
    async with watching(server, seen, replace(QUICK, gather_s=0.4)) as informer:
        await until(lambda: informer.watching)
        server.put("a")
        await until(lambda: len(seen.batches) == 1)
        together, tries = ["ADDED b", "ADDED c", "ADDED d"], 0
        while True:
            for name in "bcd":  # each is sent on its own
                server.put(name)
                await asyncio.sleep(0.01)
            await until(lambda: server.same_as(informer.objects))
            if [word(change) for change in seen.batches[-1]] == together:
                break
            # This process stood still for longer than that is waited: it says nothing of what is gathered.
            tries += 1
            assert tries < 20, seen.batches
            together = ["MODIFIED b", "MODIFIED c", "MODIFIED d"]
    assert [word(change) for change in seen.batches[0]] == ["ADDED a"]


async def test_what_is_kept_of_an_object_is_the_callers_choice(server: ListWatchServer) -> None:
    server.put("a", spec={"nodeName": "n1"})
    async with await KubeApi.connect(server.kubeconfig) as api:
        informer = Informer(api, PATH, Pod, keep=lambda pod: Pod(metadata=pod.metadata), settings=QUICK)
        async with running(informer.run()):
            await asyncio.wait_for(informer.synced.wait(), LIMIT_S)
            await until(lambda: informer.watching)
            server.put("b", spec={"nodeName": "n1"})
            await until(lambda: len(informer.objects) == 2)
    assert {pod.spec.node_name for pod in informer.objects.values()} == {""}
