"""JSON that readers disagree about: numbers, texts, keys and encodings at their edges."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st

__all__ = ["odd_json"]

_Path = tuple[str | int, ...]

_VALUES: Final = (
    b"1e999",
    b"-1e999",
    b"1e-999",
    b"1" + b"0" * 5000,
    b"-" + b"9" * 400,
    b"-0",
    b"-0.0",
    b"1.0",
    b"1",
    b"1E0",
    b"01",
    b"0x1",
    b"+1",
    b".5",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[[]]",
    b'{"":{"":""}}',
    b'""',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\\ud83d\\ude00"',
    b'"\xed\xa0\x80"',
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\\u0000"',
    b'"\x00"',
    b'"\\r\\nHost: evil\\r\\n\\r\\nGET /flush_cache HTTP/1.1\\r\\n"',
    b'"\\x41"',
    b'"\xf0\x9f\x98\x80\xe2\x80\xa8"',
    b"18446744073709551616",
    b"-9223372036854775809",
    b"2147483648",
    b"4294967296.5",
    b"[" * 100 + b"]" * 100,
    b"[" * 130 + b"]" * 130,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"'a'",
    b"1 /* a */",
    b"undefined",
    b"",
)
# JSON as a text inside JSON, as the arguments of a tool call are.
_NESTED: Final = tuple(
    json.dumps('{"a":' + value.decode("utf-8", "surrogatepass") + "}", ensure_ascii=True).encode()
    for value in _VALUES
    if b"\xff" not in value and b"\xc0" not in value
)
_ENCODINGS: Final = ("utf-8",) * 12 + ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "utf-7")


@st.composite
def odd_json(draw: st.DrawFn, documents: Sequence[Mapping[str, Any]], *, values: Sequence[bytes] = ()) -> bytes:
    """One of ``documents`` as a body, with up to two of its values, or of its keys, replaced by something odd.

    Numbers beyond every type, texts that are no Unicode, nesting, NaN, keys twice or with line feeds in them, another
    encoding, a byte order mark, something behind the end. Some of it is legal JSON, and some not quite.

    Args:
        documents: what is made odd; every place in them gets its turn.
        values: raw JSON to take in place of a value, beside what this module has.
    """
    document = draw(st.sampled_from(documents))
    places = list(_places(document))
    body = json.dumps(document, ensure_ascii=draw(st.booleans()))
    odd = (*_VALUES, *_NESTED, *values)
    marks: dict[bytes, bytes] = {}
    for index, place in enumerate(draw(st.lists(st.sampled_from(places), max_size=2, unique=True))):
        mark = f"@{index}@"
        document = _replaced(document, place, mark)
        body = json.dumps(document, ensure_ascii=False)
        marks[f'"{mark}"'.encode()] = draw(st.sampled_from(odd))
    raw = body.encode(draw(st.sampled_from(_ENCODINGS)), "replace") if not marks else body.encode()
    for mark_bytes, value in marks.items():
        raw = raw.replace(mark_bytes, value)
    match draw(st.sampled_from(["as it is"] * 6 + ["twice", "behind", "key", "cut", "space"])):
        case "twice":
            name = draw(st.sampled_from(list(document)))
            return raw[:1] + json.dumps(name).encode() + b":" + draw(st.sampled_from(odd)) + b"," + raw[1:]
        case "behind":
            return raw + draw(st.sampled_from([b"\x00", b"{}", b"\xef\xbb\xbf", b",", b" \r\n\t"]))
        case "key":
            key = draw(
                st.sampled_from([b'"a\\r\\nb"', b'"\\ud800"', b'"\xff"', b'""', b'"__proto__"', b'"\\u0000"', b"a"])
            )
            return raw[:1] + key + b":" + draw(st.sampled_from(odd)) + b"," + raw[1:]
        case "cut":
            return raw[: draw(st.integers(0, len(raw)))]
        case "space":
            return b" \n" * draw(st.sampled_from([1, 20_000])) + raw
        case _:
            return raw


def _places(value: Any, at: _Path = ()) -> Iterator[_Path]:
    """Of every value inside, containers too."""
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, child in items:
        yield (*at, key)
        yield from _places(child, (*at, key))


def _replaced(value: Any, at: _Path, by: str) -> Any:
    if not at:
        return by
    key, *rest = at
    try:
        child = _replaced(value[key], tuple(rest), by)
    # What was there was replaced already.
    except (TypeError, KeyError, IndexError):
        return value
    if isinstance(value, dict):
        return {**value, key: child}
    return [child if index == key else item for index, item in enumerate(value)]
