"""What connections may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ConnectionLimit", "ConnectionLimits", "Room"]

ConnectionLimit = Literal[
    "body",
    "body_timeout",
    "connections",
    "header",  # the head of a request was too large
    "header_timeout",
    "send_timeout",
]
"""Limits of connections, and of what arrives over them."""


class Room:
    """Room for connections, which several servers may share.

    Args:
        most: how many there is room for.
    """

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> bool:
        """Take the room of one, until ``leave``; whether there was any."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        """Give it back."""
        self.taken -= 1


def _ignore(limit: ConnectionLimit) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What the connections of a server may take.

    Attributes:
        room: how many there may be.
        header_seconds: in which a request's head has to arrive from its first byte on, and in which the first byte of a
            new connection has to.
        send_seconds: in which a client has to take a part of its answer.
        on_limit: is told whenever one of these, or the size of heads, ended something.
    """

    room: Room = field(default_factory=Room)
    header_seconds: float = math.inf
    send_seconds: float = math.inf
    on_limit: Callable[[ConnectionLimit], None] = _ignore
