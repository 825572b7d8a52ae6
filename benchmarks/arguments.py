"""Arguments of the commands, read by ``argparse``."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["count", "number", "writable"]


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, got {text!r}")
    return int(text)


def number(text: str) -> float:
    """A finite number that is not negative."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must not be negative, got {text!r}")
    return value


def writable(text: str) -> Path:
    """A file that can be written, which is found out now, not when everything has run."""
    try:
        Path(text).touch()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from error
    return Path(text)
