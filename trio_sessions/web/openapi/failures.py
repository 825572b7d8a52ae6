"""The answers of requests that fail, in the words of each API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trio_sessions.web.openapi.parts import JSON, Answer, Schema, Status, named

__all__ = ["CONTROL", "DELETION", "LIST", "OPEN", "PROXY", "SAMPLES", "SESSION", "failures_of_turns"]

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request cannot be served as it is; the text says what is wrong.",
    401: "A key is needed and missing, or unknown.",
    403: "The key does not open this.",
    404: "The session is unknown or deleted, or there is nothing under this path.",
    408: "The body did not arrive in time.",
    409: "The turn to extend ended at the length limit.",
    413: "The body is larger than the server takes.",
    421: "Two workers do not agree which of them has the session.",
    422: "The turns of the session do not make samples; the text says why.",
    429: "A limit is reached; `retry-after` says when to try again.",
    431: "The head of the request is larger than the server reads. Without a body.",
    500: (
        "The prompt could not be tokenized exactly, the configured matcher failed, or what is written down of the "
        "session is damaged."
    ),
    502: "The engine could not be reached, or answered what cannot be recorded exactly.",
    503: (
        "The server is shutting down or busy, the worker that has the session is down, or the journal cannot be "
        "written; try again."
    ),
}
# Decided before a route is reached, or by limits that all have.
_UNKEYED: Final = (408, 413, 421, 429, 431, 503)
_ANYWHERE: Final = (401, 403, *_UNKEYED)
_AGAIN: Final = "Seconds after which to try again."
_WITHOUT_BODY: Final = frozenset({431})


def _answers(
    family: str, *statuses: int, schema: Schema, schemas: Mapping[int, Schema] | None = None
) -> Mapping[Status, Answer]:
    schemas = schemas or {}
    return {
        status: Answer(
            _MEANINGS[status],
            {} if status in _WITHOUT_BODY else {JSON: schemas.get(status, schema)},
            {"retry-after": _AGAIN} if status in (429, 503) else {},
            name=f"{family}{status}",
        )
        for status in sorted(statuses)
    }


_ERROR: Final = named("Error")
# An engine's own refusal is passed on to clients that speak its language.
_CHAT_REFUSAL: Final = {"anyOf": [_ERROR, named("OpenAIError"), named("EngineRefusal")]}

OPEN: Final = _answers("Plain", *_UNKEYED, schema=_ERROR)
"""Of the routes that need no key."""

CONTROL: Final = _answers("Plain", *_ANYWHERE, schema=_ERROR)
"""Of the routes that need one, and neither an engine nor a session."""

LIST: Final = _answers("Plain", 400, *_ANYWHERE, schema=_ERROR)
"""Of the list of sessions."""

SESSION: Final = _answers("Plain", 404, 500, *_ANYWHERE, schema=_ERROR)
"""Of reading a session."""

DELETION: Final = _answers("Plain", 404, *_ANYWHERE, schema=_ERROR)
"""Of its end, for which it is not read."""

SAMPLES: Final = _answers("Plain", 400, 404, 500, *_ANYWHERE, schema=_ERROR)
"""Of the samples, but for the status that has its reason as text."""

PROXY: Final = _answers("Engine", 404, 500, 502, *_ANYWHERE, schema={"anyOf": [_ERROR, named("EngineRefusal")]})
"""Of what is passed on; they may be the engine's as well, and every other answer is."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How an API spells its errors.

    Attributes:
        error: the schema.
        without: statuses that its clients would take for something else, so that it has others in their place.
        refusals: schemas of statuses that have more than one.
    """

    error: Schema
    without: frozenset[int]
    refusals: Mapping[int, Schema]


_SHAPES: Final[Mapping[str, _Shape]] = {
    "chat": _Shape(_ERROR, frozenset(), dict.fromkeys(_MEANINGS, _CHAT_REFUSAL)),
    "messages": _Shape(named("MessagesError"), frozenset({409}), {}),
    "responses": _Shape(named("OpenAIError"), frozenset({409, 429}), {}),
}


def failures_of_turns(dialect: str) -> Mapping[Status, Answer]:
    """The failures of a turn, and of counting its prompt.

    Args:
        dialect: its name.
    """
    shape = _SHAPES[dialect]
    statuses = {400, 404, 409, 500, 502, *_ANYWHERE} - shape.without
    return _answers(dialect.capitalize(), *statuses, schema=shape.error, schemas=shape.refusals)
