"""JSON at the edges: decoded with a depth limit, rendered compactly.

Decoded values are plain Python objects. A limit on nesting at the door means that nothing further in (matchers,
templates, encoders) can be driven into a ``RecursionError`` by a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = [
    "MAX_NESTING",
    "InvalidJSON",
    "TooDeep",
    "compact",
    "decode",
    "encode",
    "kind_of",
    "too_deep",
    "weight",
    "without_room",
]

# Not a setting: the code further in, ours and others', is safe from recursion up to here, and nobody nests a tenth as
# deep.
MAX_NESTING: Final = 128

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


# Text is copied, containers and their items are made: one takes as long as this many bytes of text, and Python that
# looks at each of them takes longer.
_CONTAINER_BYTES: Final = 192
_ITEM_BYTES: Final = 12
_BYTES_PER_UNIT: Final = 16
_LARGE: Final = 2**20


class InvalidJSON(ValueError):
    """The bytes are not one JSON value within the nesting limit; the text says why."""


class TooDeep(InvalidJSON):
    """The bytes are nested deeper than the limit."""


def decode(raw: bytes) -> Any:
    """The value of ``raw``.

    Raises:
        InvalidJSON: malformed, NaN or Infinity, not UTF-8, a lone surrogate, or nested deeper than ``MAX_NESTING``.
    """
    try:
        value = _decoder.decode(raw)
    except RecursionError:
        raise TooDeep(f"nested deeper than {MAX_NESTING} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJSON(str(error)) from None
    # Counting brackets is a cheap upper bound; only bodies beyond it are walked.
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTING and too_deep(value):
        raise TooDeep(f"nested deeper than {MAX_NESTING} levels")
    return value


def weight(raw: bytes) -> int:
    """How much work it is to decode ``raw``, look through it and encode it, in bytes of text that could be tokenized
    meanwhile.
    """
    if len(raw) >= _LARGE:
        # Counting would be work as well.
        return len(raw)
    containers, items = raw.count(b"{") + raw.count(b"["), raw.count(b",")
    return (len(raw) + _CONTAINER_BYTES * containers + _ITEM_BYTES * items) // _BYTES_PER_UNIT


def encode(value: Any) -> bytes:
    """``value`` as compact UTF-8 JSON with non-ASCII text kept as it is."""
    return _encoder.encode(value)


def without_room(encoded: bytes) -> bytes:
    """A copy of what ``encode`` gave, for keeping: behind it an encoder leaves up to half as much room again."""
    return bytes(memoryview(encoded))


def compact(raw: bytes) -> bytes:
    """``raw`` without insignificant white space and without escapes of printable text; numbers keep their spelling.

    Raises:
        InvalidJSON: ``raw`` is not JSON, or holds NaN, Infinity or a lone surrogate.
    """
    try:
        if not raw.isascii():
            raw.decode()  # formatting passes text through unchecked
        formatted = msgspec.json.format(raw, indent=-1)
        # Only strings are spelled anew; what is between them, numbers and repeated keys included, stays.
        if b"\\" in raw and (b"\\u" in raw or b"\\/" in raw):
            formatted = _STRING.sub(_unescaped, formatted)
    except RecursionError:
        raise InvalidJSON("nested too deeply") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidJSON(str(error)) from None
    # Where nothing was to do, there need not be two of it.
    return raw if formatted == raw else formatted


def _unescaped(match: re.Match[bytes]) -> bytes:
    text = match[0]
    return encode(_decoder.decode(text)) if b"\\u" in text or b"\\/" in text else text


def too_deep(value: Any) -> bool:
    """Whether decoded ``value`` is nested deeper than ``MAX_NESTING``; needs no recursion itself."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            child
            for container in level
            for child in (
                container.values() if isinstance(container, dict) else container if isinstance(container, list) else ()
            )
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def kind_of(value: Any) -> str:
    """What a decoded value is in JSON's words, for the text of an error: ``a string``, ``null``."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return type(value).__name__
