"""Whether an engine answers, for people who start a gateway before it or with a wrong address."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from trio_sessions.engine.base import Engine, EngineCall
from trio_sessions.errors import EngineUnreachable

__all__ = ["probe", "warn_unless_answering"]

_PATIENCE_SECONDS: Final = 5.0
_PATH: Final = "health"
# Routers want a key; no session has this one.
_KEY: Final = "probe"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.engine")


async def probe(engine: Engine) -> str | None:
    """Ask once for the engine's health; why it cannot be asked for turns, or None if it can.

    Any answer will do that is no server error: there are engines without such a route.
    """
    call = EngineCall("GET", _PATH, query="", headers=(), body=b"", session_id=_KEY)
    try:
        with trio.fail_after(_PATIENCE_SECONDS):
            answer = await engine.call(call)
    except trio.TooSlowError:
        return f"no answer within {_PATIENCE_SECONDS:g} s"
    except EngineUnreachable as error:
        return str(error)
    return f"status {answer.status}" if answer.status >= 500 else None


async def warn_unless_answering(engine: Engine, url: str) -> None:
    """Log a warning if the engine at ``url`` cannot be asked for turns now; what it says later is told to clients."""
    reason = await probe(engine)
    if reason is not None:
        _log.warning("the engine does not answer yet: turns get 502 until it does", engine=url, reason=reason)
