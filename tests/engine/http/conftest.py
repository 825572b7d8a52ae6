"""Certificates, made once."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Tls:
    """The two sides of an encrypted connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A server that says it is 127.0.0.1, and a client that believes it."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return Tls(server=server, client=ssl.create_default_context(cafile=certificate), certificate=certificate)
