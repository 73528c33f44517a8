"""EDGE. A certificate authority of ours and what it signs: made and judged.

Decides when a certificate has to be replaced and by what: a CA of five years signs a server's leaves of 90 days, and
either is replaced when a third of its life is left; leaves of node agents live a day. Time comes in as an argument. It
must never know where certificates are kept or who uses them.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE: Final = datetime.timedelta(days=5 * 365)
LEAF_LIFE: Final = datetime.timedelta(days=90)
AGENT_LIFE: Final = datetime.timedelta(days=1)
AGENTS: Final = "isochrone:agents"
"""The organisation in agents' certificates."""
_SKEW: Final = datetime.timedelta(hours=1)  # clocks of API servers differ


@dataclass(frozen=True, slots=True)
class Bundle:
    """PEM: the leaf with its key, the CAs to trust (the newest first), the newest CA's key."""

    certificate: bytes
    key: bytes
    ca: bytes
    ca_key: bytes


def service_names(service: str, namespace: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The names under which the API server calls a Service, and more."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", *extra)


def issue(
    names: Sequence[str],
    now: datetime.datetime,
    previous: Bundle | None = None,
    authority: str = "isochrone-webhook-ca",
) -> Bundle:
    """A new leaf; by the previous CA while that is good, else by a new one beside which the old one stays trusted.

    `authority` is what a new CA is called, with its day after it.
    """
    old = _authority(previous)
    if previous and old and not _in_last_third(old[0], now):
        ca, ca_key, ca_pem = *old, previous.ca
    else:
        ca, ca_key = _new_authority(now, authority)
        before = [cert for cert in _certificates(previous.ca if previous else b"") if _valid(cert, now)]
        trusted = [ca, *before[:1]]
        ca_pem = b"".join(cert.public_bytes(serialization.Encoding.PEM) for cert in trusted)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = (
        _builder(_named(names[0][:64]), ca.subject, key.public_key(), now, LEAF_LIFE)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Bundle(leaf.public_bytes(serialization.Encoding.PEM), _key_pem(key), ca_pem, _key_pem(ca_key))


class UnfitRequestError(Exception):
    """A certificate request that is not signed, in one sentence."""


def sign_agent(bundle: Bundle, request: bytes, node: str, now: datetime.datetime) -> bytes:
    """PEM of a client's certificate for exactly this node, for the key in a PKCS #10 request (DER).

    Nothing else in the request counts. The node is in the alternative names alone: a subject's common name ends at 64
    characters (RFC 5280, appendix A.1), a node's at 253. Raises UnfitRequestError.
    """
    try:
        asked = x509.load_der_x509_csr(request)
        key = asked.public_key()
        proven = asked.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnfitRequestError("the certificate request cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UnfitRequestError("the certificate request has another key than one on P-256")
    if not proven:
        raise UnfitRequestError("the certificate request is not signed with its own key")
    authority = _authority(bundle)
    if authority is None:
        raise UnfitRequestError("the authority cannot be read")
    ca, ca_key = authority
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, AGENTS)])
    leaf = (
        _builder(subject, ca.subject, key, now, AGENT_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(node)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return leaf.public_bytes(serialization.Encoding.PEM)


def why_replace(bundle: Bundle, names: Iterable[str], now: datetime.datetime) -> str:
    """Why this bundle must be replaced, in words; "" while it is good."""
    leaves, authority = _certificates(bundle.certificate), _authority(bundle)
    if not leaves or not authority:
        return "it cannot be read"
    leaf, (ca, _) = leaves[0], authority
    try:
        leaf.verify_directly_issued_by(ca)
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key_fits = _public_pem(serialization.load_pem_private_key(bundle.key, None).public_key()) == _public_pem(
            leaf.public_key()
        )
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return "its parts do not belong together"
    if not key_fits:
        return "its key belongs to another certificate"
    missing = [name for name in names if _general_name(name) not in alternatives]
    if missing:
        return f"it is not for {missing[0]}"
    if _in_last_third(leaf, now):
        return f"it ends on {leaf.not_valid_after_utc:%Y-%m-%d}"
    return f"its authority ends on {ca.not_valid_after_utc:%Y-%m-%d}" if _in_last_third(ca, now) else ""


def _new_authority(now: datetime.datetime, called: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"{called} {now:%Y-%m-%d}"
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(_named(name), _named(name), key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _SKEW).not_valid_after(now + life)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _authority(bundle: Bundle | None) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    certificates = _certificates(bundle.ca) if bundle else []
    if not bundle or not certificates:
        return None
    try:
        key = serialization.load_pem_private_key(bundle.ca_key, None)
    except (ValueError, TypeError):
        return None
    fits = _public_pem(key.public_key()) == _public_pem(certificates[0].public_key())
    return (certificates[0], key) if fits and isinstance(key, ec.EllipticCurvePrivateKey) else None


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _in_last_third(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < life / 3


def _valid(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return certificate.not_valid_after_utc > now


def _public_pem(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
