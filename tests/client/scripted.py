"""A server on a real port that does as it is told, in threads of its own, so that every kind of client can ask it."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200, **headers: str) -> Reply:
        return cls(status, json.dumps(value).encode(), {name.replace("_", "-"): text for name, text in headers.items()})

    @classmethod
    def error(cls, status: int, text: str, **headers: str) -> Reply:
        return cls.json({"error": text}, status, **headers)


DROP = "drop"
"""Read the request and close the connection."""
CUT = "cut"
"""Close it in the middle of the answer."""
SILENCE = "silence"
"""Say nothing until the client is gone."""


class Scripted:
    """Answers requests one after the other from ``script``, then by ``otherwise``.

    Attributes:
        received: what arrived.
        vanished: set when a client left during a silence.
    """

    def __init__(self, otherwise: Callable[[Received], Any] | None = None) -> None:
        self.script: list[Any] = []
        self.otherwise = otherwise or (lambda _: Reply())
        self.received: list[Received] = []
        self.arrived = threading.Semaphore(0)
        self.vanished = threading.Event()
        self._lock = threading.Lock()

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.received]

    def next(self, request: Received) -> Any:
        with self._lock:
            self.received.append(request)
            self.arrived.release()
            if self.script:
                return self.script.pop(0)
        return self.otherwise(request)

    @contextmanager
    def running(self, port: int = 0) -> Iterator[str]:
        """Serve; the URL."""
        with _Server(("127.0.0.1", port), _handler(self)) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256
    block_on_close = False


def _handler(scripted: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            told = scripted.next(Received(self.command, self.path, headers, body))
            if isinstance(told, Reply):
                self._reply(told, len(told.body))
                return
            if told is CUT:
                self._reply(Reply(body=b"{"), 100)
            elif told is SILENCE:
                self.connection.settimeout(WAIT_SECONDS)
                if self.connection.recv(1) == b"":
                    scripted.vanished.set()
            self.close_connection = True

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the standard library's names

        def _reply(self, reply: Reply, length: int) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("content-length", str(length))
            self.end_headers()
            self.wfile.write(reply.body if reply.status != 204 else b"")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
