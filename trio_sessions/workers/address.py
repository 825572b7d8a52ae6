"""Addresses of workers: the one that a client can reach, and the one for their neighbours."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final

__all__ = ["advertised_host", "neighbour_url"]

_NAME: Final = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,252})(?::[0-9]{1,5})?")
_IPV6: Final = re.compile(r"(\[([0-9A-Fa-f:.]{2,45})\])(?::[0-9]{1,5})?")
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - told from, not listened on


def advertised_host(header: bytes | None, *, reached: str) -> str:
    """The host of a URL that the client can reach: the name it used, or else the address that it connected to.

    Args:
        header: the request's Host header; what is in it is the client's, and may be anything.
        reached: our side's address of the connection.
    """
    text = (header or b"").decode("latin-1")
    if named := _NAME.fullmatch(text):
        return named[1]
    if (literal := _IPV6.fullmatch(text)) and _is_ipv6(literal[2]):
        return literal[1]
    return _bracketed(reached)


def neighbour_url(host: str, port: int) -> str:
    """Where a process of the same machine reaches a socket that is bound to ``host`` and ``port``."""
    return f"http://{_bracketed(_LOOPBACK.get(host, host))}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
