"""What every part of the suite is given."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Options", "Show"]


class Show:
    """What is being measured, on stderr: a bar on a terminal, a line a step elsewhere. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, text: str, total: int | None = None) -> None:
        """Something else begins, which has ``total`` parts."""
        if self._console.is_terminal:
            self._bar.reset(self._task, description=text, total=total)
        else:
            self._console.print(text, markup=False)

    def done(self, count: int) -> None:
        """So many parts of the step are done."""
        self._bar.update(self._task, completed=count)


@dataclass(frozen=True, slots=True)
class Options:
    """How thoroughly to measure.

    Attributes:
        show: where to say what is being done.
        quick: everything as small as it can be, only to see that it runs.
        repeats: how often each figure is measured; None leaves it to the part.
    """

    show: Show
    quick: bool = False
    repeats: int | None = None

    def times(self, usual: int) -> int:
        """How often to measure, where a part has a usual number."""
        return self.repeats or (1 if self.quick else usual)
