"""The same message, spelled as another client would spell it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

from trio_sessions.testing.strategies.values import Message, json_values

__all__ = ["reordered", "respelled"]

_EMPTY: Final[tuple[Any, ...]] = (None, "", [])
_MAY_BE_EMPTY: Final = ("content", "reasoning_content", "tool_calls")


@st.composite
def respelled(draw: st.DrawFn, message: Mapping[str, Any]) -> Message:
    """``message`` in another spelling that the matcher ``loose_tool_call`` must call the same.

    Keys change their order, ``null``/``""``/``[]``/absence stand in for one another, ``index`` comes and goes in tool
    calls, keys that no matcher reads come and go, and arguments that spell an object are spelled anew (key order,
    white space, escapes, numbers; text or object).

    Args:
        message: any JSON object; what is not understood in it stays as it is.
    """
    new = {key: _copied(value) for key, value in message.items()}
    if isinstance(calls := new.get("tool_calls"), list) and calls:
        new["tool_calls"] = [draw(_respelled_call(call)) for call in calls]
    for key in _MAY_BE_EMPTY:
        if new.get(key) in _EMPTY:
            new.pop(key, None)
            if draw(st.booleans()):
                new[key] = _copied(draw(st.sampled_from(_EMPTY)))
    new.pop("x_extra", None)
    if draw(st.booleans()):
        new["x_extra"] = draw(json_values(max_leaves=2))
    return draw(reordered(new))


@st.composite
def _respelled_call(draw: st.DrawFn, call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    new = {key: value for key, value in call.items() if key != "index"}
    if draw(st.booleans()):
        new["index"] = draw(st.integers(0, 3))
    if isinstance(function := new.get("function"), dict):
        function = dict(function)
        absent = object()
        arguments = draw(_respelled_arguments(function.pop("arguments", None), absent))
        if arguments is not absent:
            function["arguments"] = arguments
        new["function"] = draw(reordered(function))
    return draw(reordered(new))


@st.composite
def _respelled_arguments(draw: st.DrawFn, arguments: Any, absent: object) -> Any:
    spelled = _spelled_object(arguments)
    if spelled is None:
        return arguments
    if not spelled:
        return draw(st.sampled_from([absent, None, "", "{}", " { }\n", {}]))
    if draw(st.booleans()) and (as_object := _as_plain(spelled)) is not None:
        return draw(reordered(as_object))
    return draw(_texts_of(spelled))


def _spelled_object(arguments: Any) -> dict[str, Any] | None:
    """The object, with every number a Decimal or an int; None when ``arguments`` does not spell exactly one."""
    if arguments is None or arguments == "":
        return {}
    try:
        text = json.dumps(arguments, allow_nan=False) if isinstance(arguments, dict) else arguments
        if not isinstance(text, str):
            return None
        value = json.loads(
            text, parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
        )
    except (ValueError, TypeError, RecursionError, ArithmeticError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate keys")
    return dict(pairs)


def _as_plain(value: Any) -> Any:
    """``value`` with floats for Decimals; None when one of them is no float exactly as Python prints it."""
    if isinstance(value, Decimal):
        as_float = float(value)
        return as_float if Decimal(repr(as_float)) == value else None
    if isinstance(value, list | dict):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        new = [(key, None if child is None else _as_plain(child)) for key, child in pairs]
        if any(child is None and before is not None for (_, before), (_, child) in zip(pairs, new, strict=True)):
            return None
        return dict(new) if isinstance(value, dict) else [child for _, child in new]
    return value


@st.composite
def _texts_of(draw: st.DrawFn, value: Any) -> str:
    def space() -> str:
        return draw(st.sampled_from(["", "", " ", "\n\t"]))

    def spell(item: Any) -> str:
        if isinstance(item, dict):
            keys = draw(st.permutations(list(item)))
            return "{" + ",".join(f"{space()}{spell(key)}{space()}:{spell(item[key])}" for key in keys) + "}"
        if isinstance(item, list):
            return "[" + ",".join(f"{space()}{spell(child)}{space()}" for child in item) + "]"
        if isinstance(item, str):
            return json.dumps(item, ensure_ascii=draw(st.booleans()))
        if isinstance(item, bool) or item is None:
            return json.dumps(item)
        if isinstance(item, int):
            return draw(st.sampled_from([f"{item}", f"{item}.0", f"{item}.00e0", f"{item}E+0"]))
        digits = f"{item}"
        return draw(st.sampled_from([digits, f"{digits}0" if "." in digits and "E" not in digits else digits]))

    return space() + spell(value) + space()


@st.composite
def reordered(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in draw(st.permutations(list(value)))}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(child) for key, child in value.items()}
    return [_copied(child) for child in value] if isinstance(value, list) else value
