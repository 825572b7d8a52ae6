"""How many values a JSON text has, told without decoding it.

Decoding lets nothing else run, and takes as long as there are values to make: for megabytes of ``[]`` that is seconds,
for megabytes of text milliseconds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["more_values_than"]

# A piece is looked through at once, and nothing else runs meanwhile.
_PIECE_BYTES: Final = 2**18
# Every value but the first has one of its own before it.
_MARKS: Final = (b"[", b"{", b",")


def more_values_than(most: int, raw: bytes) -> bool:
    """Whether the JSON text ``raw`` has more than ``most`` opening brackets and commas outside of its strings.

    Of what is not JSON, some number that is as good.
    """
    return len(raw) > most and _more(most, raw) and _more_outside_strings(most, raw)


def _more(most: int, raw: bytes) -> bool:
    """The same, but for marks in strings being counted too; fast, and mostly enough."""
    marks = 0
    for start in range(0, len(raw), _PIECE_BYTES):
        marks += sum(raw.count(mark, start, start + _PIECE_BYTES) for mark in _MARKS)
        if marks > most:
            return True
    return False


def _more_outside_strings(most: int, raw: bytes) -> bool:
    marks = 0
    inside = 0
    rest = b""
    for start in range(0, len(raw), _PIECE_BYTES):
        piece = rest + raw[start : start + _PIECE_BYTES]
        # What a backslash at the end is for, the next piece tells.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" if backslashes % 2 else b""
        if backslashes:
            piece = piece[:-backslashes]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[inside::2])
        marks += sum(map(outside.count, _MARKS))
        if marks > most:
            return True
        inside = (inside + len(parts) - 1) % 2
    return False
