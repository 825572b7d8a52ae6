"""Serve an ASGI application on a socket: whole requests, an undisturbed end, and settings that fit long answers."""

from trio_sessions.hosting.address import bind, listen, url_of
from trio_sessions.hosting.fate import ConnectionFate, fate_of
from trio_sessions.hosting.limits import ConnectionLimit, ConnectionLimits, Room
from trio_sessions.hosting.refusal import Refusal
from trio_sessions.hosting.server import AppServer, hypercorn_config
from trio_sessions.hosting.tls import server_tls
from trio_sessions.hosting.whole import WholeRequests

__all__ = [
    "AppServer",
    "ConnectionFate",
    "ConnectionLimit",
    "ConnectionLimits",
    "Refusal",
    "Room",
    "WholeRequests",
    "bind",
    "fate_of",
    "hypercorn_config",
    "listen",
    "server_tls",
    "url_of",
]
