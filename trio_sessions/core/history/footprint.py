"""How much memory a checkpoint takes, roughly: enough to tell when sessions have to leave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.core.history.base import Checkpoint

__all__ = ["footprint"]

# Objects and their fields, and what the allocator keeps beside them.
_CHECKPOINT_BYTES: Final = 3072
_VALUE_BYTES: Final = 80
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
        total += _VALUE_BYTES
        match value:
            case str():
                # Text beyond Latin-1 takes more, but that is rarely most of it.
                total += len(value)
            case Mapping():
                pending.extend(value.values())
            case list() | tuple():
                pending.extend(value)
    return total
