"""Something to look at while a start takes long: a spinner on a terminal, one plain line elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["progress"]


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show ``text`` on stderr while the body runs.

    The spinner turns in a thread of its own, so a body that blocks does not stop it.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(text, markup=False)
        yield
