"""The server over real sockets with real TLS: what it answers, refuses and counts."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from admission.settings import WebhookSettings
from admission.webhook import review
from admission.webhook.server import MAX_BODY_BYTES
from tests.admission.pods import raw_pod
from tests.admission.running import LOOPBACK, OURS, Running, fresh, review_of, running, write
from tests.topology.list_watch_server import LIMIT_S
from topology.environment import load


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(
        "topology.http_server.HANDSHAKE_LIMIT_S", LIMIT_S
    )  # both ends are this process, which may be slow
    bundle = fresh()
    write(bundle, tmp_path)
    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="1ms")
    async with running(settings, bundle.ca) as up:
        yield up


async def test_the_three_entries_answer(server: Running) -> None:
    for path in ("/mutate/labelled", "/mutate/namespace", "/mutate/recognise?timeout=3s"):
        status, answer = await server.post(path, review_of(raw_pod(OURS)))
        assert status == 200
        assert isinstance(answer, dict)
        assert answer["response"]["uid"] == "u1"
        patch = msgspec.json.decode(base64.b64decode(answer["response"]["patch"]))
        assert {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "isochrone.dev/reach"}} in patch


@pytest.mark.parametrize(
    ("path", "body", "method", "headers", "status", "sentence"),
    [
        ("/mutate/labelled", b"{", "POST", {}, 400, "body is '{'; it must be an AdmissionReview: "),
        ("/mutate/labelled", b"\xff", "POST", {}, 400, "body is 'byte 0'; it must be UTF-8"),
        ("/mutate/labelled", b"{}", "POST", {}, 400, "body is ''; it must be of admission.k8s.io/v1"),
        ("/mutate/labelled", b"{}", "GET", {}, 405, "method is 'GET'; use 'POST'"),
        (
            "/mutate/labelled",
            b"{}",
            "POST",
            {"Content_Type": "text/plain"},
            415,
            "Content-Type is 'text/plain'; use 'application/json'",
        ),
        ("/mutate", b"{}", "POST", {}, 404, "path is '/mutate'; use POST to one of /mutate/labelled, "),
        ("/", b"", "GET", {}, 404, "path is '/'; use POST to one of /mutate/labelled, "),
        (
            "/mutate/labelled",
            b" " * (MAX_BODY_BYTES + 1),
            "POST",
            {},
            413,
            f"body is {MAX_BODY_BYTES + 1} bytes; at most {MAX_BODY_BYTES} bytes are read",
        ),
    ],
)
async def test_bad_requests_are_told_in_one_sentence(
    server: Running, path: str, body: bytes, method: str, headers: dict[str, str], status: int, sentence: str
) -> None:
    got, text = await server.post(path, body, method=method, **headers)
    assert got == status
    assert isinstance(text, str)
    assert text.startswith(sentence)
    assert text.count("\n") == 1


async def test_a_body_that_grows_when_it_is_unpacked_is_limited_too(server: Running) -> None:
    packed = gzip.compress(b" " * (MAX_BODY_BYTES + 1))
    status, text = await server.post("/mutate/labelled", packed, Content_Encoding="gzip")
    assert (status, text) == (413, f"body is larger; at most {MAX_BODY_BYTES} bytes are read\n")


async def test_a_body_without_a_length_is_limited_too(server: Running) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 2**20

    status, text = await server.post("/mutate/labelled", chunks())  # type: ignore[arg-type]
    assert (status, text) == (413, f"body is larger; at most {MAX_BODY_BYTES} bytes are read\n")


async def test_a_large_pod_is_read(server: Running) -> None:
    status, answer = await server.post("/mutate/labelled", review_of(raw_pod(OURS, {"big": "x" * 1_400_000})))
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["response"]["patchType"] == "JSONPatch"


async def test_a_bug_allows_the_pod_and_is_counted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(review, "decided", broken)
    status, answer = await server.post("/mutate/labelled", review_of(raw_pod(OURS)))
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["response"] == {
        "uid": "u1",
        "allowed": True,
        "warnings": ["Isochrone failed on this pod and left it alone; its log says why"],
    }
    _, text = await server.health("/metrics")
    assert 'isochrone_admission_reviews_total{entry="labelled",result="failed"} 1.0' in text


async def test_metrics_and_probes(server: Running) -> None:
    await server.post("/mutate/labelled", review_of(raw_pod(OURS)))
    await server.post("/mutate/namespace", review_of(raw_pod()))
    await server.post("/mutate/labelled", review_of(raw_pod({"isochrone.dev/phase": "?"})))
    await server.post("/mutate/labelled", b"{")
    _, text = await server.health("/metrics")
    for line in (
        'isochrone_admission_reviews_total{entry="labelled",result="tagged"} 1.0',
        'isochrone_admission_reviews_total{entry="namespace",result="untouched"} 1.0',
        'isochrone_admission_reviews_total{entry="labelled",result="refused"} 1.0',
        'isochrone_admission_reviews_total{entry="labelled",result="failed"} 1.0',
        'isochrone_admission_reviews_total{entry="recognise",result="tagged"} 0.0',
        "isochrone_admission_duration_seconds_count 3.0",
        "isochrone_build_info{version=",
    ):
        assert line in text
    assert await server.health("/livez") == (200, "ok\n")
    assert await server.health("/readyz") == (200, "ok\n")
    assert await server.health("/readyz?verbose") == (200, "[+] certificate ok\n[+] serving ok\n")


async def test_a_stranger_is_not_talked_to_without_tls(server: Running) -> None:
    with pytest.raises(aiohttp.ClientError):
        async with server.session.post(f"http://127.0.0.1:{server.at.admission.port}/mutate/labelled", data=b"{}"):
            pass


async def test_many_at_once(server: Running) -> None:
    body = review_of(raw_pod(OURS))
    answers = await asyncio.gather(*(server.post("/mutate/labelled", body) for _ in range(200)))
    assert {status for status, _ in answers} == {200}


async def test_the_rule_file_decides_and_a_bad_one_is_shown(tmp_path: Path) -> None:
    bundle, rules = fresh(), tmp_path / "rules.yaml"
    write(bundle, tmp_path)
    rules.write_text("rules: [{name: stage, label: acme.example/stage, values: {one: prefill}}]")
    settings = load(
        WebhookSettings,
        listen=LOOPBACK,
        health_listen=LOOPBACK,
        cert_dir=str(tmp_path),
        drain="1ms",
        rules=str(rules),
    )
    pod = raw_pod({"acme.example/stage": "one", "app.kubernetes.io/part-of": "chat"})
    async with running(settings, bundle.ca) as up:
        _, answer = await up.post("/mutate/namespace", review_of(pod))
        assert isinstance(answer, dict)
        assert b"isochrone-app-chat" in base64.b64decode(answer["response"]["patch"])
        assert "isochrone_rules_accepted 1.0" in (await up.health("/metrics"))[1]
    rules.write_text("rules: 1")
    async with running(settings, bundle.ca) as up:
        status, notes = await up.health("/readyz?verbose")
        assert (status, "[!] rule file:" in notes) == (200, True)
        assert "isochrone_rules_accepted 0.0" in (await up.health("/metrics"))[1]


async def test_nonsense_in_an_owners_template_is_refused_on_its_own_path(server: Running) -> None:
    owner = {"metadata": {"name": "chat"}, "spec": {"template": raw_pod({**OURS, "isochrone.dev/phase": "decod"})}}
    status, answer = await server.post("/validate", review_of(owner, "apps", "deployments"))
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["response"]["allowed"] is False
    assert (
        'isochrone_admission_reviews_total{entry="validate",result="refused"} 1.0'
        in (await server.health("/metrics"))[1]
    )
