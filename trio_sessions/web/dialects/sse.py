"""Server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio_sessions.core import json

__all__ = ["data_event", "named_event"]


def data_event(payload: object) -> bytes:
    """An event with ``payload`` as JSON."""
    return b"data: %b\n\n" % json.encode(payload)


def named_event(payload: Mapping[str, Any]) -> bytes:
    """An event with the name that ``payload`` has as its ``type``."""
    return b"event: %b\ndata: %b\n\n" % (payload["type"].encode(), json.encode(payload))
