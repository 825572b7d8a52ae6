"""Certificates, made once."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.certificates import self_signed


@dataclass(frozen=True)
class Tls:
    """The two sides of an encrypted connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A server that says it is 127.0.0.1, and a client that believes it."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return Tls(server=server, client=ssl.create_default_context(cafile=certificate), certificate=certificate)
