"""Tool calls, joined on their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trio_sessions.core.matchers.arguments import same_replayed
from trio_sessions.core.matchers.equality import present, same

__all__ = ["same_calls", "same_function"]

SameArguments = Callable[[Any, Any], bool]


def same_calls(stored: Any, replayed: Any, same_arguments: SameArguments = same_replayed) -> bool:
    """Whether both are the same calls: ids, names, argument values.

    The order is free where all calls on both sides have ids of their own; otherwise they are compared pair by pair,
    and only an id that both have must be the same. Keys that a client adds are ignored.

    Args:
        stored: a ``tool_calls`` as it is in a message.
        replayed: likewise.
        same_arguments: says when the replayed arguments are the stored ones.
    """
    stored, replayed = present(stored), present(replayed)
    if not isinstance(stored, list) or not isinstance(replayed, list):
        return same(stored, replayed)
    if len(stored) != len(replayed):
        return False
    if len(stored) > 1:
        by_id, by_id_again = _by_id(stored), _by_id(replayed)
        if by_id is not None and by_id_again is not None:
            return by_id.keys() == by_id_again.keys() and all(
                _same_call(call, by_id_again[name], same_arguments) for name, call in by_id.items()
            )
    return all(_same_call(call, other, same_arguments) for call, other in zip(stored, replayed, strict=True))


def same_function(stored: Any, replayed: Any, same_arguments: SameArguments = same_replayed) -> bool:
    """Whether the same function is called with the same arguments."""
    if not isinstance(stored, dict) or not isinstance(replayed, dict):
        return same(stored, replayed)
    return same(stored.get("name"), replayed.get("name")) and same_arguments(
        stored.get("arguments"), replayed.get("arguments")
    )


def _same_call(stored: Any, replayed: Any, same_arguments: SameArguments) -> bool:
    if not isinstance(stored, dict) or not isinstance(replayed, dict):
        return same(stored, replayed)
    return (
        _same_where_both_have_it(stored.get("id"), replayed.get("id"))
        and _same_where_both_have_it(stored.get("type"), replayed.get("type"))
        and same(stored.get("custom"), replayed.get("custom"))
        and same_function(_function_of(stored), _function_of(replayed), same_arguments)
    )


def _same_where_both_have_it(left: Any, right: Any) -> bool:
    return present(left) is None or present(right) is None or same(left, right)


def _function_of(call: dict[str, Any]) -> Any:
    """The function; the call itself where its name and arguments are not one level down."""
    function = call.get("function")
    return call if function is None else function


def _by_id(calls: list[Any]) -> dict[str, Any] | None:
    """None where a call has no id, or one of another."""
    found = {call["id"]: call for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)}
    return found if len(found) == len(calls) and "" not in found else None
