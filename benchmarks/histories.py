"""Attaching a request to a history, and committing its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.conversations import said
from benchmarks.figures import Row, Table, figure
from benchmarks.options import Options
from benchmarks.timing import microseconds, seconds
from trio_sessions.core.completion import Completion
from trio_sessions.core.history import (
    MAX_NODES,
    Attachment,
    History,
    LinearHistory,
    RenderedWith,
    TreeHistory,
    TurnRecord,
)
from trio_sessions.core.matchers import strict
from trio_sessions.core.tokens import as_token_ids

__all__ = ["by_length", "by_shape"]

_REPEATS: Final = 15
_TURNS: Final = (10, 100, 400)
_QUICK_TURNS: Final = (5,)
_MESSAGES: Final = 500
_IDS: Final = 128


def by_length(options: Options, *, part: str) -> Table:
    """Both modes, over the turns that a session has."""
    kinds: dict[str, Callable[[], History]] = {"linear": LinearHistory, "tree": TreeHistory}
    return Table(
        part,
        "attach and commit a turn, by how many there are",
        tuple(
            _length(name, kind(), turns, options)
            for name, kind in kinds.items()
            for turns in (_QUICK_TURNS if options.quick else _TURNS)
        ),
    )


def _length(name: str, history: History, turns: int, options: Options) -> Row:
    options.show.step(f"{name}: {turns} turns")
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages = _commit(history, [*messages, said("user", turn)])
    attached, committed = [], []
    for turn in range(options.times(_REPEATS)):
        # As it is decoded from a body: equal, and no text the same object.
        request: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(messages))
        request.append(said("user", turns + turn))
        attached.append(1e6 * seconds(partial(history.attach, request, strict)))
        committed.append(1e6 * seconds(partial(_take, history, history.attach(request, strict))))
        messages = [*request, said("assistant", 0)]
    return Row({"history": name, "turns": str(turns)}, {"attach_us": figure(attached), "commit_us": figure(committed)})


def by_shape(options: Options, *, part: str) -> Table:
    """A request of many messages in full trees of different shapes."""
    nodes, messages = (32, 20) if options.quick else (MAX_NODES - 1, _MESSAGES)
    lines = {"one line": 1, "32 branches": 32, "every node a root": nodes, "every node on one node": nodes}
    rows = tuple(_shape(shape, branches, nodes, messages, options) for shape, branches in lines.items())
    return Table(part, f"attach a request of {messages} messages to a tree", rows)


def _shape(shape: str, branches: int, nodes: int, messages: int, options: Options) -> Row:
    options.show.step(f"tree: {shape}")
    tree = TreeHistory()
    root: list[dict[str, Any]] = []
    if shape == "every node on one node":
        root = _commit(tree, [said("user", 0)])
    longest = root
    for branch in range(branches):
        history = root
        for _ in range(max(1, (nodes - len(tree.nodes)) // (branches - branch))):
            if len(tree.nodes) < nodes:
                history = _commit(tree, [*history, said("user", len(history))], answer=branch)
        longest = max(longest, history, key=len)
    # Not longer than the request may be, and then new messages.
    request = longest[: messages - 1]
    request = [*request, *(said("user", index) for index in range(len(request), messages))]
    depth = getattr(tree.attach(request, strict).base, "depth", 0)
    return Row(
        {"shape": shape, "nodes": f"{len(tree.nodes):,}", "depth": str(depth)},
        {"attach_us": microseconds(lambda: tree.attach(request, strict), repeats=options.times(_REPEATS))},
    )


def _commit(history: History, request: Sequence[dict[str, Any]], *, answer: int = 0) -> list[dict[str, Any]]:
    _take(history, history.attach(request, strict), answer=answer)
    return [*request, said("assistant", answer)]


def _take(history: History, attachment: Attachment, *, answer: int = 0) -> None:
    checkpoint = attachment.checkpoint(
        keep=len(attachment.tokens),
        suffix=as_token_ids(range(_IDS)),
        synthetic=0,
        rendered_with=RenderedWith.of(None, {}),
        events=(),
        completion=Completion(
            message=said("assistant", answer),
            token_ids=as_token_ids(range(_IDS)),
            log_probs=np.full(_IDS, -0.5),
            finish_reason="stop",
            response_id="r",
        ),
        record=TurnRecord(0.0, 0.0, "POST", b"{}", None, {}, b"{}", 200),
    )
    history.commit(attachment, checkpoint)
