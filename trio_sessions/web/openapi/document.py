"""The document, put together."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from trio_sessions import __version__
from trio_sessions.core import json
from trio_sessions.web.openapi.operations import operations
from trio_sessions.web.openapi.schemas import component_schemas

__all__ = ["openapi_document"]

_DESCRIPTION: Final = (
    "Agents speak chat, trainers get the ids that were sampled. Objects are open: more may be in them than is "
    "described. What is no HTTP at all is answered 400 without a body. A server that was started with `--open-proxy` "
    "passes on every path below a session that is not described here."
)
_SECURITY: Final[dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


@cache
def openapi_document() -> bytes:
    """The contract as OpenAPI 3.1, compact JSON; the same for every gateway of this version."""
    paths: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for operation in operations():
        paths.setdefault(operation.path, {})[operation.method] = operation.spelled()
        shared |= {answer.name: answer.spelled() for answer in operation.answers.values() if answer.name}
    return json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "trio-sessions", "version": __version__, "description": _DESCRIPTION},
            # Keys are asked for only where the server was given some.
            "security": [{}, *({name: []} for name in _SECURITY)],
            "paths": paths,
            "components": {
                "schemas": component_schemas(),
                "responses": dict(sorted(shared.items())),
                "securitySchemes": _SECURITY,
            },
        }
    )
