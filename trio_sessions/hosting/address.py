"""Sockets to listen on."""

from __future__ import annotations

import socket
from typing import Final

from trio_sessions.errors import AddressInUse

__all__ = ["bind", "listen", "url_of"]

_BACKLOG: Final = 2048
_ADVICE: Final = "choose another --host or --port (0 picks a free one)"


def bind(host: str, port: int, *, advice: str = _ADVICE) -> socket.socket:
    """A bound TCP socket, which refuses connections until an ``AppServer`` runs on it.

    Args:
        host: address.
        port: 0 picks a free one.
        advice: what to do if it cannot be bound.

    Raises:
        AddressInUse: it cannot be bound; the text says which address and what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except (OSError, ValueError, TypeError) as error:
        listener.close()
        raise _address_in_use(host, port, error, advice) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect to a bound socket; a second time is harmless.

    Raises:
        AddressInUse: another process was bound to the same address, and listened first.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _address_in_use(host, port, error) from error


def _address_in_use(host: str, port: int, error: Exception, advice: str = _ADVICE) -> AddressInUse:
    return AddressInUse(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; {advice}")


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """``http://host:port`` of a bound socket, or ``https`` where it is served with TLS."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
