"""The schemas that operations name. Objects are open: what is not said here may be there as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trio_sessions.web.dialects.messages import shapes as messages
from trio_sessions.web.dialects.responses import shapes as responses
from trio_sessions.web.openapi.parts import Schema, named

__all__ = ["component_schemas"]

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_BOOL: Final[Schema] = {"type": "boolean"}
_NUMBER: Final[Schema] = {"type": "number"}
_OBJECT: Final[Schema] = {"type": "object"}
_HEX: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_TOKEN_IDS: Final[Schema] = {"type": "array", "items": _COUNT}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _object(description: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


_ERRORS: Final = {
    "Error": _object("What went wrong, in a sentence.", {"error": _TEXT}),
    "OpenAIError": _object(
        "OpenAI's error object.",
        {
            "error": _object(
                "The error.", {"message": _TEXT, "type": _TEXT, "param": _maybe(_TEXT), "code": _maybe(_TEXT)}
            )
        },
    ),
    "MessagesError": _object(
        "Anthropic's error object.",
        {"type": {"const": "error"}, "error": _object("The error.", {"type": _TEXT, "message": _TEXT})},
    ),
    "EngineRefusal": {"type": "object", "description": "What the engine answered, in its own words."},
}

_CONTROL: Final = {
    "Health": _object(
        "Whether it serves.",
        {"status": {"enum": ["ok", "degraded"]}, "session_server_instance_id": _HEX},
        {
            "workers": _list(
                _object("A worker.", {"index": _COUNT, "up": _BOOL, "restarts": _COUNT, "sessions": _COUNT})
            )
        },
    ),
    "CreatedSession": _object("A new session.", {"session_id": _HEX}, {"base_url": _TEXT, "token": _TEXT}),
    "SessionList": _object(
        "Sessions.",
        {
            "sessions": _list(
                _object("A session.", {"session_id": _HEX, "created": _TEXT, "turns": _COUNT}),
            ),
            "next": _maybe(_HEX),
        },
    ),
    "SessionState": _object(
        "What a session has.",
        {"session_id": _HEX, "records": _list(named("Record")), "metadata": named("Metadata")},
    ),
    "Record": _object(
        "A turn.",
        {
            "timestamp": _NUMBER,
            "request_timestamp": _NUMBER,
            "method": _TEXT,
            "path": _TEXT,
            "request": _object("As the engine got it.", {"messages": _list(_OBJECT), "input_ids": _TOKEN_IDS}),
            "response": _object("The engine's, whole.", {"choices": _list(_OBJECT, minItems=1)}),
            "status_code": _WHOLE,
        },
    ),
    "Metadata": _object(
        "Of the token sequence.",
        {"accumulated_token_ids": _TOKEN_IDS, "max_trim_tokens": _COUNT},
        {
            "tito_session_mismatch": _list(_OBJECT),
            "boundary_events": _list(
                _object("A seam.", {"turn": _COUNT, "kind": _TEXT, "position": _COUNT, "detail": _TEXT})
            ),
            "replaced_turns": _COUNT,
            "undelivered": _list(_COUNT),
            "tree": _object(
                "Of a session that branches.",
                {
                    "nodes": _list(
                        _object(
                            "A turn.",
                            {
                                "id": _COUNT,
                                "parent": _maybe(_COUNT),
                                "seq": _COUNT,
                                "truncated": _BOOL,
                                "committed_at": _NUMBER,
                                "completion_span": _list(_COUNT, minItems=2, maxItems=2),
                                "num_tokens": _COUNT,
                                "response_id": _maybe(_TEXT),
                            },
                            {"caller": _OBJECT, "undelivered": _BOOL},
                        )
                    ),
                    "leaves": _list(_object("A path.", {"node_id": _COUNT, "path_node_ids": _list(_COUNT)})),
                    "active": _maybe(_COUNT),
                },
            ),
        },
    ),
    "SamplesRequest": {
        "type": "object",
        "description": "What samples are wanted.",
        "properties": {
            "max_seq_len": _maybe({"type": "integer", "minimum": 1}),
            "metadata": _maybe(_OBJECT),
            "rewards": _maybe({"type": "object", "additionalProperties": _NUMBER}),
        },
    },
    "Openapi": _object("This document.", {"openapi": _TEXT, "info": _OBJECT, "paths": _OBJECT}),
}

_CHAT: Final = {
    "ChatRequest": _object(
        "A chat request; every other field reaches the engine as it is.",
        {"messages": _list(_object("A message, for the chat template.", {"role": _TEXT}), minItems=1)},
        {
            "tools": _maybe(_list({})),
            "chat_template_kwargs": _maybe(_OBJECT),
            "n": {"enum": [None, 1]},
            "stream": {"description": "What is true asks for events."},
        },
    ),
    "ChatCompletion": _object(
        "The engine's answer.",
        {"choices": _list(_object("A choice.", {"message": _OBJECT, "meta_info": _OBJECT}), minItems=1)},
    ),
}

_MESSAGES: Final = {
    "MessagesAnswer": _object(
        "A message.",
        {
            "id": _TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _TEXT,
            "content": _list(_object("A block.", {"type": _TEXT}), minItems=1),
            "stop_reason": _TEXT,
            "stop_sequence": _maybe(_TEXT),
            "usage": _object("Tokens.", {"input_tokens": _COUNT, "output_tokens": _COUNT}),
        },
    ),
    "MessagesTokens": _object("The length of a prompt.", {"input_tokens": _COUNT}),
}

_RESPONSES: Final = {
    "ResponsesAnswer": _object(
        "A response.",
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _NUMBER,
            "status": {"enum": ["completed", "incomplete"]},
            "model": _TEXT,
            "output": _list(_object("An item.", {"id": _TEXT, "type": _TEXT}), minItems=1),
            "usage": _object("Tokens.", {"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
        },
    ),
}


def component_schemas() -> dict[str, Schema]:
    """All of them by name, sorted. Requests of a dialect are as it decodes them."""
    return dict(
        sorted(
            {
                **_ERRORS,
                **_CONTROL,
                **_CHAT,
                **_MESSAGES,
                **_RESPONSES,
                **_shapes("Messages", messages.Request),
                **_shapes("Responses", responses.Request),
            }.items()
        )
    )


def _shapes(prefix: str, request: type[msgspec.Struct]) -> dict[str, Schema]:
    """The schemas of a request and of what it is made of."""
    _, components = msgspec.json.schema_components([request], ref_template=f"#/components/schemas/{prefix}{{name}}")
    return {f"{prefix}{name}": schema for name, schema in components.items()}
