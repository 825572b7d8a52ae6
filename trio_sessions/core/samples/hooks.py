"""Running a picker and a post-processor: what they may do is checked, what they raise names them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trio_sessions.core import json
from trio_sessions.core.samples.pickers import Picker, drop_retries
from trio_sessions.core.samples.postprocessors import Postprocessor, train_once
from trio_sessions.core.samples.sample import Sample
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["SampleHooks", "run_hooks"]


@dataclass(frozen=True, slots=True)
class SampleHooks:
    """The picker and the post-processor of a launch, with the names that select them."""

    picker: Picker = drop_retries
    postprocessor: Postprocessor = train_once
    picker_name: str = "drop_retries"
    postprocessor_name: str = "train_once"


def run_hooks(samples: list[Sample], session_metadata: Mapping[str, Any], hooks: SampleHooks) -> list[Sample]:
    """The samples to send.

    Args:
        samples: one for every leaf, in order of commits.
        session_metadata: with ``tree``, and ``agent`` where the request had metadata; neither hook may change it.
        hooks: who decides.

    Raises:
        SampleAssemblyFailed: a hook raised, or returned what it may not; the text names both.
    """
    try:
        finished = _run(samples, session_metadata, hooks)
    # Whatever a user's function raises, it would raise again: it is a defect of the configuration or of the metadata.
    except Exception as error:
        raise SampleAssemblyFailed(
            f"session sample hook failed (picker={hooks.picker_name}, postprocessor={hooks.postprocessor_name}): "
            f"{error if str(error) else type(error).__name__}"
        ) from error
    return finished


def _run(samples: list[Sample], session_metadata: Mapping[str, Any], hooks: SampleHooks) -> list[Sample]:
    before = _fingerprint(samples, session_metadata)
    picked = _samples(hooks.picker(list(samples), session_metadata), "picker")
    if _fingerprint(samples, session_metadata) != before:
        raise ValueError("the picker must not change its samples or the session metadata (pure selection)")
    if not {id(sample) for sample in picked} <= {id(sample) for sample in samples}:
        raise ValueError("the picker must return some of the samples it was given (pure selection)")
    if len({id(sample) for sample in picked}) != len(picked):
        raise ValueError("the picker must return a sample once (pure selection)")
    finished = _samples(hooks.postprocessor(list(picked), session_metadata), "post-processor")
    # What it was given is shared with whoever else reads it, and is the hook's to change no more than the picker's.
    if _fingerprint(samples, session_metadata) != before:
        raise ValueError("the post-processor must return new samples, and leave the session metadata as it is")
    return finished


def _samples(returned: Any, who: str) -> list[Sample]:
    if inspect.iscoroutine(returned):
        # Nobody will await it, which Python would complain about.
        returned.close()
    if not isinstance(returned, Sequence) or not all(isinstance(sample, Sample) for sample in returned):
        raise TypeError(f"the {who} must return a list of samples, got {type(returned).__name__}")
    return list(returned)


def _fingerprint(samples: Sequence[Sample], session_metadata: Mapping[str, Any]) -> bytes:
    """A digest of what a hook could change in place: the arrays of a sample are read-only, its fields are frozen."""
    digest = hashlib.blake2b()
    for value in (session_metadata, *(sample.metadata for sample in samples)):
        digest.update(json.encode(value))
    return digest.digest()
