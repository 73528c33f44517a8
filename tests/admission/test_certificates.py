"""Certificates: what is made, when it is replaced, and how replicas agree."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from admission.certificates.authority import Bundle, issue, service_names, why_replace
from admission.webhook.certificate_store import Folder, Secret, keep
from admission.webhook.serving_certificate import ServingCertificate
from tests.admission.fake_api import SECRET, FakeApi
from tests.topology.list_watch_server import LIMIT_S
from topology import clock
from topology.bad_input import BadInput
from topology.kube.errors import ApiError, ApiUnreachable

NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
NAMES = service_names("isochrone-webhook", "isochrone-system", ("127.0.0.1", "extra.example"))
DAY = datetime.timedelta(days=1)


def real_now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.wall_time_s(), datetime.UTC)


def test_a_leaf_is_for_the_service_and_signed_by_its_authority() -> None:
    bundle = issue(NAMES, NOW)
    leaf = x509.load_pem_x509_certificate(bundle.certificate)
    authority = x509.load_pem_x509_certificate(bundle.ca)
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "isochrone-webhook.isochrone-system.svc",
        "isochrone-webhook.isochrone-system.svc.cluster.local",
        "extra.example",
    ]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert leaf.not_valid_after_utc == NOW + 90 * DAY
    assert authority.not_valid_after_utc > NOW + 365 * DAY
    assert why_replace(bundle, NAMES, NOW) == ""


def test_a_leaf_is_replaced_in_its_last_third_by_the_same_authority() -> None:
    first = issue(NAMES, NOW)
    assert why_replace(first, NAMES, NOW + 59 * DAY) == ""
    assert why_replace(first, NAMES, NOW + 61 * DAY) == "it ends on 2027-02-28"
    second = issue(NAMES, NOW + 61 * DAY, first)
    assert (second.ca, second.ca_key) == (first.ca, first.ca_key)
    assert second.certificate != first.certificate
    assert why_replace(second, NAMES, NOW + 61 * DAY) == ""


def test_an_authority_is_replaced_in_its_last_third_and_stays_trusted() -> None:
    first = issue(NAMES, NOW)
    later = NOW + 1230 * DAY
    almost = issue(NAMES, later - 30 * DAY, first)
    assert almost.ca == first.ca
    assert why_replace(almost, NAMES, later) == "its authority ends on 2031-11-29"
    second = issue(NAMES, later, first)
    new, old = x509.load_pem_x509_certificates(second.ca)
    assert old == x509.load_pem_x509_certificate(first.ca)
    x509.load_pem_x509_certificate(second.certificate).verify_directly_issued_by(new)
    third = issue(NAMES, later + 1300 * DAY, second)
    assert len(x509.load_pem_x509_certificates(third.ca)) == 2


@pytest.mark.parametrize("part", ["certificate", "key", "ca", "ca_key"])
@pytest.mark.parametrize("how", ["rubbish", "foreign"])
def test_a_bundle_whose_parts_do_not_fit_is_replaced(part: str, how: str) -> None:
    good, foreign = issue(NAMES, NOW), issue(NAMES, NOW)
    parts = {name: getattr(good, name) for name in ("certificate", "key", "ca", "ca_key")}
    bad = Bundle(**{**parts, part: b"x" if how == "rubbish" else getattr(foreign, part)})
    assert why_replace(bad, NAMES, NOW)
    assert why_replace(issue(NAMES, NOW, bad), NAMES, NOW) == ""


def test_a_new_name_needs_a_new_leaf() -> None:
    assert why_replace(issue(NAMES[:2], NOW), NAMES, NOW) == "it is not for 127.0.0.1"


def greeted(serving: ServingCertificate, bundle: Bundle) -> bool:
    """Whether a client that trusts the bundle's authority completes a handshake."""
    trust = ssl.create_default_context(cadata=bundle.ca.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(to_client, to_server, server_hostname=NAMES[0])
    server = serving.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return False
    return True


def test_new_handshakes_use_the_newest_pair_and_one_that_does_not_fit_changes_nothing() -> None:
    first, second = issue(NAMES, real_now()), issue(NAMES, real_now())
    serving = ServingCertificate()
    assert not serving.ready
    assert serving.load(first.certificate, first.key)
    assert not serving.load(first.certificate, first.key)
    with pytest.raises(ssl.SSLError):
        serving.load(second.certificate, first.key)
    assert serving.ready
    assert (greeted(serving, first), greeted(serving, second)) == (True, False)
    assert serving.load(second.certificate, second.key)
    assert (greeted(serving, first), greeted(serving, second)) == (False, True)


async def test_a_folder_is_read_again_when_it_changes(tmp_path: Path) -> None:
    serving, folder = ServingCertificate(), Folder(str(tmp_path))
    with pytest.raises(BadInput, match=r"ISOCHRONE_CERT_DIR is .*; it must hold tls.crt and tls.key: No such file"):
        await folder.refresh(serving)
    for bundle in (issue(NAMES, NOW), issue(NAMES, NOW)):
        (tmp_path / "tls.crt").write_bytes(bundle.certificate)
        (tmp_path / "tls.key").write_bytes(bundle.key)
        await folder.refresh(serving)
        assert not serving.load(bundle.certificate, bundle.key)
    (tmp_path / "tls.key").write_bytes(issue(NAMES, NOW).key)
    with pytest.raises(BadInput, match="its pair is unusable"):
        await folder.refresh(serving)


def source(api: FakeApi) -> Secret:
    return Secret(api, "isochrone-system", "cert", "zz-isochrone", NAMES)


async def test_the_secret_is_made_announced_and_used() -> None:
    api, serving = FakeApi(), ServingCertificate()
    api.configuration(None, "b2xk", None)
    await source(api).refresh(serving)
    secret = api.objects[SECRET]
    assert secret["type"] == "kubernetes.io/tls"
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert api.bundles() == [secret["data"]["ca.crt"]] * 3
    assert not serving.load(*(base64.b64decode(secret["data"][key]) for key in ("tls.crt", "tls.key")))
    await source(api).refresh(serving)
    assert api.writes == ["create cert", "patch zz-isochrone"]


async def test_two_replicas_at_once_agree() -> None:
    api = FakeApi()
    api.configuration(None)
    serving = [ServingCertificate() for _ in range(4)]
    await asyncio.gather(*(source(api).refresh(one) for one in serving))
    data = api.objects[SECRET]["data"]
    assert api.writes.count("create cert") == 1
    assert all(not one.load(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"])) for one in serving)
    assert api.bundles() == [data["ca.crt"]]


async def test_replicas_renew_once() -> None:
    api = FakeApi()
    api.configuration(None)
    await source(api).refresh(ServingCertificate())
    old = issue(NAMES, real_now() - 70 * DAY)
    parts = {"tls.crt": old.certificate, "tls.key": old.key, "ca.crt": old.ca, "ca.key": old.ca_key}
    api.objects[SECRET]["data"] = {key: base64.b64encode(value).decode() for key, value in parts.items()}
    api.objects[SECRET]["data"]["more"] = "eA=="
    await asyncio.gather(*(source(api).refresh(ServingCertificate()) for _ in range(3)))
    data = api.objects[SECRET]["data"]
    assert api.writes.count("PUT cert") == 1
    assert base64.b64decode(data["ca.crt"]) == old.ca  # the leaf alone was due
    assert base64.b64decode(data["tls.crt"]) != old.certificate
    assert data["more"] == "eA=="


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "eA=="}, {"tls.crt": "?", "tls.key": 1}])
async def test_an_empty_or_broken_secret_is_filled(data: Any) -> None:
    api, serving = FakeApi(), ServingCertificate()
    api.configuration(None)
    api.objects[SECRET] = {"metadata": {"name": "cert", "resourceVersion": "7"}, "type": "Opaque", "data": data}
    await source(api).refresh(serving)
    assert serving.ready
    assert api.objects[SECRET]["type"] == "Opaque"


async def test_a_configuration_applied_again_is_healed() -> None:
    api, serving = FakeApi(), ServingCertificate()
    api.configuration(None)
    await source(api).refresh(serving)
    ca = api.objects[SECRET]["data"]["ca.crt"]
    api.configuration(None, ca)
    await source(api).refresh(serving)
    assert api.bundles() == [ca, ca]


async def test_without_a_configuration_it_serves_and_complains() -> None:
    api, serving = FakeApi(), ServingCertificate()
    with pytest.raises(ApiError):
        await source(api).refresh(serving)
    assert serving.ready


async def test_keeping_goes_on_after_a_failure() -> None:
    class Shaky:
        every_s = 0.01
        calls = 0

        async def refresh(self, serving: ServingCertificate) -> None:
            self.calls += 1
            if self.calls == 1:
                raise ApiUnreachable("GET /", "refused", sent=False)
            if self.calls == 2:
                raise ZeroDivisionError
            bundle = issue(NAMES, NOW)
            serving.load(bundle.certificate, bundle.key)

    shaky, serving, loaded = Shaky(), ServingCertificate(), asyncio.Event()
    task = asyncio.create_task(keep(shaky, serving, loaded, first_pause_s=0.001, last_pause_s=0.001))
    async with asyncio.timeout(LIMIT_S):
        await loaded.wait()
    assert serving.ready
    assert serving.problem == ""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
