"""Token storage against a model made of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT, traced_memory
from trio_sessions.core.tokens import EMPTY_PATH, TokenPath, as_token_ids
from trio_sessions.testing.strategies import Extend, lineages, token_ids


def _grow(steps: list[Extend]) -> tuple[list[TokenPath], list[list[int]]]:
    paths, model = [EMPTY_PATH], [[]]
    for step in steps:
        paths.append(paths[step.parent].extend(step.ids, keep=step.keep))
        model.append(model[step.parent][: step.keep] + list(step.ids))
    return paths, model


@PATIENT
@given(lineages(max_steps=20))
def test_every_path_of_a_tree_is_what_a_list_would_be(steps):
    paths, model = _grow(steps)
    for path, wanted in zip(paths, model, strict=True):
        ids = path.materialize()
        assert ids.tolist() == wanted
        assert ids.dtype == np.int32
        assert len(path) == len(wanted)


@PATIENT
@given(lineages())
def test_each_id_is_stored_once(steps):
    paths, _ = _grow(steps)
    for path, step in zip(paths[1:], steps, strict=True):
        assert path.tail.tolist() == list(step.ids)
        assert path.parent is paths[step.parent]
    assert sum(len(path.tail) for path in paths) == sum(len(step.ids) for step in steps)


@PATIENT
@given(lineages(), st.data())
def test_a_path_never_changes(steps, data):
    paths, model = _grow(steps)
    index = data.draw(st.integers(0, len(paths) - 1))
    handed_out = paths[index].materialize()
    paths[index].extend([-1])
    with pytest.raises(ValueError, match="read-only"):
        handed_out[...] = -1
    assert handed_out.tolist() == model[index]
    assert [path.materialize().tolist() for path in paths] == model
    for path in paths:
        assert not path.tail.flags.writeable


@PATIENT
@given(lineages(), st.data())
def test_extending_keeps_everything_unless_told_otherwise(steps, data):
    paths, model = _grow(steps)
    index = data.draw(st.integers(0, len(paths) - 1))
    more = data.draw(token_ids())
    assert paths[index].extend(more).materialize().tolist() == model[index] + more


@PATIENT
@given(token_ids())
def test_storage_does_not_alias_the_array_it_was_given(ids):
    given_array = np.array(ids, dtype=np.int32)
    stored = as_token_ids(given_array)
    path = EMPTY_PATH.extend(given_array)
    given_array[:] = -1
    assert stored.tolist() == path.materialize().tolist() == ids
    with pytest.raises(ValueError, match="read-only"):
        stored[...] = 0


@PATIENT
@given(token_ids(), st.integers())
def test_keep_outside_the_parent_is_refused(ids, keep):
    path = EMPTY_PATH.extend(ids)
    if 0 <= keep <= len(ids):
        assert len(path.extend([], keep=keep)) == keep
    else:
        with pytest.raises(ValueError, match=f"keep={keep} is outside the parent path"):
            path.extend([], keep=keep)


def test_a_line_of_turns_is_one_array_and_is_not_copied():
    path = EMPTY_PATH.extend([1])
    for index in range(100):
        path = path.extend([index])
        assert np.shares_memory(path.materialize(), path.materialize())
    assert np.shares_memory(path.materialize(), path.parent.materialize())


def test_a_branch_stores_what_it_adds():
    path = EMPTY_PATH.extend(range(1_000_000))
    path.extend([1])
    with traced_memory() as held:
        branches = [path.extend([index]) for index in range(100)]
    assert held() < 100_000
    assert [branch.materialize()[-1] for branch in branches] == list(range(100))


def test_long_chains_need_no_recursion():
    path = EMPTY_PATH
    for index in range(5_000):
        path = path.extend([index])
    assert path.materialize().tolist() == list(range(5_000))


@pytest.mark.parametrize("container", [list, np.array], ids=["list", "int64 array"])
@pytest.mark.parametrize("wrong", [2**31, 2**40, -(2**31) - 1])
def test_an_id_that_does_not_fit_is_refused_not_wrapped(wrong, container):
    with pytest.raises(OverflowError):
        as_token_ids(container([1, wrong]))


@PATIENT
@given(token_ids())
def test_ids_that_fit_are_kept_whatever_the_dtype(ids):
    for dtype in (np.int32, np.int64, np.uint32):
        assert as_token_ids(np.array(ids, dtype=dtype)).tolist() == ids
