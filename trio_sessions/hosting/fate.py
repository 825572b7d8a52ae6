"""Whether the client of a request is still there, after its answer was handed to the connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

__all__ = ["STATE_KEY", "ConnectionFate", "fate_of"]

STATE_KEY: Final = "trio_sessions.connection"
"""Under which the ASGI scope's ``state`` has a ``ConnectionFate``."""


@dataclass(slots=True)
class ConnectionFate:
    """What became of a connection.

    A client that closed it before its answer was sent cannot have received that; one that closes it afterwards most
    often has, since some do as soon as they have all they need.

    Attributes:
        closed: whether its client has closed it.
        broken: whether it could not be sent something.
    """

    closed: bool = False
    broken: bool = False


def fate_of(scope: HTTPScope) -> ConnectionFate:
    """The fate of a request's connection, as it becomes known; where the server does not say, nothing happens to it."""
    state = cast("Mapping[str, object]", scope.get("state") or {})
    fate = state.get(STATE_KEY)
    return fate if isinstance(fate, ConnectionFate) else ConnectionFate()
