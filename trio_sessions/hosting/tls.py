"""Certificates, read as Hypercorn wants them."""

from __future__ import annotations

import ssl
from pathlib import Path

from hypercorn.config import Config

from trio_sessions.errors import ConfigurationError

__all__ = ["server_tls"]


def server_tls(certificate: Path, key: Path, *, client_ca: Path | None = None) -> ssl.SSLContext:
    """What a server encrypts its connections with, by Hypercorn's rules: TLS 1.2 or newer, HTTP/1.1.

    Args:
        certificate: PEM file of its certificate, and of those between that and its root.
        key: PEM file of its private key, not encrypted.
        client_ca: PEM file of certificates; a client must show one that these have signed.

    Raises:
        ConfigurationError: a file cannot be read, or is not what it should be; the text names the option.
    """
    for option, path in (("--tls-cert", certificate), ("--tls-key", key), ("--tls-ca", client_ca)):
        if path is not None:
            _ensure_readable(option, path)
    config = Config()
    # See ``Connection``; Hypercorn's own would agree on HTTP/2.
    config.alpn_protocols = ["http/1.1"]
    config.certfile, config.keyfile = str(certificate), str(key)
    # Nobody is there to be asked for one; an encrypted key is an error.
    config.keyfile_password = ""
    if client_ca is not None:
        config.ca_certs, config.verify_mode = str(client_ca), ssl.CERT_REQUIRED
    try:
        context = config.create_ssl_context()
    except (OSError, ValueError) as error:
        files = f"--tls-cert {certificate} and --tls-key {key}"
        also = "" if client_ca is None else f", or --tls-ca {client_ca}"
        reason = getattr(error, "reason", None) or error
        raise ConfigurationError(
            f"{files}{also} are not a PEM certificate and its unencrypted PEM key: {reason}"
        ) from error
    assert context is not None
    return context


def _ensure_readable(option: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigurationError(f"{option}: cannot read {path}: {error.strerror}") from error
