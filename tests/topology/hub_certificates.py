"""A small certificate authority for tests of mTLS."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2046, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """Signs what it is asked to sign."""

    def __init__(self, name: str = "test-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), [], authority=True)

    def folder(self, where: Path, common_name: str, *names: str) -> Path:
        """tls.crt, tls.key, ca.crt for this common name and these alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        leaf = self._sign(subject, key.public_key(), [x509.DNSName(name) for name in names], authority=False)
        where.mkdir(parents=True, exist_ok=True)
        encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        (where / "tls.key").write_bytes(key.private_bytes(encoding, kind, serialization.NoEncryption()))
        (where / "tls.crt").write_bytes(leaf.public_bytes(encoding))
        (where / "ca.crt").write_bytes(self._certificate.public_bytes(encoding))
        return where

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName], *, authority: bool
    ) -> x509.Certificate:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(_END)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())
