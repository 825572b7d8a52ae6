"""Something to look at while a command takes long: a spinner or a bar on a terminal, one plain line elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress", "progress_bar"]


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


@contextmanager
def progress_bar(text: str, total: int, console: Console | None = None) -> Iterator[Callable[[], None]]:
    """Show ``text`` and how much of ``total`` is done on stderr while the body runs.

    Yields:
        What to call whenever one more is done.
    """
    console = console or Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.print(text, markup=False)
        yield lambda: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
