"""Serve an ASGI application on a socket: whole requests, an undisturbed end, and settings that fit long answers."""

from trio_sessions.hosting.address import bind, listen, url_of
from trio_sessions.hosting.fate import client_lost
from trio_sessions.hosting.server import AppServer, hypercorn_config
from trio_sessions.hosting.whole import WholeRequests

__all__ = ["AppServer", "WholeRequests", "bind", "client_lost", "hypercorn_config", "listen", "url_of"]
