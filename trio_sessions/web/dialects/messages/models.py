"""Anthropic's list of models, made from the engine's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import Failure, engine_failure
from trio_sessions.service.replies import Reply, json_reply
from trio_sessions.web.dialects.messages.errors import error_object, error_status

__all__ = ["MODELS_PATH", "VERSION_HEADER", "models_reply"]

MODELS_PATH: Final = "v1/models"
VERSION_HEADER: Final = "anthropic-version"
"""Requests that have it are answered in this API's words."""


class _Model(msgspec.Struct, gc=False):
    id: str
    created: int | float | None = None


class _Models(msgspec.Struct, gc=False):
    data: list[_Model]


_models_decoder = msgspec.json.Decoder(_Models)


def models_reply(engine: Reply, model: str | None = None) -> Reply:
    """All models, or one of them.

    Args:
        engine: its reply when it was asked for the list.
        model: the one that is asked about; None for all.
    """
    if engine.status != 200:
        return _failed(engine_failure(EngineAnswer(engine.status, engine.headers, engine.body)))
    try:
        models = [_spelled(entry) for entry in _models_decoder.decode(engine.body).data]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _failed(Failure(502, "the engine answered no list of models", "bad_engine_answer"))
    if model is None:
        return json_reply(_page(models))
    found = next((entry for entry in models if entry["id"] == model), None)
    if found is None:
        return _failed(Failure(404, "the engine has no such model", "model_not_found"))
    return json_reply(found)


def _page(models: list[dict[str, Any]]) -> dict[str, Any]:
    """All there are."""
    ids = [model["id"] for model in models] or [None]
    return {"data": models, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def _spelled(model: _Model) -> dict[str, Any]:
    return {"type": "model", "id": model.id, "display_name": model.id, "created_at": _time(model.created)}


def _time(seconds: float | None) -> str:
    """RFC 3339; the epoch where the engine gave no time that there is."""
    try:
        moment = datetime.fromtimestamp(seconds or 0, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _failed(failure: Failure) -> Reply:
    return json_reply(error_object(failure), status=error_status(failure))
