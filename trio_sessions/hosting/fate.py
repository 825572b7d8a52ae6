"""Whether the client of a request is still there, after its answer was handed to the connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

__all__ = ["STATE_KEY", "ConnectionFate", "client_lost"]

STATE_KEY: Final = "trio_sessions.connection"
"""Under which the ASGI scope's ``state`` has a ``ConnectionFate``."""


@dataclass(slots=True)
class ConnectionFate:
    """What became of a connection.

    Attributes:
        lost: whether its client has closed it, or could not be sent something.
    """

    lost: bool = False


def client_lost(scope: HTTPScope) -> bool:
    """Whether the client of a request cannot have received all that was sent; False where the server does not say."""
    state: Mapping[str, object] = dict(scope.get("state") or {})
    fate = state.get(STATE_KEY)
    return isinstance(fate, ConnectionFate) and fate.lost
