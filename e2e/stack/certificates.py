"""A throw-away certificate authority for loopback servers: elliptic keys, made in milliseconds."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of a certificate and its private key."""

    certificate: Path
    key: Path


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A new P-256 key, readable by us alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return key


def write_public_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    """The public half, as kube-apiserver wants it to check service account tokens."""
    path.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


class Authority:
    """Signs server certificates for 127.0.0.1 and for given DNS names."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = write_key(folder / "ca.key")
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "isochrone-stack-ca")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, dns_names: tuple[str, ...] = ()) -> Pair:
        """A server certificate `<name>.crt`, `<name>.key` for loopback and the given names."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        key = write_key(pair.key)
        names = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
            *map(x509.DNSName, dns_names),
        ]
        certificate = (
            _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour back: clocks of containers and hosts differ.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )
