"""Plans for JSON values that satisfy a JSON schema.

Supported: type (one or several), enum, const, properties, required, items, minItems, maxItems, minimum, maximum,
exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, common formats, anyOf, oneOf, allOf, and ``$ref``
within the document. Anything else, ``pattern`` for one, is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeGuard

from trio_sessions.engine.embedded.plan import Choice, Free, Part
from trio_sessions.engine.embedded.vocabulary import Alphabet, spelled

__all__ = ["arguments_plan", "json_spelling", "value_plan"]

_DEEPEST: Final = 6
_MOST_NUMBERS: Final = 40
_MOST_ITEMS: Final = 64
_MOST_LETTERS: Final = 1024
_WORDS: Final = ("river", "bread", "lamp", "a short note", "the old bridge", "north", "queue", "seven")
_FORMATS: Final[dict[str, tuple[str, ...]]] = {
    "date": ("2024-02-29", "2025-07-01", "2023-11-30"),
    "time": ("07:30:00Z", "23:59:59Z"),
    "date-time": ("2024-02-29T07:30:00Z", "2025-07-01T12:00:00Z"),
    "email": ("ada@example.com", "grace@example.org"),
    "uri": ("https://example.com/", "https://example.org/a/b"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000",),
    "ipv4": ("192.0.2.1", "198.51.100.7"),
    "hostname": ("example.com", "www.example.org"),
}

# Yields parts, is sent drawn options, and returns which of the continuations was drawn.
ValuePlan = Generator[Part, str, str]


def json_spelling(value: Any) -> str:
    """The spelling of a JSON value, as Python's ``json`` spaces it."""
    return spelled(json.dumps(value, ensure_ascii=False))


def value_plan(schema: Any, then: Sequence[str], *, lead: str = "") -> ValuePlan:
    """A plan for one value.

    Args:
        schema: a JSON schema; what is not an object is taken for "any value".
        then: spellings that may follow the value, none a prefix of another and none beginning with what could go on a
            number; the plan's return value is the one that was drawn.
        lead: white space in front of the value. It is drawn together with what comes next, as it is in pieces that
            hold a space and a quote.
    """
    return _Planner(schema).value(schema, tuple(then), 0, lead)


def arguments_plan(schema: Any, then: Sequence[str], *, lead: str = "") -> ValuePlan:
    """``value_plan`` for the arguments of a tool: an object, whatever the tool's schema says or leaves out."""
    planner = _Planner(schema)
    return planner.object(planner.resolved(schema, 0), tuple(then), 1, lead)


@dataclass(frozen=True, slots=True)
class _Planner:
    root: Any

    def value(self, schema: Any, then: tuple[str, ...], depth: int, lead: str) -> ValuePlan:
        schema = self.resolved(schema, depth)
        if depth > 2 * _DEEPEST:
            # A schema that requires itself has no finite value.
            return (yield from _one_of([lead + "null"], then))
        fixed = _fixed_values(schema)
        if fixed is not None:
            return (yield from _one_of([lead + text for text in fixed], then))
        kind = _kind(schema)
        if kind == "object":
            return (yield from self.object(schema, then, depth + 1, lead))
        if kind == "array":
            return (yield from self._array(schema, then, depth + 1, lead))
        if kind == "string":
            yield Choice((lead + '"',))
            ends = tuple('"' + option for option in then)
            return (yield Free(Alphabet.STRING, minimum=1, maximum=12, then=ends))[1:]
        return (yield from _one_of([lead + text for text in _scalars(kind, schema)], then))

    def object(self, schema: Mapping[str, Any], then: tuple[str, ...], depth: int, lead: str) -> ValuePlan:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        named = schema.get("required")
        names = [key for key in named if isinstance(key, str)] if _is_list(named) else []
        required = list(dict.fromkeys(names))
        optional = [key for key in properties if key not in required] if depth < _DEEPEST else []
        closings = {"}" + option: option for option in then}
        separator, opening = "", lead + "{"
        value_schema: Any = None
        while True:
            if required:
                keys, closes = {separator + json_spelling(required[0]) + ":": required[0]}, {}
            else:
                keys, closes = {separator + json_spelling(key) + ":": key for key in optional}, closings
            following = (*keys, *closes)
            if opening:
                drawn = (yield Choice(tuple(opening + option for option in following)))[len(opening) :]
                opening = ""
            else:
                drawn = yield from self.value(value_schema, following, depth, " ")
            if drawn in closings:
                return closings[drawn]
            key = keys[drawn]
            if required:
                required = required[1:]
            else:
                # The order of the schema is kept, so an object ends at the latest with its last property.
                optional = optional[optional.index(key) + 1 :]
            value_schema = properties.get(key, {})
            separator = ", "

    def _array(self, schema: Mapping[str, Any], then: tuple[str, ...], depth: int, lead: str) -> ValuePlan:
        fewest = _size(schema.get("minItems"), 0, most=_MOST_ITEMS)
        most = _size(schema.get("maxItems"), fewest + 2, most=fewest + 2)
        fewest = min(fewest, most)
        closings = {"]" + option: option for option in then}
        if most <= 0 or (fewest == 0 and depth >= _DEEPEST):
            return closings[(yield Choice(tuple(f"{lead}[{option}" for option in closings)))[len(lead) + 1 :]]
        yield Choice((lead + "[",))
        count = 0
        while True:
            count += 1
            following: tuple[str, ...] = ()
            if count < most:
                following = (",",)
            if count >= fewest:
                following = (*following, *closings)
            drawn = yield from self.value(schema.get("items", {}), following, depth, "" if count == 1 else " ")
            if drawn in closings:
                return closings[drawn]

    def resolved(self, schema: Any, depth: int) -> Mapping[str, Any]:
        """``schema`` with references followed and one alternative taken."""
        for _ in range(16):
            if not isinstance(schema, Mapping):
                return {}
            if isinstance(schema.get("$ref"), str):
                schema = self._pointed(schema["$ref"])
            elif _is_list(schema.get("allOf")) and schema["allOf"]:
                parts = [self.resolved(part, depth) for part in schema["allOf"]]
                schema = _merged([{key: value for key, value in schema.items() if key != "allOf"}, *parts])
            elif alternatives := schema.get("anyOf") or schema.get("oneOf"):
                if not _is_list(alternatives):
                    return {}
                # The simplest one once it gets deep, so that a recursive schema comes to an end.
                schema = alternatives[-1 if depth >= _DEEPEST else 0]
            else:
                return schema
        return {}

    def _pointed(self, reference: str) -> Any:
        target = self.root
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name, {}) if isinstance(target, Mapping) else {}
        return target


def _one_of(values: Sequence[str], then: tuple[str, ...]) -> ValuePlan:
    drawn = yield Choice(tuple(dict.fromkeys(value + option for value in values for option in then)))
    return next(option for option in sorted(then, key=len, reverse=True) if _is_split(drawn, values, option))


def _is_split(drawn: str, values: Sequence[str], option: str) -> bool:
    return drawn.endswith(option) and drawn[: len(drawn) - len(option)] in values


def _fixed_values(schema: Mapping[str, Any]) -> list[str] | None:
    if "const" in schema:
        return [json_spelling(schema["const"])]
    if _is_list(schema.get("enum")) and schema["enum"]:
        return [json_spelling(value) for value in schema["enum"]]
    return None


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if _is_list(kind):
        kind = next((name for name in kind if name != "null"), "null")
    if isinstance(kind, str):
        limited = kind == "string" and ("minLength" in schema or "maxLength" in schema or "format" in schema)
        return "limited string" if limited else kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema else "string"


def _scalars(kind: str, schema: Mapping[str, Any]) -> list[str]:
    if kind == "boolean":
        return ["true", "false"]
    if kind in ("integer", "number"):
        return _numbers(schema, whole=kind == "integer")
    if kind == "limited string":
        return _limited_strings(schema)
    return ["null"]


def _numbers(schema: Mapping[str, Any], *, whole: bool) -> list[str]:
    step = abs(_number(schema.get("multipleOf")) or Decimal(1 if whole else "0.5"))
    if whole and step % 1:
        step = step * 10 ** -int(step.as_tuple().exponent)
    low, above = _number(schema.get("minimum")), _number(schema.get("exclusiveMinimum"))
    high, below = _number(schema.get("maximum")), _number(schema.get("exclusiveMaximum"))
    floors = [bound for bound in (low, above) if bound is not None]
    ceilings = [bound for bound in (high, below) if bound is not None]
    start = max(floors) if floors else min([Decimal(0), *(ceiling - 20 * step for ceiling in ceilings)])

    def fits(value: Decimal) -> bool:
        return (
            (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
            and (below is None or value < below)
        )

    try:
        first = (start / step).to_integral_value(rounding="ROUND_CEILING")
    except ArithmeticError:  # more digits between the two than decimals have
        return ["0"]
    found = [value for index in range(_MOST_NUMBERS) if fits(value := (first + index) * step)]
    if not found and floors and ceilings and "multipleOf" not in schema:
        found = [(max(floors) + min(ceilings)) / 2]
    return [spelled(f"{value.normalize():f}") for value in found] or ["0"]


def _limited_strings(schema: Mapping[str, Any]) -> list[str]:
    fewest = _size(schema.get("minLength"), 0, most=_MOST_LETTERS)
    most = _size(schema.get("maxLength"), max(fewest, 40), most=_MOST_LETTERS)
    known = [text for text in _FORMATS.get(str(schema.get("format")), ()) if fewest <= len(text) <= most]
    texts = known or [(word * (fewest // len(word) + 1))[: max(fewest, min(most, len(word)))] for word in _WORDS]
    return [json_spelling(text) for text in dict.fromkeys(texts)]


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


def _size(value: Any, default: int, *, most: int) -> int:
    """A length that a schema asks for; one beyond reason is cut, so the value then misses the schema."""
    number = _number(value)
    return default if number is None else int(max(Decimal(0), min(number, Decimal(most))))


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _merged(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for schema in schemas:
        for key, value in schema.items():
            if key == "properties" and isinstance(value, Mapping):
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required" and _is_list(value):
                merged[key] = [*merged.get(key, []), *value]
            else:
                merged[key] = value
    return merged
