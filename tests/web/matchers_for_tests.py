"""Message matchers that are named by a dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]


def ignoring_case(stored: Message, replayed: Message) -> bool:
    return bool(stored["role"] == replayed["role"] and stored["content"].lower() == replayed["content"].lower())


def raising(stored: Message, replayed: Message) -> bool:
    raise LookupError("no é here")


def answering_one(stored: Message, replayed: Message) -> Any:
    return 1


def answering_none(stored: Message, replayed: Message) -> Any:
    return None


async def asynchronous(stored: Message, replayed: Message) -> bool:
    return True


NOT_CALLABLE = 3
