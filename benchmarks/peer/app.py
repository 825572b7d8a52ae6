"""The peer's routes: the chat turn of docs/wire.md in linear mode, without retries of a turn and without streams."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from fastapi import FastAPI, Request, Response

from benchmarks.peer.sessions import Refused, Session, Templates, Unusable

__all__ = ["build"]

_NOT_FORWARDED: Final = ("content-length", "transfer-encoding", "host")
_NOT_RETURNED: Final = ("content-length", "transfer-encoding", "content-encoding")
_REPLAY: Final = ("routed_experts", "indexer_topk")


def build(engine: str, tokenizer: str) -> FastAPI:
    """The app, in front of the engine at a base URL."""
    templates = Templates(tokenizer)
    sessions: dict[str, Session] = {}
    # One pool for everything, as large as one would make it.
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=1024), timeout=600, trust_env=False)

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=closing)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/sessions")
    async def create() -> dict[str, str]:
        session_id = uuid.uuid4().hex
        sessions[session_id] = Session()
        return {"session_id": session_id}

    @app.get("/sessions/{session_id}")
    async def read(session_id: str) -> Response:
        session = sessions.get(session_id)
        if session is None:
            return _not_found(session_id)
        ids = session.snapshots[-1] if session.snapshots else []
        metadata = {"accumulated_token_ids": ids, "max_trim_tokens": 0}
        return _json(200, {"session_id": session_id, "records": session.records, "metadata": metadata})

    @app.delete("/sessions/{session_id}")
    async def delete(session_id: str) -> Response:
        session = sessions.pop(session_id, None)
        if session is None:
            return _not_found(session_id)
        session.closing = True
        return Response(status_code=204)

    @app.post("/sessions/{session_id}/v1/chat/completions")
    async def chat(session_id: str, request: Request) -> Response:
        arrived = time.time()
        session = sessions.get(session_id)
        if session is None:
            return _not_found(session_id)
        raw = await request.body()
        async with session.lock:
            try:
                body = json.loads(raw) if raw else {}
            except json.JSONDecodeError as error:
                return _json(400, {"error": f"invalid JSON body: {error}"})
            body.pop("stream", None)
            body.pop("stream_options", None)
            body |= {
                "logprobs": True,
                "return_meta_info": True,
                "return_routed_experts": True,
                "no_stop_trim": False,
            }
            try:
                body["input_ids"] = session.prepare(body.get("messages", []), body.get("tools"), templates)
            except Refused as error:
                return _json(400, {"error": str(error)})
            sent = _encode(body)
            turns = len(session.snapshots)
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        headers["X-SMG-Routing-Key"] = session_id
        try:
            answer = await client.post(f"{engine}/v1/chat/completions", content=sent, headers=headers)
        except httpx.TransportError as error:
            return _json(502, {"error": f"backend transport error: {type(error).__name__}: {error}"})
        passed = {name: value for name, value in answer.headers.items() if name not in _NOT_RETURNED}
        if answer.status_code != 200:
            return Response(answer.content, status_code=answer.status_code, headers=passed)
        try:
            response = json.loads(answer.content)
            message, completion = _completion(response)
        except (json.JSONDecodeError, Unusable) as error:
            return _json(502, {"error": str(error)})
        async with session.lock:
            # A turn that came too late answers its client and is not recorded.
            if not session.closing and len(session.snapshots) == turns:
                try:
                    session.commit(body, response, completion=completion, message=message, arrived=arrived)
                except Refused as error:
                    return _json(500, {"error": str(error)})
        return Response(_encode(_without_replay(response)), headers=passed, media_type="application/json")

    return app


def _completion(response: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    choice = (response.get("choices") or [{}])[0]
    meta = choice.get("meta_info")
    if not isinstance(meta, dict) or "output_token_logprobs" not in meta:
        raise Unusable("meta_info and output_token_logprobs must be in choice (requires logprobs=True)")
    message = choice.get("message") or {}
    if message.get("content") is None:
        raise Unusable("assistant message content is None")
    entries = meta["output_token_logprobs"]
    if len(entries) != meta.get("completion_tokens"):
        raise Unusable(f"len(output_token_logprobs)={len(entries)} != {meta.get('completion_tokens')}")
    return message, [entry[1] for entry in entries]


def _without_replay(response: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for choice in response["choices"]:
        meta = {key: value for key, value in (choice.get("meta_info") or {}).items() if key not in _REPLAY}
        choices.append({**choice, "meta_info": meta})
    return {**response, "choices": choices}


def _not_found(session_id: str) -> Response:
    return _json(404, {"error": f"session not found: session_id={session_id}"})


def _json(status: int, value: Any) -> Response:
    return Response(_encode(value), status_code=status, media_type="application/json")


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
