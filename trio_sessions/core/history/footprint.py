"""How much memory a checkpoint takes, roughly: enough to tell when sessions have to leave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.core.history.base import Checkpoint

__all__ = ["footprint"]

# Objects and their fields, and what the allocator keeps beside them.
_CHECKPOINT_BYTES: Final = 1536
_TEXT_BYTES: Final = 56
_MAPPING_BYTES: Final = 200
_LIST_BYTES: Final = 72
_MEMBER_BYTES: Final = 8
_OTHER_BYTES: Final = 32
# A text with a sign that is not ASCII takes up to four bytes for each, and is kept as UTF-8 too once it was encoded.
_WIDE_BYTES: Final = 4
_ID_BYTES: Final = 5


def footprint(checkpoint: Checkpoint) -> int:
    """Bytes that ``checkpoint`` adds to those it stands on; what it shares with its parent is the parent's."""
    parent, record = checkpoint.parent, checkpoint.record
    own_fields = parent is None or parent.record.request_fields is not record.request_fields
    own_tools = parent is None or parent.rendered_with is not checkpoint.rendered_with
    return (
        _CHECKPOINT_BYTES
        + len(record.response)
        + (len(record.request_fields) if own_fields else 0)
        + (len(checkpoint.rendered_with.tools) if own_tools else 0)
        + _ID_BYTES * (len(checkpoint.tokens) - checkpoint.kept)
        + sum(map(_value_bytes, checkpoint.messages))
        + sum(map(_value_bytes, record.respelled.values()))
    )


def _value_bytes(value: Any) -> int:
    total, pending = 0, [value]
    while pending:
        value = pending.pop()
        match value:
            case str():
                total += _TEXT_BYTES + len(value) * (1 if value.isascii() else _WIDE_BYTES)
            case Mapping():
                total += _MAPPING_BYTES
                pending.extend(value.values())
            case list() | tuple():
                total += _LIST_BYTES + _MEMBER_BYTES * len(value)
                pending.extend(value)
            case _:
                total += _OTHER_BYTES
    return total
