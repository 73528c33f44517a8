"""Configuration and credentials, read by the real loaders and used against real servers on loopback."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.topology.list_watch_server import LIMIT_S, status, write_kubeconfig
from tests.topology.scripted_server import ScriptedServer, make_certificates
from topology.bad_input import BadInput
from topology.kube import access as kube_access
from topology.kube.access import KubeAccess
from topology.kube.api import ApiError, ApiUnreachable, KubeApi

POD = "/api/v1/namespaces/default/pods/a"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer, None]:
    async with ScriptedServer(tmp_path) as made:
        yield made


async def test_no_configuration_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match=r"kubeconfig is '~/\.kube/config'; no such file"):
        await KubeApi.connect()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(BadInput, match=r"KUBECONFIG is .*no such file"):
        await KubeApi.connect()
    for text in ("", "a: [", "- 1", "current-context: x\ncontexts: []\nclusters: []\n"):
        (tmp_path / "missing").write_text(text)
        with pytest.raises(BadInput, match=r"^KUBECONFIG is [^\n]*it cannot be used: [^\n]+$"):
            await KubeApi.connect()


async def test_an_exec_plugin_is_asked_again(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_access, "_FORCED_EVERY_S", 0.0)
    token = server.folder / "token"
    token.write_text("one")
    plugin = server.folder / "plugin"
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    plugin.write_text(f"#!/bin/sh\nprintf '{credential}' \"$(cat {token})\"\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    path = write_kubeconfig(server.folder, server.url, exec=command)
    async with KubeApi(await KubeAccess.load(path, renew_every_s=0.05)) as api:
        await api.get(POD)
        token.write_text("two")
        # In the background, when due ...
        async with asyncio.timeout(LIMIT_S):
            while server.seen[-1].headers["Authorization"] != "Bearer two":
                await asyncio.sleep(0.02)
                await api.get(POD)
    async with KubeApi(await KubeAccess.load(path, renew_every_s=1000)) as api:
        token.write_text("three")
        server.answers.append(lambda: status(401, "Unauthorized"))
        await api.create(POD, {})  # ... and at once when the server no longer knows us
        assert [seen.headers["Authorization"] for seen in server.seen[-2:]] == ["Bearer two", "Bearer three"]


async def test_still_unknown_after_renewal_is_an_error(server: ScriptedServer) -> None:
    server.answers.extend([lambda: status(401, "Unauthorized", "who are you?")] * 5)
    async with await KubeApi.connect(write_kubeconfig(server.folder, server.url, token="first")) as api:
        with pytest.raises(ApiError, match=r"401 Unauthorized: who are you\?"):
            await api.get(POD)
    assert len(server.seen) == 2


async def test_in_a_pod_the_token_file_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.aio.config import incluster_config

    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # not for a pod's own API server
    (tmp_path / "token").write_text("one\n")
    async with ScriptedServer(tmp_path, make_certificates(tmp_path)) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        async with KubeApi(await KubeAccess.load(renew_every_s=0.05)) as api:
            await api.get(POD)
            assert server.seen[-1].headers["Authorization"] == "bearer one"
            (tmp_path / "token").unlink()  # a moment without a file must not end us
            await asyncio.sleep(0.1)
            await api.get(POD)
            (tmp_path / "token").write_text("two\n")
            async with asyncio.timeout(LIMIT_S):
                while server.seen[-1].headers["Authorization"] != "bearer two":
                    await asyncio.sleep(0.02)
                    await api.get(POD)


async def test_a_certificate_of_somebody_else_is_refused(tmp_path: Path) -> None:
    async with (
        ScriptedServer(tmp_path, make_certificates(tmp_path)) as server,
        await KubeApi.connect(write_kubeconfig(tmp_path, server.url)) as api,
    ):
        with pytest.raises(ApiUnreachable, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await api.get(POD)
        assert not caught.value.sent
        assert not server.seen
