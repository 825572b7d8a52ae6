"""How the demo fails on purpose."""

from __future__ import annotations

__all__ = ["DemoFailed", "NotExact"]


class DemoFailed(Exception):
    """The demo did not come to its end; the text says what happened."""


class NotExact(DemoFailed):
    """A recorded prompt does not continue the turn before it token by token."""
