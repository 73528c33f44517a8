"""EDGE. The webhook's TLS: one context for the whole life of the server; new handshakes use what was loaded last.

It must never know where a certificate comes from.
"""

from __future__ import annotations

import os
import shutil
import ssl
import tempfile
from pathlib import Path


class ServingCertificate:
    """The TLS side: one context for the whole life of the server; new handshakes use what was loaded last."""

    def __init__(self) -> None:
        self.context = _context()
        self.problem = "no certificate yet"  # why it is not ready, "" once it is
        self._loaded: tuple[bytes, bytes] | None = None

    @property
    def ready(self) -> bool:
        """Whether a certificate was loaded, now or before."""
        return self._loaded is not None

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Takes a PEM pair into use; False if it is in use already. Raises ssl.SSLError or OSError if it is unusable.

        Python's TLS reads files only, so the pair is written to a private folder for a moment.
        """
        if self._loaded == (certificate, key):
            return False
        folder = Path(tempfile.mkdtemp(prefix="isochrone-"))  # mode 0700
        try:
            paths = folder / "tls.crt", folder / "tls.key"
            paths[0].write_bytes(certificate)
            with open(os.open(paths[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(key)
            _context().load_cert_chain(*paths)  # a pair that does not fit would spoil the context in use
            self.context.load_cert_chain(*paths)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._loaded = (certificate, key)
        return True


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
