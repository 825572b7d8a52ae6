"""Every route, with what it takes and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trio_sessions.service.proxy import ALLOWED_PATHS
from trio_sessions.web.dialects.routes import COUNTS, DIALECTS
from trio_sessions.web.headers import REMAINING_HEADER
from trio_sessions.web.openapi.failures import CONTROL, DELETION, LIST, OPEN, PROXY, SAMPLES, SESSION, failures_of_turns
from trio_sessions.web.openapi.parts import (
    EVENTS,
    JSON,
    OCTETS,
    TEXT,
    Answer,
    Body,
    Operation,
    Parameter,
    Schema,
    named,
)

__all__ = ["operations"]

_SESSION: Final = Parameter(
    "session_id", "path", "Of `POST /sessions`.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}
)
_LIMIT: Final = Parameter(
    "limit", "query", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
)
_AFTER: Final = Parameter(
    "after", "query", "The `next` of the page before.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}
)
_AGENT: Final = Parameter("agent", "path", "Names the caller.", {"type": "string", "minLength": 1})
_MODEL: Final = Parameter("model", "path", "Of the engine.", {"type": "string", "minLength": 1})
_IDEMPOTENCY: Final = Parameter(
    "idempotency-key", "header", "Requests that have the same one are the same turn.", {"type": "string"}
)
_VERSION: Final = Parameter(
    "anthropic-version", "header", "Asks for the list in Anthropic's words.", {"type": "string"}
)
# Where an engine wants to be asked with a body; whatever the method, it is passed on.
_POSTED: Final = frozenset(path for path in ALLOWED_PATHS if path.endswith(("tokenize", "completions", "embeddings")))
_TEXT_SCHEMA: Final[Schema] = {"type": "string"}
_REQUESTS: Final[Mapping[str, Schema]] = {
    "chat": named("ChatRequest"),
    "messages": named("MessagesRequest"),
    "responses": named("ResponsesRequest"),
}
_ANSWERS: Final[Mapping[str, Schema]] = {
    "chat": named("ChatCompletion"),
    "messages": named("MessagesAnswer"),
    "responses": named("ResponsesAnswer"),
}
_REMAINING: Final = {REMAINING_HEADER: "How many ids the conversation may still grow by, where there is a limit."}
_ENGINE: Final = Answer("What the engine answered, passed on.")


def operations() -> Iterator[Operation]:
    """All of them, those of the control plane first."""
    yield from _control()
    for base, suffix, parameters in (
        ("/sessions/{session_id}", "", (_SESSION,)),
        ("/sessions/{session_id}/agents/{agent}", "_of_agent", (_SESSION, _AGENT)),
    ):
        yield from _turns(base, suffix, parameters)
        yield from _proxied(base, suffix, parameters)


def _control() -> Iterator[Operation]:
    yield Operation(
        method="get",
        path="/health",
        name="health",
        tag="server",
        summary="Whether it serves.",
        answers={200: Answer("It does.", {JSON: named("Health")}), **OPEN},
        needs_key=False,
    )
    yield Operation(
        method="get",
        path="/metrics",
        name="metrics",
        tag="server",
        summary="Metrics for Prometheus.",
        answers={200: Answer("Text.", {TEXT: _TEXT_SCHEMA}), **CONTROL},
    )
    yield Operation(
        method="get",
        path="/openapi.json",
        name="openapi",
        tag="server",
        summary="This document.",
        answers={200: Answer("The document.", {JSON: named("Openapi")}), **OPEN},
        needs_key=False,
    )
    yield Operation(
        method="post",
        path="/sessions",
        name="create_session",
        tag="sessions",
        summary="Make a session. A body is not read.",
        answers={200: Answer("It is there.", {JSON: named("CreatedSession")}), **CONTROL},
    )
    yield Operation(
        method="get",
        path="/sessions",
        name="list_sessions",
        tag="sessions",
        summary="The sessions there are, in the order of their ids.",
        answers={200: Answer("A page of them.", {JSON: named("SessionList")}), **LIST},
        parameters=(_LIMIT, _AFTER),
    )
    yield Operation(
        method="get",
        path="/sessions/{session_id}",
        name="get_session",
        tag="sessions",
        summary="Its records and metadata.",
        answers={200: Answer("As it is now.", {JSON: named("SessionState")}), **SESSION},
        parameters=(_SESSION,),
    )
    yield Operation(
        method="delete",
        path="/sessions/{session_id}",
        name="delete_session",
        tag="sessions",
        summary="End a session.",
        answers={204: Answer("It is gone."), **DELETION},
        parameters=(_SESSION,),
    )
    yield Operation(
        method="post",
        path="/sessions/{session_id}/samples",
        name="samples",
        tag="sessions",
        summary="Training samples, as one safetensors payload.",
        answers={
            200: Answer("The samples.", {OCTETS: None}),
            422: Answer("The turns do not make samples; the reason.", {TEXT: _TEXT_SCHEMA}),
            **SAMPLES,
        },
        parameters=(_SESSION,),
        body=Body(named("SamplesRequest"), required=False),
    )


def _turns(base: str, suffix: str, parameters: tuple[Parameter, ...]) -> Iterator[Operation]:
    for path, dialect in DIALECTS.items():
        yield Operation(
            method="post",
            path=f"{base}/{path}",
            name=f"{_name(path)}{suffix}",
            tag="turns",
            summary=f"A turn, in the {dialect.name} dialect.",
            answers={
                200: Answer(
                    "The answer, whole or as events.",
                    {JSON: _ANSWERS[dialect.name], EVENTS: _TEXT_SCHEMA},
                    _REMAINING,
                ),
                **failures_of_turns(dialect.name),
                "default": Answer("What the engine refused the turn with; in chat in its own words."),
            },
            parameters=(*parameters, _IDEMPOTENCY),
            body=Body(_REQUESTS[dialect.name]),
        )
    for path, counting in COUNTS.items():
        yield Operation(
            method="post",
            path=f"{base}/{path}",
            name=f"{_name(path)}{suffix}",
            tag="turns",
            summary="How many ids the prompt of a turn would have.",
            answers={200: Answer("So many.", {JSON: named("MessagesTokens")}), **failures_of_turns(counting.name)},
            parameters=parameters,
            body=Body(_REQUESTS[counting.name]),
        )


def _proxied(base: str, suffix: str, parameters: tuple[Parameter, ...]) -> Iterator[Operation]:
    for path in sorted(ALLOWED_PATHS):
        models = (_VERSION,) if path == "v1/models" else ()
        yield _passed_on(
            path=f"{base}/{path}",
            name=f"{_name(path)}{suffix}",
            parameters=(*parameters, *models),
            posted=path in _POSTED,
        )
    yield _passed_on(
        path=f"{base}/v1/models/{{model}}", name=f"v1_model{suffix}", parameters=(*parameters, _MODEL, _VERSION)
    )


def _passed_on(*, path: str, name: str, parameters: tuple[Parameter, ...], posted: bool = False) -> Operation:
    return Operation(
        method="post" if posted else "get",
        path=path,
        name=f"engine_{name}",
        tag="engine",
        summary="Passed on to the engine, with any of GET, POST, PUT, DELETE and PATCH; nothing is recorded.",
        answers={**PROXY, "default": _ENGINE},
        parameters=parameters,
        body=Body({"type": "object"}, required=False) if posted else None,
    )


def _name(path: str) -> str:
    return path.replace("/", "_")
