"""Draw a report: ``python -m benchmarks.plot REPORT.json PICTURE.svg``.

On the left what a turn costs on the gateway and on the peer, on the right what rendering costs as a conversation grows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Figure, Row
from benchmarks.report import Report

__all__ = ["draw", "main"]

_OURS: Final = "#1b6ca8"
_THEIRS: Final = "#b8b8b8"
_MARK: Final = "#c0392b"
_TOKENIZER: Final = "qwen-3"


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the report.

    Args:
        argv: arguments without the program's name; None reads the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("report", type=Path, help="what python -m benchmarks --json wrote")
    parser.add_argument("picture", type=Path, help="a file whose suffix is svg or png")
    given = parser.parse_args(argv)
    try:
        draw(Report.read(given.report), given.picture)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def draw(report: Report, picture: Path) -> None:
    """Draw the report into a file.

    Raises:
        ValueError: the parts ``peer`` and ``tokenize`` are not in it.
    """
    turns = [row for row in _rows(report, "peer") if row.labels.get("figure") == "cpu_ms_per_turn"]
    lengths = [row for row in _rows(report, "tokenize") if row.labels["tokenizer"] == _TOKENIZER]
    if not (turns and lengths):
        raise ValueError("the report has no parts peer and tokenize, which the picture shows")
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Picture

    # Text stays text, and the same report makes the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 10}):
        drawn = Picture(figsize=(11, 4.2), layout="constrained")
        left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
        _draw_turns(left, turns)
        _draw_lengths(right, lengths)
        drawn.savefig(picture, dpi=120, metadata={"Date": None} if picture.suffix == ".svg" else None)


def _draw_turns(axes: Any, rows: Sequence[Row]) -> None:
    for place, (name, colour) in enumerate((("gateway", _OURS), ("peer", _THEIRS))):
        figures = [row.figures[name] for row in rows]
        bars = axes.barh(
            [index + (place - 0.5) * 0.38 for index in range(len(rows))],
            [figure.median for figure in figures],
            height=0.36,
            color=colour,
            label=name,
            xerr=_spread(figures),
            error_kw={"lw": 1, "ecolor": "#555555"},
        )
        axes.bar_label(bars, [f"{figure.median:.2g}" for figure in figures], padding=4, fontsize=8)
    for index, row in enumerate(rows):
        target = row.figures["gateway_to_peer"].target
        if target is not None:
            x = target * row.figures["peer"].median
            axes.plot([x, x], [index - 0.4, index], color=_MARK, lw=2)
    if any(row.figures["gateway_to_peer"].target for row in rows):
        axes.plot([], [], color=_MARK, lw=2, label="target")
    axes.set_yticks(range(len(rows)), [row.labels["load"] for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("processor time per turn, ms (median; bars: least and greatest)")
    axes.set_title("A turn, by load")
    axes.legend(loc="best", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_lengths(axes: Any, rows: Sequence[Row]) -> None:
    messages = [int(row.labels["messages"]) for row in rows]
    for name, label, colour in (
        ("whole_ms", "render everything", _THEIRS),
        ("splice_ms", "render what is new", _OURS),
    ):
        figures = [row.figures[name] for row in rows]
        axes.errorbar(
            messages,
            [figure.median for figure in figures],
            yerr=_spread(figures),
            marker="o",
            color=colour,
            label=label,
            capsize=2,
        )
    axes.set_yscale("log")
    axes.set_xlabel("messages before the turn")
    axes.set_ylabel("ms (log scale)")
    axes.set_title(f"Rendering a turn, {_TOKENIZER}")
    axes.legend(loc="best", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _spread(figures: Iterable[Figure]) -> list[list[float]]:
    pairs = [(figure.median - figure.low, figure.high - figure.median) for figure in figures]
    return [[low for low, _ in pairs], [high for _, high in pairs]]


def _rows(report: Report, part: str) -> Iterable[Row]:
    return (row for table in report.tables if table.part == part for row in table.rows)


if __name__ == "__main__":
    main()
