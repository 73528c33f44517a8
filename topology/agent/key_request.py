"""EDGE. A new key and a request to certify it, printed: `python -m topology.agent.key_request`.

A process of its own, for a second a day: what makes keys costs 13 MB in a process that may have 60. Nothing is written
to a disk. The request's subject is empty: who asks is said by the token that goes along.

Public source: PKCS #10 (RFC 2986).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

LIMIT_S: Final = 60.0
_BETWEEN: Final = b"-----END PRIVATE KEY-----\n"


class NoKeyError(Exception):
    """No key could be made, in one sentence."""


async def key_and_request() -> tuple[bytes, bytes]:
    """A key (PEM) and its request (DER), made by a process that ends. Raises NoKeyError."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, complaint = await asyncio.wait_for(made.communicate(), LIMIT_S)
    except BaseException as error:
        made.kill()
        await made.wait()
        if isinstance(error, TimeoutError):
            raise NoKeyError(f"no key was made within {LIMIT_S:g}s") from None
        raise
    key, between, request = output.partition(_BETWEEN)
    if made.returncode or not between or not request:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
        raise NoKeyError(f"no key was made: code {made.returncode}: {last}")
    return key + between, request


def main() -> None:
    """Prints the key as PEM and after it the request as DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    encoding, kind = serialization.Encoding, serialization.PrivateFormat.PKCS8
    sys.stdout.buffer.write(key.private_bytes(encoding.PEM, kind, serialization.NoEncryption()))
    sys.stdout.buffer.write(request.public_bytes(encoding.DER))


if __name__ == "__main__":
    main()
