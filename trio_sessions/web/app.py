"""The gateway as a Quart-Trio application: routes, and nothing that decides anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final
from urllib.parse import unquote

import structlog
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.datastructures import Headers as WerkzeugHeaders
from werkzeug.exceptions import HTTPException

from trio_sessions.core import json
from trio_sessions.core.samples import Piece
from trio_sessions.engine.base import EngineCall, Headers
from trio_sessions.errors import NotProxied, SampleAssemblyFailed
from trio_sessions.observe import METRICS_CONTENT_TYPE
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.keys import draw_token
from trio_sessions.service.proxy import TURN_PATHS
from trio_sessions.service.replies import Reply
from trio_sessions.web.dialects.messages.models import models_question
from trio_sessions.web.errors import failure_of, status_of
from trio_sessions.web.listing import page_of, read_page
from trio_sessions.web.openapi import openapi_document
from trio_sessions.web.refusals import failed_at, refused
from trio_sessions.web.turns import TurnRoutes

__all__ = ["create_app"]

_JSON: Final = (("content-type", "application/json"),)
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)
_OCTETS: Final = (("content-type", "application/octet-stream"),)
_SLICE_BYTES: Final = 2**20
_PROXIED_METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH"]
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.web")


def create_app(gateway: Gateway) -> QuartTrio:
    """The routes of the HTTP contract (docs/wire.md) over ``gateway``.

    Serve it inside ``trio_sessions.hosting.WholeRequests``, which also limits bodies; Quart's own limits are off.
    """
    app = QuartTrio("trio_sessions", static_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    # A path is what the client wrote: no redirect to a nicer one.
    app.url_map.merge_slashes = False

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "session_server_instance_id": gateway.instance_id})

    @app.get("/metrics")
    async def metrics() -> Response:
        return _response(
            Reply(status=200, headers=(("content-type", METRICS_CONTENT_TYPE),), body=gateway.metrics.render())
        )

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return _response(Reply(status=200, headers=_JSON, body=openapi_document()))

    @app.post("/sessions")
    async def create_session() -> Response:
        if not gateway.keys:
            return _json({"session_id": (await gateway.registry.create()).id})
        token = draw_token()
        session = await gateway.registry.create(token_digest=token.digest)
        return _json({"session_id": session.id, "token": token.text})

    @app.get("/sessions")
    async def list_sessions() -> Response:
        page = read_page(request.query_string)
        return _json(page_of(gateway.registry.list(after=page.after, limit=page.limit + 1), page))

    @app.get("/sessions/<session_id>")
    async def get_session(session_id: str) -> Response:
        async with gateway.registry.using(session_id) as session:
            pieces = await gateway.inspector.describe(session)
        return _streamed(pieces, headers=_JSON)

    @app.delete("/sessions/<session_id>")
    async def delete_session(session_id: str) -> Response:
        await gateway.registry.delete(session_id)
        return _response(Reply(status=204, headers=(), body=b""))

    @app.post("/sessions/<session_id>/samples")
    async def samples(session_id: str) -> Response:
        try:
            async with gateway.registry.using(session_id) as session:
                payload = await gateway.samples.collect(session, await _body())
        except SampleAssemblyFailed as error:
            # The one error that the contract has as text.
            _log.warning("cannot assemble samples", session=session_id, code=error.code)
            return _response(Reply(status=status_of(error), headers=_TEXT, body=str(error).encode(errors="replace")))
        length = ("content-length", str(sum(map(len, payload))))
        return _streamed(gateway.offloader.iterate(_slices(payload), size=0), headers=(*_OCTETS, length))

    @app.route("/sessions/<session_id>/agents/<agent>/<path:path>", methods=_PROXIED_METHODS)
    @app.route("/sessions/<session_id>/<path:path>", methods=_PROXIED_METHODS)
    async def proxy(session_id: str, path: str, agent: str | None = None) -> Response:
        headers = _request_headers()
        question = models_question(request.method, path, headers)
        async with gateway.registry.using(session_id) as session:
            if question is not None:
                return _response(await question.answer(session, gateway.proxy))
            call = EngineCall(
                method=request.method,
                path=_raw_path_below(session_id, agent),
                query=request.query_string.decode("latin-1"),
                headers=headers,
                body=await _body(),
                session_id=session.id,
            )
            return _response(await gateway.proxy.forward(session, call))

    @app.errorhandler(HTTPException)
    async def http_error(error: HTTPException) -> Response:
        text = f"{(error.name or 'error').lower()}: {request.method} {request.path}"
        if error.code == 404 and request.path.endswith(TURN_PATHS):
            text += "; turns go to /sessions/{id}/v1/..., and POST /sessions makes a session"
        response = _response(refused(request.path, error.code or 500, text))
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    async def error_of_a_route(error: Exception) -> Response:
        failure = failure_of(error, path=request.path, metrics=gateway.metrics)
        return _response(failed_at(request.path, failure))

    # Assigning it is how Quart has an application wrapped.
    app.asgi_app = TurnRoutes(gateway, app.asgi_app)  # type: ignore[method-assign]
    return app


async def _body() -> bytes:
    body: bytes = await request.body
    return body


def _request_headers() -> Headers:
    # The scope has the headers as they arrived; Quart's own view adds one of its own.
    assert request.scope is not None
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.scope["headers"]]


def _raw_path_below(session_id: str, agent: str | None) -> str:
    assert request.scope is not None
    raw: str = request.scope["raw_path"].decode("latin-1")
    match raw.split("/", 5 if agent is not None else 3):
        case ["", "sessions", raw_id, path] if raw_id == session_id:
            return path
        case ["", "sessions", raw_id, "agents", name, path] if raw_id == session_id and unquote(name) == agent:
            return path
        case _:
            # The route matched the decoded path; another server could read this one differently.
            raise NotProxied(f"not found: {request.method} {request.path}")


def _json(value: object) -> Response:
    return _response(Reply(status=200, headers=_JSON, body=json.encode(value)))


def _slices(pieces: Iterable[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), _SLICE_BYTES):
            yield bytes(piece[start : start + _SLICE_BYTES])


def _streamed(pieces: AsyncIterator[bytes], *, headers: Headers) -> Response:
    """A 200 whose body is sent piece by piece, as fast as the client takes it."""
    response = Response(pieces, status=200)
    response.headers = WerkzeugHeaders(list(headers))
    return response


def _response(reply: Reply) -> Response:
    response = Response(reply.body, status=reply.status)
    # Quart would guess a content type, also for an empty body.
    headers = WerkzeugHeaders(list(reply.headers))
    if reply.status != 204:
        headers["content-length"] = str(len(reply.body))
    response.headers = headers
    return response
