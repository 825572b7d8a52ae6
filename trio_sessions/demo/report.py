"""What the demo prints: the conversation, its tokens by origin, the log probs, the training sample."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trio_sessions.demo.run import Demonstration
from trio_sessions.demo.trace import Origin, Segment, Trace

__all__ = ["print_report"]

_STYLES: Final = {Origin.PROMPT: "cyan", Origin.TEMPLATE: "yellow", Origin.SAMPLED: "bold green"}
_MEANINGS: Final = {
    Origin.PROMPT: "the first request, rendered with the chat template",
    Origin.TEMPLATE: "added between turns: tool results, user messages, markup",
    Origin.SAMPLED: "by the engine: these are trained",
}
_ROLE_STYLES: Final = {"system": "dim", "user": "cyan", "assistant": "bold green", "tool": "yellow"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_CELL_COLUMNS: Final = 19


def print_report(demonstration: Demonstration, console: Console | None = None) -> None:
    """Print everything about the demo's session.

    Args:
        demonstration: what came of it.
        console: where to; standard output if None. Without colours, headings still tell tokens apart by origin.
    """
    console = console or Console(highlight=False)
    messages, trace, pieces = demonstration.messages, demonstration.trace, demonstration.pieces
    _print_conversation(console, messages)
    _print_tokens(console, trace, pieces)
    _print_log_probs(console, trace, pieces)
    _print_sample(console, demonstration)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.rule(
        Text(title, "bold"), align="left", style="dim", characters="─" if console.encoding.startswith("utf") else "-"
    )


def _print_conversation(console: Console, messages: Sequence[Mapping[str, Any]]) -> None:
    _heading(console, "Conversation, as the agent saw it")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    table.add_column()
    for message in messages:
        role = str(message["role"])
        parts = []
        if message.get("reasoning_content"):
            parts.append(f"(thinks: {message['reasoning_content']})")
        if message.get("content"):
            parts.append(str(message["content"]))
        for call in message.get("tool_calls") or ():
            parts.append(f"calls {call['function']['name']}({call['function']['arguments']})")
        table.add_row(Text(role, _ROLE_STYLES.get(role, "")), Text("\n".join(parts)))
    console.print(table)
    console.print(Text("The engine is a toy: its words make no sense, its ids and log probs are real.", "dim"))


def _print_tokens(console: Console, trace: Trace, pieces: Sequence[Sequence[str]]) -> None:
    _heading(console, "Tokens, by where they came from")
    for origin, meaning in _MEANINGS.items():
        console.print(Text(f"{origin.value:>9}  ", _STYLES[origin]).append(meaning, "default not bold"))
    for segment, texts in zip(trace.segments, pieces, strict=True):
        style = _STYLES[segment.origin]
        console.print()
        console.print(
            Text(
                f"[turn {segment.turn + 1}, {segment.origin.value}, {_tokens(len(segment.token_ids))}]",
                f"{style} reverse",
            )
        )
        console.print(Text("".join(texts).rstrip("\n"), style))


def _print_log_probs(console: Console, trace: Trace, pieces: Sequence[Sequence[str]]) -> None:
    _heading(console, "Log probs of the sampled tokens")
    for segment, texts in zip(trace.segments, pieces, strict=True):
        if segment.origin is not Origin.SAMPLED or not segment.log_probs:
            continue
        mean = math.fsum(segment.log_probs) / len(segment.log_probs)
        console.print(
            Text(f"turn {segment.turn + 1}: ", "bold").append(
                f"{_tokens(len(segment.log_probs))}, mean {mean:.3f}, lowest {min(segment.log_probs):.3f}  ",
                "not bold",
            )
        )
        if console.encoding.startswith("utf"):
            console.print(Text(_sparkline(segment), "green"))
        _print_cells(console, segment, texts)


def _print_cells(console: Console, segment: Segment, texts: Sequence[str]) -> None:
    a_row = max(1, console.width // (_CELL_COLUMNS + 2))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(a_row):
        table.add_column(width=_CELL_COLUMNS, no_wrap=True, overflow="crop")
    cells = [_cell(text, log_prob) for text, log_prob in zip(texts, segment.log_probs, strict=True)]
    for start in range(0, len(cells), a_row):
        table.add_row(*cells[start : start + a_row])
    console.print(table)


def _cell(text: str, log_prob: float) -> Text:
    number = f"{log_prob:7.3f}"
    shown = json.dumps(text, ensure_ascii=False)[1:-1].replace(" ", "·")
    room = _CELL_COLUMNS - len(number) - 1
    return Text(f"{number} ", "dim").append(shown if len(shown) <= room else shown[: room - 1] + "…", "not dim")


def _sparkline(segment: Segment) -> str:
    """One bar a token, as high as the token was probable."""
    return "".join(_BARS[min(int(math.exp(log_prob) * len(_BARS)), len(_BARS) - 1)] for log_prob in segment.log_probs)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _print_sample(console: Console, demonstration: Demonstration) -> None:
    trace = demonstration.trace
    sample = trace.sample()
    _heading(console, "The training sample")
    table = Table.grid(padding=(0, 3, 0, 0))
    turns = sum(segment.origin is Origin.SAMPLED for segment in trace.segments)
    trained = sum(sample.loss_mask)
    for name, length, note in (
        ("tokens", len(sample.tokens), f"int64, {turns} turns in one sequence"),
        ("loss_mask", len(sample.loss_mask), f"uint8, {trained} trained, {len(sample.loss_mask) - trained} not"),
        ("rollout_log_probs", len(sample.log_probs), f"float64, sum {math.fsum(sample.log_probs):.3f}"),
        ("response_length", sample.response_length, "from the first sampled token on"),
    ):
        table.add_row(name, Text(str(length), justify="right"), note)
    console.print(table)
    console.print()
    again = demonstration.encoded_again
    if again != len(sample.tokens):
        console.print(f"Encoding the same text again would give {_tokens(again)}: text alone is not what was sampled.")
    exact = "Exact: every prompt begins with the prompt before it and what was sampled for it, id by id."
    console.print(Text(exact, "bold green"))
