"""The timeouts of a request, as httpx hands them to a transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait at most; None for as long as it takes.

    Attributes:
        connect: for a new connection, its encryption included.
        read: for the next bytes of the answer.
        write: for the server to take the next bytes of the request.
    """

    connect: float | None = None
    read: float | None = None
    write: float | None = None

    @classmethod
    def of(cls, extensions: Mapping[str, Any]) -> Timeouts:
        """What ``request.extensions`` says of timeouts."""
        named = extensions.get("timeout")
        if not named:
            return _NONE
        return cls(connect=named.get("connect"), read=named.get("read"), write=named.get("write"))


_NONE = Timeouts()
