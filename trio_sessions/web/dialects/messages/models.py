"""Anthropic's list of models, made from the engine's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from trio_sessions.engine.base import EngineCall, Headers
from trio_sessions.service.failure import Failure, engine_failure
from trio_sessions.service.proxy import EngineProxy
from trio_sessions.service.replies import Reply, json_reply
from trio_sessions.service.session import Session
from trio_sessions.web.dialects.messages.errors import error_object, error_status

__all__ = ["ModelsQuestion", "models_question"]

_PATH: Final = "v1/models"
# Requests that have it are answered in this API's words.
_VERSION_HEADER: Final = "anthropic-version"


class _Model(msgspec.Struct, gc=False):
    id: str
    created: int | float | None = None


class _Models(msgspec.Struct, gc=False):
    data: list[_Model]


_models_decoder = msgspec.json.Decoder(_Models)


@dataclass(frozen=True, slots=True)
class ModelsQuestion:
    """A request for models, or for one of them.

    Attributes:
        model: its name; None for all.
        headers: of the request.
    """

    model: str | None
    headers: Headers

    async def answer(self, session: Session, proxy: EngineProxy) -> Reply:
        """The models of the engine that ``proxy`` leads to.

        Raises:
            SessionError: as ``EngineProxy.forward``.
        """
        call = EngineCall("GET", _PATH, query="", headers=self.headers, body=b"", session_id=session.id)
        return _reply(await proxy.forward(session, call), self.model)


def models_question(method: str, path: str, headers: Headers) -> ModelsQuestion | None:
    """What a request asks about models; None where it is not one for models, or of another API.

    Args:
        method: HTTP method.
        path: below the session, decoded.
        headers: the client's.
    """
    listed, _, model = path.removeprefix(_PATH).partition("/")
    asks = method == "GET" and path.startswith(_PATH) and not listed
    if not asks or not any(name.lower() == _VERSION_HEADER for name, _ in headers):
        return None
    return ModelsQuestion(model or None, headers)


def _reply(engine: Reply, model: str | None) -> Reply:
    if engine.status != 200:
        return _failed(engine_failure(engine.status, engine.body))
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
