"""Why a request is not answered, before any dialect has words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.errors import ContextOverflow

__all__ = ["CONTEXT_OVERFLOW", "Failure", "engine_failure"]

CONTEXT_OVERFLOW: Final = ContextOverflow.code
"""The ``code`` of a prompt that does not fit; agents compact their history when they read it."""

# How engines say that a prompt does not fit; see ``engine_failure``.
_OVERFLOW_WORDS: Final = ("context length", "context_length", "maximum model length", "maximum context")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request is not answered, for its client to read.

    Attributes:
        status: HTTP status.
        text: what was wrong and, where there is a choice, what to do.
        code: stable identifier, as in ``trio_sessions.errors``.
        permanent: whether sending the same again cannot help, which a status does not always say.
        retry_after: seconds after which it may, where that is known.
    """

    status: int
    text: str
    code: str
    permanent: bool = False
    retry_after: int | None = None


def engine_failure(status: int, body: bytes) -> Failure:
    """What an engine says that answers a status other than 200, in its words."""
    try:
        text = _said(json.decode(body))
    except json.InvalidJSON:
        text = body.decode(errors="replace").strip()
    text = text or f"the engine answered {status}"
    overflow = status == 400 and any(words in text.lower() for words in _OVERFLOW_WORDS)
    return Failure(status=status, text=text, code=CONTEXT_OVERFLOW if overflow else "engine_refused")


def _said(value: Any) -> str:
    """SGLang has ``message`` at the top, others in ``error``, FastAPI in ``detail``."""
    match value:
        case {"error": {"message": str(text)}} | {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case _:
            return json.encode(value).decode()
