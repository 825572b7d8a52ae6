"""Forests of turns for tests, and what their samples have to be, told token by token.

The simulation knows nothing of spans, cursors or arrays: a token is an object, a path is a list of such objects, and
whether a token is in a sample is a question of identity.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.completion import Completion
from trio_sessions.core.history import Attachment, Checkpoint, RenderedWith, TurnRecord
from trio_sessions.core.samples import AssemblyRules, Forest, Sample, TreeNode
from trio_sessions.core.tokens import as_token_ids

LAYERS, INDEXER_LAYERS, TOP_K = 2, 3, 2
MAX_TRIM = 2
NOTHING = RenderedWith.of(None, {})


def decode(ids: Sequence[int]) -> str:
    """Text that shows how ids were cut into pieces."""
    assert len(ids), "there is no text of no ids"
    return "[" + " ".join(map(str, ids)) + "]"


@dataclass(frozen=True, eq=False)
class Token:
    """One position of one turn."""

    id: int
    origin: str
    node: int
    serial: int
    log_prob: float = 0.0
    version: str | None = None


@dataclass
class Step:
    """One turn before it is grown: ``parent`` is the number of an earlier step, or None."""

    parent: int | None = None
    suffix: Sequence[int] = (1,)
    output: Sequence[int] = (1000,)
    drop: int = 0
    synthetic: int = 0
    finish: str | None = "stop"
    log_probs: Sequence[float] | None = None
    versions: Sequence[str | None] | None = None
    version: Any = None
    cached: Any = None
    prompt_tokens: Any = None
    latency: Any = None
    experts: bool = False
    choices: bool = False
    events: tuple[BoundaryEvent, ...] = ()
    response_id: str | None = None
    caller: Caller = NOBODY
    meta: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Grown:
    """Steps that were taken.

    ``incremental`` says whether payloads of experts hold only added rows, ``whole_choices`` whether those of the
    indexer hold all rows nevertheless.
    """

    incremental: bool = False
    whole_choices: bool = False
    steps: list[Step] = field(default_factory=list)
    paths: list[list[Token]] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    _serials: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def grow(self, step: Step) -> Checkpoint:
        node = len(self.steps)
        before = [] if step.parent is None else self.paths[step.parent]
        kept = before[: len(before) - step.drop]
        rendered = [
            Token(id_, "synthetic" if at < step.synthetic else "prompt", node, next(self._serials))
            for at, id_ in enumerate(step.suffix)
        ]
        log_probs = step.log_probs or [-0.5 - at for at in range(len(step.output))]
        versions = step.versions or [None if step.version is None else str(step.version)] * len(step.output)
        sampled = [
            Token(id_, "sampled", node, next(self._serials), log_prob, version)
            for id_, log_prob, version in zip(step.output, log_probs, versions, strict=True)
        ]
        path = [*kept, *rendered, *sampled]
        start = max(len(before) - 1, 0)
        parent = None if step.parent is None else self.checkpoints[step.parent]
        attachment = Attachment(
            base=parent, stored=(), request=({"role": "user", "content": "u"},), respelled={}, ticket=0, discards=0
        )
        checkpoint = attachment.checkpoint(
            keep=len(kept),
            suffix=as_token_ids(step.suffix),
            synthetic=step.synthetic,
            rendered_with=NOTHING,
            events=step.events,
            completion=Completion(
                token_ids=as_token_ids(step.output),
                log_probs=np.array(log_probs, dtype=np.float64),
                message={"role": "assistant", "content": "a"},
                finish_reason=step.finish,
                response_id=step.response_id,
            ),
            record=TurnRecord(
                timestamp=100.0 + node,
                request_timestamp=50.0 + node,
                method="POST",
                request_fields=b'{"logprobs":true}',
                routed_experts_start=step.fields.get("routed_experts_start_len", start if self.incremental else None),
                respelled={},
                response=json.dumps(self._answer(step, path, start, log_probs)).encode(),
                status_code=200,
            ),
            caller=step.caller,
        )
        self.steps.append(step)
        self.paths.append(path)
        self.prompts.append(len(kept) + len(rendered))
        self.checkpoints.append(checkpoint)
        return checkpoint

    def _answer(self, step: Step, path: list[Token], start: int, log_probs: Sequence[float]) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "output_token_logprobs": [[p, id_, None] for p, id_ in zip(log_probs, step.output, strict=True)],
            "completion_tokens": len(step.output),
        }
        for key, value in (
            ("weight_version", step.version),
            ("cached_tokens", step.cached),
            ("prompt_tokens", step.prompt_tokens),
            ("e2e_latency", step.latency),
        ):
            if value is not None:
                meta[key] = value
        if step.versions is not None:
            meta["weight_versions"] = [
                {"version": version, "start": span[0], "end": span[-1] + 1}
                for version, span in runs(step.versions)
                if version is not None
            ]
        if step.experts:
            meta["routed_experts"] = packed(rows(path, start if self.incremental else 0, LAYERS, 7))
        if step.choices:
            first = start if self.incremental and not self.whole_choices else 0
            meta["indexer_topk"] = packed(rows(path, first, INDEXER_LAYERS, 11))
            meta["indexer_topk_num_layers"] = INDEXER_LAYERS
        return {"id": step.response_id, "choices": [{"meta_info": {**meta, **step.meta}}, None]}

    def path_nodes(self, node: int) -> list[int]:
        path = [node]
        while self.steps[path[0]].parent is not None:
            path.insert(0, self.steps[path[0]].parent)
        return path

    def line(self, node: int | None = None) -> list[Checkpoint]:
        return [self.checkpoints[n] for n in self.path_nodes(len(self.steps) - 1 if node is None else node)]

    def rules(self, **changes: Any) -> AssemblyRules:
        return AssemblyRules(
            **{
                "decode": decode,
                "max_trim_tokens": MAX_TRIM,
                "num_layers": LAYERS,
                "incremental_replay": self.incremental,
                **changes,
            }
        )

    def forest(self, active: int | None = None) -> Forest:
        return Forest(
            tuple(
                TreeNode(
                    id=node,
                    parent=step.parent,
                    checkpoint=checkpoint,
                    seq=node,
                    truncated=step.finish == "length",
                    committed_at=checkpoint.record.timestamp,
                    response_id=step.response_id or "",
                )
                for node, (step, checkpoint) in enumerate(zip(self.steps, self.checkpoints, strict=True))
            ),
            active,
        )

    def leaves(self) -> list[int]:
        return [node for node in range(len(self.steps)) if all(step.parent != node for step in self.steps)]


def grown(*steps: Step, **kind: Any) -> Grown:
    forest = Grown(**kind)
    for step in steps:
        forest.grow(step)
    return forest


def line_of(*steps: Step, **kind: Any) -> Grown:
    """Steps that each extend the one before."""
    for index, step in enumerate(steps):
        step.parent = index - 1 if index else None
    return grown(*steps, **kind)


def rows(path: Sequence[Token], start: int, layers: int, factor: int) -> np.ndarray:
    """Replay rows that tell which token of which turn they belong to."""
    serials = np.array([token.serial for token in path[start:-1]], dtype=np.int32)
    inside = np.arange(layers * TOP_K, dtype=np.int32).reshape(layers, TOP_K)
    return serials[:, None, None] * 100 + inside[None] * factor


def packed(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<i4").tobytes()).decode()


def runs(values: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Equal neighbours with their indices."""
    return [
        (value, [index for index, _ in group])
        for value, group in itertools.groupby(enumerate(values), key=lambda pair: pair[1])
    ]


# -- what has to come out -----------------------------------------------------------------------------------------


@dataclass
class Expected:
    """A sample, told by its tokens; ``response_start`` is where the first turn's output begins."""

    tokens: list[Token]
    nodes: list[int]
    response_start: int
    status: str
    experts: bool
    choices: bool

    @property
    def trained(self) -> list[Token]:
        return [token for token in self.tokens if token.origin == "sampled"]


STATUS = {"stop": "completed", "tool_calls": "completed", "length": "truncated", "abort": "aborted"}


def expected(forest: Grown, leaf: int, max_seq_len: int | None = None) -> Expected | None:
    """The sample of ``leaf``'s line, turn after turn, as a list of tokens."""
    alive = {id(token) for token in forest.paths[leaf]}
    nodes = forest.path_nodes(leaf)
    out: Expected | None = None
    for node in nodes:
        step = forest.steps[node]
        prompt, output = forest.paths[node][: forest.prompts[node]], forest.paths[node][forest.prompts[node] :]
        mine = [*prompt, *(token for token in output if id(token) in alive)]
        gap = out is not None and (
            (out.experts and not step.experts and not forest.incremental) or (out.choices and not step.choices)
        )
        if out is not None and (out.status != "completed" or gap):
            break
        status = STATUS.get(step.finish, "pending")
        over = max_seq_len is not None and len(mine) > max_seq_len
        if over:
            mine, status = mine[: max(max_seq_len, 0)], "truncated"
            if len(mine) <= len(prompt):
                break
        so_far = [] if out is None else out.nodes
        out = Expected(mine, [*so_far, node], forest.prompts[nodes[0]], status, step.experts, step.choices)
        if over:
            break
    return out


def provenance_of(sample: Sample) -> list[tuple[str, int, str | None]]:
    """The sample's spans, spelled out for every token: kind, turn, version."""
    spelled: list[tuple[str, int, str | None]] = []
    for span in sample.metadata["provenance"]["spans"]:
        assert span["start"] == len(spelled), "spans tile the tokens"
        assert span["end"] > span["start"]
        assert ("weight_version" in span) is (span["kind"] == "sampled")
        spelled += [(span["kind"], span["turn"], span.get("weight_version"))] * (span["end"] - span["start"])
    return spelled


# -- strategies ---------------------------------------------------------------------------------------------------

_log_prob = st.floats(-20, 0, allow_nan=False)
_finishes = st.sampled_from([*["stop"] * 8, "tool_calls", "length", "abort", None, "content_filter"])
_mostly = st.sampled_from([True, True, True, False])
_callers = st.sampled_from([NOBODY, NOBODY, Caller(agent="a"), Caller(agent="b"), Caller(agent="b", purpose="title")])
_maybe = st.none() | st.integers(0, 50)


@st.composite
def steps(draw: st.DrawFn, taken: list[Step], *, linear: bool, mode: str, whole: bool) -> Step:
    """The next step behind those that were taken."""
    parents = [len(taken) - 1] if linear and taken else [None, *range(len(taken))]
    parent = draw(st.sampled_from(parents)) if taken else None
    before = None if parent is None else taken[parent]
    drop = 0
    if before is not None and before.output:
        # In the incremental mode a row that was replaced cannot be told from its successor beyond the last id.
        most = min(1 if mode.startswith("incremental") else MAX_TRIM, len(before.output))
        drop = draw(st.sampled_from([0, 0, *range(1, most + 1)]))
    # Rendered and sampled ids are of two kinds, as a stop id and the opener that takes its place are.
    suffix = draw(st.lists(st.integers(0, 9), min_size=1 if drop or before is None else 0, max_size=4))
    output = draw(st.lists(st.integers(1000, 1003), min_size=0 if mode == "none" else 1, max_size=5))
    versions = None
    if output and draw(st.booleans()):
        versions = draw(st.lists(st.sampled_from([None, "1", "2"]), min_size=len(output), max_size=len(output)))
    return Step(
        parent=parent,
        suffix=suffix,
        output=output,
        drop=drop,
        synthetic=draw(st.integers(0, len(suffix))) if before is not None and not drop else 0,
        finish=draw(st.sampled_from(["stop", "tool_calls"]) if whole else _finishes),
        caller=draw(_callers),
        log_probs=draw(st.lists(_log_prob, min_size=len(output), max_size=len(output))),
        versions=versions,
        version=draw(st.sampled_from([None, "1", "2"])),
        cached=draw(_maybe),
        prompt_tokens=draw(_maybe),
        latency=draw(st.none() | st.floats(0, 9) | st.integers(0, 9)),
        experts=mode != "none" and (mode != "full" or whole or draw(_mostly)),
        choices=mode != "none" and (mode != "full" or whole or draw(_mostly)),
        events=(BoundaryEvent("turn_closed", 3, "é"),) if before is not None and draw(st.booleans()) else (),
        response_id=f"r{len(taken)}",
    )


@st.composite
def forests(draw: st.DrawFn, *, linear: bool = False, whole: bool = False, max_nodes: int = 8) -> Grown:
    """Forests with retries, cut and replaced tails, several weight versions, and replay payloads of every kind.

    ``linear``: one line. ``whole``: every turn ended by itself, and holds the replay data that the others hold.
    """
    mode = draw(st.sampled_from(["none", "none", "full", "incremental", "incremental whole"]))
    forest = Grown(incremental=mode.startswith("incremental"), whole_choices=mode == "incremental whole")
    for _ in range(draw(st.integers(1, max_nodes))):
        forest.grow(draw(steps(forest.steps, linear=linear, mode=mode, whole=whole)))
    return forest
