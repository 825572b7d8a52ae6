"""The samples of a whole session, in either mode."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.samples.forest import Forest, circumstances
from trio_sessions.core.samples.hooks import SampleHooks, run_hooks
from trio_sessions.core.samples.leaves import Mismatches, assemble_leaves
from trio_sessions.core.samples.line import AssemblyRules, assemble
from trio_sessions.core.samples.sample import Sample

__all__ = ["CollectedSamples", "EmptyReason", "collect_forest", "collect_line"]

EmptyReason: TypeAlias = Literal["no_records", "all_truncated"]
"""Why there are no samples. ``no_records``: no turn was committed. ``all_truncated``: nothing is left to train."""


@dataclass(frozen=True, slots=True)
class CollectedSamples:
    """What a session has to train.

    Attributes:
        samples: in the order in which the trainer is to have them.
        empty_reason: why there are none; None when there are any.
    """

    samples: tuple[Sample, ...]
    empty_reason: EmptyReason | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> CollectedSamples:
        """These samples of a session that has turns."""
        return cls(tuple(samples), None if samples else "all_truncated")


_NO_RECORDS = CollectedSamples((), "no_records")


def collect_line(
    path: Sequence[Checkpoint],
    rules: AssemblyRules,
    *,
    max_seq_len: int | None = None,
    undelivered: Container[Checkpoint] = (),
) -> CollectedSamples:
    """The one sample of a linear session, whose checkpoints are ``path``; see ``assemble``.

    Its metadata also says who made the last request, where that is known, and whether its answer was not delivered.

    Raises:
        SampleAssemblyFailed: see ``assemble``.
    """
    if not path:
        return _NO_RECORDS
    sample = assemble(path, rules, max_seq_len=max_seq_len)
    if sample is None:
        return CollectedSamples.of([])
    more = circumstances(path[-1], undelivered=path[-1] in undelivered)
    return CollectedSamples.of([replace(sample, metadata={**sample.metadata, **more}) if more else sample])


def collect_forest(
    forest: Forest,
    rules: AssemblyRules,
    *,
    session_metadata: Mapping[str, Any],
    mismatches: Mismatches,
    hooks: SampleHooks | None = None,
    max_seq_len: int | None = None,
) -> CollectedSamples:
    """The samples of a session that branches: one for every leaf, picked and finished by the hooks.

    Args:
        forest: the session's turns.
        rules: what assembly knows of the launch.
        session_metadata: what is sent with the samples; has ``tree`` (``tree_metadata`` of this forest), and ``agent``
            where the request had metadata.
        mismatches: compares a leaf's ids with the template's rendering.
        hooks: who decides; by default retries are dropped and every id is trained once.
        max_seq_len: see ``assemble``.

    Raises:
        SampleAssemblyFailed: see ``assemble_leaves`` and ``run_hooks``.
    """
    if not forest.nodes:
        return _NO_RECORDS
    leaves = assemble_leaves(forest, rules, mismatches=mismatches, max_seq_len=max_seq_len)
    return CollectedSamples.of(run_hooks(leaves, session_metadata, hooks or SampleHooks()) if leaves else [])
