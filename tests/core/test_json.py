"""JSON at the edges, against the standard library's."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.json import MAX_NESTING, InvalidJSON, compact, decode, encode, kind_of
from trio_sessions.testing.strategies import chat_bodies, json_values


def _typed(value: object) -> str:
    return json.dumps(value, sort_keys=True)


spellings = st.builds(
    lambda value, ascii_only, indent, separators: json.dumps(
        value, ensure_ascii=ascii_only, indent=indent, separators=separators
    ).encode(),
    json_values(),
    st.booleans(),
    st.sampled_from([None, 0, 3, "\t"]),
    st.sampled_from([None, (" ,\r", " :  ")]),
)


@PATIENT
@given(json_values())
def test_encode_is_compact_utf8_that_decodes_to_the_same(value):
    raw = encode(value)
    assert _typed(decode(raw)) == _typed(json.loads(raw)) == _typed(value)
    # Outside of strings there is nothing that could be left out.
    assert not re.search(rb"\s", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", raw))


@PATIENT
@given(spellings)
def test_decode_agrees_with_the_standard_library(raw):
    assert _typed(decode(raw)) == _typed(json.loads(raw))


@PATIENT
@given(spellings)
@example(b'"\\u00e9"')
@example(b'["\\u0041", 1]')
@example(b'"\\/"')
@example(b'"\\ud83d\\ude00"')
@example(b'"\\\\u0041"')
@example(b'"\\u0000\\u001f\\u0022\\u005c"')
def test_compact_keeps_the_value_and_drops_white_space_and_escapes(raw):
    out = compact(raw)
    assert _typed(json.loads(out)) == _typed(json.loads(raw))
    assert compact(out) == out
    assert not re.search(rb"\s", re.sub(rb'"(?:[^"\\]|\\.)*"', b'""', out))
    # The escapes that are left are those that JSON demands.
    for escape in re.findall(rb"(?<!\\)(?:\\\\)*\\u(....)", out):
        assert int(escape, 16) < 0x20


NUMBERS = [
    "0", "-0", "-0.0", "1.0", "1.50", "1e5", "1E5", "1e+05", "1E-7", "1e400", "-1e-400",
    "0.1000000000000000055511151231257827", "123456789012345678901234567890", "9" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:24])
@pytest.mark.parametrize("text", ['"a"', '"\\u00e9"', '"\\/"'], ids=["plain", "escape", "slash"])
def test_compact_keeps_the_spelling_of_numbers(number, text):
    assert (
        compact(f"[ {text}, {number} ]".encode())
        == f"[{json.dumps(json.loads(text), ensure_ascii=False)},{number}]".encode()
    )


@pytest.mark.parametrize("escape", ["", "\\u0041"], ids=["plain", "escape"])
def test_compact_keeps_duplicate_keys(escape):
    raw = f'{{"a": 1, "b": "{escape}", "a": 2}}'.encode()
    assert compact(raw) == f'{{"a":1,"b":"{"A" if escape else ""}","a":2}}'.encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"NaN",
        b"[NaN]",
        b"[-Infinity]",
        b"Infinity",
        b'["\\u0041",NaN]',
        b'["\\u0041",-Infinity]',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'["\\u0041","\\ud800"]',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xed\xa0\xbd\xed\xb8\x80"',
        b'["\\u0041","\xff"]',
        b'["\\u0041","\xed\xa0\x80"]',
        b"\xef\xbb\xbf1",
        b'\xef\xbb\xbf"\\u0041"',
        '["\u755c"]'.encode("utf-16-le"),
        b"01",
        b"[1,]",
        b"{} x",
        b'["\\u0041"] x',
        b"{'a':1}",
        b'{"a" 1}',
        b'"\x01"',
        b'["\\u0041","\x01"]',
        b'"\\x"',
        b'"\\u12"',
        b'"\\u12g4"',
        b"[" * 100_000,
        b'["\\u0041",' * 100_000,
        b"<html>",
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_what_is_no_json_is_refused_by_both(raw):
    with pytest.raises(InvalidJSON):
        decode(raw)
    with pytest.raises(InvalidJSON):
        compact(raw)


@settings(PATIENT, max_examples=80)
@given(st.binary() | chat_bodies() | st.binary().map(lambda raw: b'"\\u0041' + raw + b'"'))
def test_any_bytes_are_json_or_refused(raw):
    """And what ``decode`` understands, ``compact`` renders as the same value."""
    try:
        value = decode(raw)
    except InvalidJSON:
        value = None
    try:
        out = compact(raw)
    except InvalidJSON:
        assert value is None
    else:
        out.decode()
        if value is not None:
            assert _typed(decode(out)) == _typed(value)


@pytest.mark.parametrize(
    ("opener", "innermost", "closer"),
    [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[0,{"a":', b"1", b"},0]")],
    ids=["lists", "objects", "both"],
)
def test_the_limit_on_nesting_is_exact(opener, innermost, closer):
    repeats = MAX_NESTING // len(closer.replace(b",0", b""))
    within = opener * repeats + innermost + closer * repeats
    assert decode(within) == json.loads(within)
    with pytest.raises(InvalidJSON, match=f"nested deeper than {MAX_NESTING} levels"):
        decode(b"[" + within + b"]")


@settings(PATIENT, max_examples=25)
@given(st.integers(MAX_NESTING - 3, MAX_NESTING + 3), st.data())
def test_the_deepest_branch_counts_wherever_it_is(depth, data):
    value: object = 1
    for _ in range(depth):
        siblings = data.draw(st.sampled_from([[], [[]], [{}, "["]]))
        value = [*siblings, value] if data.draw(st.booleans()) else {"[": value, "s": siblings}
    raw = json.dumps(value).encode()
    deepest = _depth(value)
    if deepest <= MAX_NESTING:
        assert decode(raw) == value
    else:
        with pytest.raises(InvalidJSON, match="nested deeper"):
            decode(raw)


def _depth(value: object) -> int:
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return 1 + max(map(_depth, children), default=0)
    return 0


def test_wide_values_and_brackets_in_text_are_not_deep():
    assert decode(json.dumps([[]] * 1_000).encode()) == [[]] * 1_000
    assert decode(json.dumps("[{" * 1_000).encode()) == "[{" * 1_000


def test_encode_refuses_lone_surrogates():
    with pytest.raises(UnicodeEncodeError):
        encode("\ud800")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"),
        (True, "a boolean"),
        ("", "a string"),
        (1, "a number"),
        (1.5, "a number"),
        ([], "a list"),
        ((), "a list"),
        ({}, "an object"),
        (b"", "bytes"),
    ],
)
def test_what_a_value_is(value, said):
    assert kind_of(value) == said
