"""Equality of decoded JSON, where Python's own is too generous: ``True == 1``, ``0.0 == -0.0``."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from typing import Any, Final

import msgspec

__all__ = ["equal", "identical", "present", "same"]

# Keys in order: what is the same but for that is encoded to the same bytes, and at the speed of C.
_in_order: Final = msgspec.json.Encoder(order="sorted")


def identical(left: Any, right: Any) -> bool:
    """Whether two decoded JSON values are the same to the letter: types and numbers included, key order aside."""
    if left is right:
        return True
    try:
        return _in_order.encode(left) == _in_order.encode(right)
    except (TypeError, ValueError):
        # Half of a surrogate pair, say, which only a caller in Python can have.
        return _identical(left, right)


def _identical(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_identical(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_identical, left, right))
    if isinstance(left, float):
        return bool(left.hex() == right.hex())  # 0.0 == -0.0
    return bool(left == right)


def present(value: Any) -> Any:
    """``value``, or None for what says as little as null: ``""`` and ``[]``."""
    return None if value is None or value in ("", []) else value


def same(left: Any, right: Any) -> bool:
    """Equality of decoded JSON in which ``true`` is not 1; numbers compare by value."""
    # What is large is most often the same, which is seen at the speed of C.
    return (isinstance(left, dict | list) and identical(left, right)) or equal(left, right)


def equal(left: Any, right: Any, same_scalar: Callable[[Any, Any], object] = eq) -> bool:
    """As ``same``, item by item.

    Args:
        left: one value.
        right: the other.
        same_scalar: says when two scalars are equal of which none is a bool.
    """
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal(value, right[key], same_scalar) for key, value in left.items())
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(equal(item, other, same_scalar) for item, other in zip(left, right, strict=True))
        )
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(same_scalar(left, right))
