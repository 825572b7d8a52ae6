"""How long a request takes to find its place in a session of many branches.

``python -m benchmarks.tree [--quick]`` prints medians for 1,023 nodes in different shapes and a request of 500
messages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from trio_sessions.core.completion import Completion
from trio_sessions.core.history import MAX_NODES, RenderedWith, TreeHistory, TurnRecord
from trio_sessions.core.messages import strict
from trio_sessions.core.tokens import as_token_ids

MESSAGES = 500


@dataclass(frozen=True, slots=True)
class Attach:
    """Medians for one shape.

    Attributes:
        shape: of the tree.
        nodes: in it.
        depth: of the node that the request attaches to.
        milliseconds: to attach.
    """

    shape: str
    nodes: int
    depth: int
    milliseconds: float


def measure(*, nodes: int = MAX_NODES - 1, messages: int = MESSAGES, repeats: int = 15) -> list[Attach]:
    """One row a shape."""
    lines = {"one line": 1, "32 branches": 32, "every node a root": nodes, "every node on one node": nodes}
    return [
        _row(shape, branches, nodes, messages, repeats)
        for shape, branches in track(lines.items(), description="measuring", transient=True)
    ]


def _row(shape: str, branches: int, nodes: int, messages: int, repeats: int) -> Attach:
    tree = TreeHistory()
    root: list[dict[str, Any]] = []
    if shape == "every node on one node":
        root = _commit(tree, [_message("user", 0)], 0)
    longest = root
    for branch in range(branches):
        history = root
        for _ in range(max(1, (nodes - len(tree.nodes)) // (branches - branch))):
            if len(tree.nodes) < nodes:
                history = _commit(tree, [*history, _message("user", len(history))], branch)
        longest = max(longest, history, key=len)
    # Not longer than the request may be, and then new messages.
    request = longest[: messages - 1]
    request = [*request, *(_message("user", index) for index in range(len(request), messages))]
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        attachment = tree.attach(request, strict)
        samples.append((time.perf_counter() - began) * 1000)
    depth = 0 if attachment.base is None else attachment.base.depth
    return Attach(shape, len(tree.nodes), depth, statistics.median(samples))


def _commit(tree: TreeHistory, request: Sequence[dict[str, Any]], branch: int) -> list[dict[str, Any]]:
    said = _message("assistant", branch)
    attachment = tree.attach(request, strict)
    checkpoint = attachment.checkpoint(
        keep=len(attachment.tokens),
        suffix=as_token_ids([1, 2, 3]),
        synthetic=0,
        rendered_with=RenderedWith.of(None, {}),
        events=(),
        completion=Completion(
            message=said,
            token_ids=as_token_ids([4]),
            log_probs=np.array([-0.5]),
            finish_reason="stop",
            response_id="r",
        ),
        record=TurnRecord(0.0, 0.0, "POST", b"{}", None, {}, b"{}", 200),
    )
    tree.commit(attachment, checkpoint)
    return [*request, said]


def _message(role: str, number: int) -> dict[str, Any]:
    text = f"Message {number}: " + "the build is green, the tests passed, and the report says why. " * 10
    return {"role": role, "content": text}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small tree, to see that it runs")
    options: Mapping[str, Any] = vars(parser.parse_args())
    rows = measure(nodes=32, messages=20, repeats=3) if options["quick"] else measure()
    table = Table("shape", "nodes", "depth", "attach, ms", title=f"attach a request of {MESSAGES} messages")
    for row in rows:
        table.add_row(row.shape, f"{row.nodes:,}", str(row.depth), f"{row.milliseconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
