"""Certificates for node agents, over real gRPC: the node of the pod's token and no other, and every refusal."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from admission.certificates.authority import issue, sign_agent
from admission.controller.agent_identity import AUDIENCE
from admission.controller.enrolment import MAX_REQUEST, REVIEWS, EnrolmentServer, listening
from admission.controller.enrolment_rate import AskingRate
from admission.controller.hub_certificate import HubCertificate
from admission.serving import background
from tests.admission.fake_api import FakeApi
from tests.topology.list_watch_server import until
from tests.topology.node_facts import two_gpus
from topology.agent import enrolment as agent_side
from topology.agent.hub_client import HubClient
from topology.agent.key_request import key_and_request
from topology.agent.settings import AgentSettings
from topology.facts import enrolment_pb2 as wire
from topology.hub import server as hub_side
from topology.hub.state import HubState
from topology.kube.errors import ApiUnreachable
from topology.units import HostPort

NAMESPACE, ACCOUNT, HUB_NAME = "isochrone-system", "isochrone-agent", "isochrone-controller.isochrone-system.svc"
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/ca"
NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)


@dataclass
class TokenApi(FakeApi):
    """An API server that also knows tokens: each to the status of its review, None for one that it cannot ask about."""

    tokens: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    reviews: list[dict[str, Any]] = field(default_factory=list)

    async def create(self, path: str, obj: Any) -> bytes:
        if path != REVIEWS:
            return await super().create(path, obj)
        self.reviews.append(obj)
        status = self.tokens.get(obj["spec"]["token"], {"authenticated": False})
        if status is None:
            raise ApiUnreachable("POST", "no answer within 10 s", sent=True)
        return msgspec.json.encode({**obj, "status": status})

    def knows(self, token: str, node: str = "", *, pod: str = "agent-1", account: str = ACCOUNT, **more: Any) -> str:
        """A token of a pod, as the API server reviews it."""
        key = "authentication.kubernetes.io/"
        extra = {f"{key}pod-name": [pod], f"{key}pod-uid": [f"uid-{pod}"]} if pod else {}
        if node:
            extra[f"{key}node-name"] = [node]
        user = {"username": f"system:serviceaccount:{NAMESPACE}:{account}", "extra": extra}
        self.tokens[token] = {"authenticated": True, "user": user, "audiences": [AUDIENCE], **more}
        return token


@dataclass
class Place:
    api: TokenApi
    certificate: HubCertificate
    enrolment: EnrolmentServer
    where: str
    channel: Any

    async def ask(self, request: bytes, token: str, node: str = "n1") -> wire.EnrolAnswer:
        call = self.channel.unary_unary(
            agent_side.METHOD,
            request_serializer=wire.EnrolRequest.SerializeToString,
            response_deserializer=wire.EnrolAnswer.FromString,
        )
        answer: wire.EnrolAnswer = await call(wire.EnrolRequest(node=node, token=token, request=request), timeout=10)
        return answer

    async def refused(self, request: bytes, token: str, node: str = "n1") -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(request, token, node)
        return f"{caught.value.code().name}: {caught.value.details()}"


@contextlib.asynccontextmanager
async def place(rate: AskingRate | None = None) -> AsyncIterator[Place]:
    api = TokenApi()
    certificate = HubCertificate(api, NAMESPACE, "cert", "ca", (HUB_NAME,))
    enrolment = EnrolmentServer(api, certificate.bundle, NAMESPACE, ACCOUNT, rate)
    await certificate.refresh()
    trust = grpc.ssl_channel_credentials(api.objects[CONFIG_MAP]["data"]["ca.crt"].encode())
    async with listening(enrolment, HostPort("127.0.0.1", 0), certificate.parts) as where:
        options = [("grpc.ssl_target_name_override", HUB_NAME)]
        async with grpc.aio.secure_channel(str(where), trust, options=options) as channel:
            yield Place(api, certificate, enrolment, str(where), channel)


def request_of(key: Any, common_name: str = "n9") -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("n8")]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


KEY = ec.generate_private_key(ec.SECP256R1())
REQUEST = request_of(KEY)


async def test_a_certificate_names_the_node_of_the_token_and_nothing_that_was_asked_for() -> None:
    async with place() as here:
        answer = await here.ask(REQUEST, here.api.knows("t", "n1"))
        assert answer.valid_s == 86_400
        made = x509.load_pem_x509_certificate(answer.certificate)
        assert made.public_key() == KEY.public_key()
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["n1"]
        assert not made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]  # it cannot serve as the hub
        assert here.api.reviews[0]["spec"] == {"token": "t", "audiences": [AUDIENCE]}
        # Sent again, it is a certificate for the same key and node: of no use to whoever has not that key.
        again = x509.load_pem_x509_certificate((await here.ask(REQUEST, "t")).certificate)
        assert (again.public_key(), again.subject) == (made.public_key(), made.subject)
        assert here.enrolment.answers == {"issued": 2}


async def test_every_refusal_has_its_code_and_reason() -> None:
    async with place() as here:
        api, agents = here.api, f"agents are 'system:serviceaccount:{NAMESPACE}:{ACCOUNT}'"
        vouch = f"UNAUTHENTICATED: the API server does not vouch for the token with audience {AUDIENCE}"
        cases = {
            "unknown": vouch,
            api.knows("other audience", "n1", audiences=["https://kubernetes.default.svc"]): vouch,
            api.knows("no audiences", "n1", audiences=None): vouch,
            api.knows("refused", "n1", authenticated=False): vouch,
            api.knows("other account", "n1", account="default"): (
                f"PERMISSION_DENIED: the token is of 'system:serviceaccount:{NAMESPACE}:default', {agents}"
            ),
            api.knows("no pod", "n1", pod=""): "PERMISSION_DENIED: the token is bound to no pod",
            api.knows("other node", "n2"): ("PERMISSION_DENIED: the token is of a pod on node 'n2', not on 'n1'"),
            "": "INVALID_ARGUMENT: node and token are needed, up to 8192",
            "x" * 8193: "INVALID_ARGUMENT: node and token are needed, up to 8192",
        }
        for token, why in cases.items():
            assert await here.refused(REQUEST, token) == why
        api.tokens["silent"] = None
        assert await here.refused(REQUEST, "silent") == "UNAVAILABLE: the API server could not be asked; ask again"
        assert "issued" not in here.enrolment.answers
        assert here.enrolment.answers.total() == len(cases) + 1


async def test_a_token_without_a_node_is_looked_up_by_its_pod() -> None:
    async with place() as here:
        token = here.api.knows("t")
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods/agent-1"
        gone = "PERMISSION_DENIED: pod agent-1 of the token is gone"
        assert await here.refused(REQUEST, token) == gone
        here.api.objects[pods] = {"metadata": {"uid": "another"}, "spec": {"nodeName": "n1"}}
        assert await here.refused(REQUEST, token) == gone
        here.api.objects[pods] = {"metadata": {"uid": "uid-agent-1"}, "spec": {}}
        assert await here.refused(REQUEST, token) == "PERMISSION_DENIED: pod agent-1 of the token is on no node"
        here.api.objects[pods] = {"metadata": {"uid": "uid-agent-1"}, "spec": {"nodeName": "n1"}}
        assert (await here.ask(REQUEST, token)).certificate


async def test_requests_that_are_no_requests() -> None:
    async with place() as here:
        token = here.api.knows("t", "n1")
        unread = "INVALID_ARGUMENT: the certificate request cannot be read"
        forged = bytearray(REQUEST)
        forged[-1] ^= 1  # the signature's last byte
        cases = [
            (b"", unread),
            (b"x" * 100, unread),
            (REQUEST[:-20], unread),
            (bytes(forged), "INVALID_ARGUMENT: the certificate request is not signed with its own key"),
            *(
                (request_of(key), "INVALID_ARGUMENT: the certificate request has another key than one on P-256")
                for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 1024))
            ),
        ]
        for request, why in cases:
            assert await here.refused(request, token) == why
        before = len(here.api.reviews)
        too_large = await here.refused(b"x" * MAX_REQUEST, token)
        assert too_large.startswith("RESOURCE_EXHAUSTED")
        assert len(here.api.reviews) == before


async def test_who_asks_too_often_is_refused_before_the_api_server_is_asked() -> None:
    async with place(AskingRate(per_s=0.001, burst=2)) as here:
        for _ in range(2):
            assert (await here.refused(REQUEST, "unknown")).startswith("UNAUTHENTICATED")
        assert await here.refused(REQUEST, "unknown") == "RESOURCE_EXHAUSTED: asked too often; ask again in a minute"
        assert len(here.api.reviews) == 2


def test_an_address_may_ask_in_bursts_and_costs_nobody_else() -> None:
    rate = AskingRate(per_s=1.0, burst=2, most=3)
    assert [rate.may("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rate.may("b", 0.0)
    assert [rate.may("a", now_s) for now_s in (0.5, 1.0, 1.5, 2.5)] == [False, True, False, True]
    for address in "cdef":
        rate.may(address, 3.0)
    assert len(rate) == 3


async def test_an_agent_enrols_reports_and_renews_before_the_end(tmp_path: Path) -> None:
    known, now = HubState(), [0.0]
    async with contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(place())
        hub = hub_side.Hub(known)
        port = await stack.enter_async_context(hub_side.listening(hub, "127.0.0.1", 0, tls=here.certificate.parts))
        (tmp_path / "token").write_text(here.api.knows("t", "n1") + "\n")
        (tmp_path / "ca.crt").write_text(here.api.objects[CONFIG_MAP]["data"]["ca.crt"])
        settings = AgentSettings(
            node_name="n1",
            hub=f"127.0.0.1:{port}",
            hub_name=HUB_NAME,
            enrol=here.where,
            enrol_dir=str(tmp_path),
        )
        enrolment = agent_side.AgentEnrolment(settings, clock=lambda: now[0])
        thief = settings.model_copy(update={"node_name": "n2"})
        for each in (settings, thief):
            client = HubClient(each, boot_id="b", version="0", chance=lambda: 0.002, enrolment=enrolment)
            client.report(two_gpus())
            task = await stack.enter_async_context(_running(client))
            if each is settings:
                await until(partial(_reported, client))
            else:  # n1's certificate does not speak for n2
                await until(partial(_not_believed, client))
            task.cancel()
        assert known.nodes() == ["n1"]
        assert enrolment.issued == 1
        now[0] = 57_000.0  # less than two thirds of a day
        await enrolment.credentials()
        assert enrolment.issued == 1
        now[0] = 58_000.0
        here.api.tokens["t"] = None
        await enrolment.credentials()  # the API server is away: the old one is good until the day is over
        assert enrolment.issued == 1
        now[0] = 86_401.0
        with pytest.raises(agent_side.NotEnrolledError, match="UNAVAILABLE: the API server could not be asked"):
            await enrolment.credentials()
        here.api.knows("t", "n1")
        await enrolment.credentials()
        assert enrolment.issued == 2


async def test_an_agent_whose_authority_is_gone_asks_for_another_certificate(tmp_path: Path) -> None:
    known = HubState()
    async with contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(place())
        port = await stack.enter_async_context(
            hub_side.listening(hub_side.Hub(known), "127.0.0.1", 0, tls=here.certificate.parts)
        )
        (tmp_path / "token").write_text(here.api.knows("t", "n1"))
        (tmp_path / "ca.crt").write_text(here.api.objects[CONFIG_MAP]["data"]["ca.crt"])
        settings = AgentSettings(
            node_name="n1", hub=f"127.0.0.1:{port}", hub_name=HUB_NAME, enrol=here.where, enrol_dir=str(tmp_path)
        )
        enrolment = agent_side.AgentEnrolment(settings)
        await enrolment.credentials()
        # Somebody deletes the Secret: another authority is made, and what the old one signed is worth nothing.
        here.api.objects.clear()
        here.api.knows("t", "n1")
        await here.certificate.refresh()
        (tmp_path / "ca.crt").write_text(here.api.objects[CONFIG_MAP]["data"]["ca.crt"])
        client = HubClient(settings, boot_id="b", version="0", chance=lambda: 0.002, enrolment=enrolment)
        client.report(two_gpus())
        await stack.enter_async_context(_running(client))
        await until(partial(_reported, client))
        assert client.breaks >= 3
        assert enrolment.issued == 2


async def test_a_connection_does_not_outlast_what_vouched_for_it() -> None:
    known = HubState()
    served = hub_side.listening(hub_side.Hub(known, bound=False), "127.0.0.1", 0, longest_s=0.2)
    async with contextlib.AsyncExitStack() as stack:
        settings = AgentSettings(
            node_name="n1", hub=f"127.0.0.1:{await stack.enter_async_context(served)}", plaintext=True
        )
        client = HubClient(settings, boot_id="b", version="0", chance=lambda: 0.002)
        client.report(two_gpus())
        await stack.enter_async_context(_running(client))
        await until(lambda: client.breaks >= 1 and client.sent["full"] >= 2)  # it comes again by itself


def _reported(client: HubClient) -> bool:
    return client.sent["full"] == 1


def _not_believed(client: HubClient) -> bool:
    return client.problem == "PERMISSION_DENIED: node 'n2' is not in the certificate, which names n1"


@contextlib.asynccontextmanager
async def _running(client: HubClient) -> AsyncIterator[Any]:
    async with background(client.run()) as task:
        yield task


async def test_the_authority_is_told_before_it_signs_and_healed_when_somebody_changes_what_is_told() -> None:
    api = TokenApi()
    certificate = HubCertificate(api, NAMESPACE, "cert", "ca", (HUB_NAME,))
    assert certificate.bundle() is None
    unknown = certificate.parts()
    await certificate.refresh()
    assert api.writes == ["create cert", "create ca"]
    key, leaf, authority = certificate.parts()
    assert (key, leaf) != unknown[:2]
    assert api.objects[CONFIG_MAP]["data"] == {"ca.crt": authority.decode()}
    api.objects[CONFIG_MAP]["data"]["ca.crt"] = "theirs"
    await certificate.refresh()
    assert api.objects[CONFIG_MAP]["data"] == {"ca.crt": authority.decode()}
    assert api.writes == ["create cert", "create ca", "PUT ca"]
    # A successor reads what is there: agents' certificates outlive a restart.
    successor = HubCertificate(api, NAMESPACE, "cert", "ca", (HUB_NAME,))
    await successor.refresh()
    assert successor.parts() == certificate.parts()


def test_a_certificate_of_a_replaced_authority_is_believed_as_long_as_that_is() -> None:
    first = issue((HUB_NAME,), NOW)
    second = issue((HUB_NAME,), NOW + datetime.timedelta(days=1230), first)
    leaf = x509.load_pem_x509_certificate(sign_agent(first, REQUEST, "n1", NOW))
    new, old = x509.load_pem_x509_certificates(second.ca)
    leaf.verify_directly_issued_by(old)
    assert new.subject != old.subject


async def test_a_key_is_made_in_a_process_of_its_own_and_is_the_one_of_its_request() -> None:
    key, request = await key_and_request()
    made = serialization.load_pem_private_key(key, None)
    asked = x509.load_der_x509_csr(request)
    assert asked.is_signature_valid
    assert asked.public_key() == made.public_key()
