"""Certificates for tests, made by the program that people make theirs with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, *, name: str = "test") -> tuple[Path, Path]:
    """The files of a certificate that says it is 127.0.0.1, and of its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
