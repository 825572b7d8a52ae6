"""What the supervisor and a worker say to each other: JSON, one message a line, over a socket pair.

Its end is a message too: a worker whose supervisor is gone, however it went, reads the end of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import trio

from trio_sessions.config import Settings

__all__ = [
    "Failed",
    "FromWorker",
    "Link",
    "Loaded",
    "Serving",
    "Sessions",
    "Start",
    "Stop",
    "Table",
    "ToWorker",
    "WorkerState",
]

# A chat template's kwargs are the only thing that may be long.
_LONGEST_LINE: Final = 64 * 2**20
_CHUNK: Final = 64 * 1024


class WorkerState(msgspec.Struct, frozen=True):
    """What is known of a worker.

    Attributes:
        index: from 0.
        up: whether it answers requests.
        restarts: how often it was started again after its death.
        sessions: how many it had open when it last said so, at most a second ago; none when it is not up.
    """

    index: int
    up: bool
    restarts: int
    sessions: int


class Start(msgspec.Struct, tag="start", frozen=True):
    """The first message to a worker.

    Attributes:
        index: which of the workers it is.
        urls: where its neighbours reach each of them, itself included.
        secret: marks requests that come from a worker.
        settings: of the whole server.
    """

    index: int
    urls: tuple[str, ...]
    secret: str
    settings: Settings


class Table(msgspec.Struct, tag="table", frozen=True):
    """How the workers are; with the first of these a worker begins to serve.

    Attributes:
        engine_url: the engine they ask.
        workers: all of them.
    """

    engine_url: str
    workers: tuple[WorkerState, ...]


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Drain and end."""


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """A worker has its renderer, and waits for a table.

    Attributes:
        family: name of the renderer.
    """

    family: str


class Serving(msgspec.Struct, tag="serving", frozen=True):
    """A worker answers requests."""


class Sessions(msgspec.Struct, tag="sessions", frozen=True):
    """How many sessions a worker has open."""

    count: int


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A worker cannot be started as it is configured.

    Attributes:
        code: of the error.
        text: of the error.
    """

    code: str
    text: str


ToWorker = Start | Table | Stop
FromWorker = Loaded | Serving | Sessions | Failed
Received = TypeVar("Received")


class Link(Generic[Received]):
    """One end of the conversation.

    Args:
        stream: to the other end; closed by whoever opened it.
        kinds: union of the messages that may arrive.
    """

    def __init__(self, stream: trio.abc.Stream, kinds: Any) -> None:
        self._stream = stream
        self._decoder = msgspec.json.Decoder(kinds, dec_hook=_decode)
        self._buffer = bytearray()
        self._sending = trio.Lock()

    async def send(self, message: ToWorker | FromWorker) -> None:
        """Send one message; lost without a word when the other end is gone, which ``receive`` tells."""
        line = msgspec.json.encode(message, enc_hook=_encode) + b"\n"
        async with self._sending:
            try:
                await self._stream.send_all(line)
            except trio.BrokenResourceError:
                return

    async def receive(self) -> Received | None:
        """The next message; None when the other end is gone.

        Raises:
            ValueError: what came is no message.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LONGEST_LINE:
                raise ValueError("a message between supervisor and worker has no end")
            try:
                chunk = await self._stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: Received = self._decoder.decode(line)
        return message


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        # Settings keep theirs read-only.
        return dict(value)
    raise TypeError(f"no message holds a {type(value).__name__}")


def _decode(kind: type[Any], value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"no message holds a {kind.__name__}")
