"""How the error of each API looks."""

from __future__ import annotations

from typing import Any

from tests.web.support import CHAT

SHAPES = {
    CHAT: "plain",
    "v1/messages": "anthropic",
    "v1/v1/messages": "anthropic",
    "v1/messages/count_tokens": "anthropic",
    "v1/responses": "openai",
    "samples": "plain",
}
"""By the path below a session."""


def shape_of(path: str) -> str:
    """The shape of errors under a path, whatever stands before what it ends with."""
    # Of several that fit they are all alike.
    return next((shape for below, shape in SHAPES.items() if path.endswith(f"/{below}")), "plain")


def text_in(body: Any, shape: str) -> str:
    """The text of an error, which has to be of this shape and to have nothing else in it."""
    match shape, body:
        case "plain", {"error": str(text), **rest} if not rest:
            return text
        case "anthropic", {"type": "error", "error": {"type": str(), "message": str(text), **more}, **rest}:
            assert not rest
            assert not more
            return text
        case "openai", {"error": {"message": str(text), "type": str(), "param": _, "code": str(), **more}, **rest}:
            assert not rest
            assert not more
            return text
        case _:
            raise AssertionError(f"not {shape}: {body}")
