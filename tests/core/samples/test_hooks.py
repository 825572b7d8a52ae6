"""Pickers and post-processors of users: found, checked, and named when they fail."""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import replace

import pytest

from tests.core.samples.grown import Step, grown
from trio_sessions.core.samples import (
    PICKERS,
    POSTPROCESSORS,
    Sample,
    SampleHooks,
    assemble_leaves,
    run_hooks,
    tree_metadata,
)
from trio_sessions.errors import ConfigurationError, SampleAssemblyFailed
from trio_sessions.service.hooks import resolve_sample_hooks


@pytest.fixture
def session():
    """The raw samples of two roots, and the session's metadata."""
    forest = grown(Step(suffix=[1]), Step(suffix=[2]))
    raw = assemble_leaves(forest.forest(), forest.rules(), mismatches=lambda leaf: None)
    return raw, {"tree": tree_metadata(forest.forest())}


def keep(samples, session_metadata):
    return samples


def run(session, picker=keep, postprocessor=keep) -> list[Sample]:
    hooks = SampleHooks(picker=picker, postprocessor=postprocessor, picker_name="my.pick", postprocessor_name="my.post")
    return run_hooks(*session, hooks)


def failure(session, **hooks) -> str:
    with pytest.raises(SampleAssemblyFailed) as caught:
        run(session, **hooks)
    text = str(caught.value)
    prefix = "session sample hook failed (picker=my.pick, postprocessor=my.post): "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def test_both_are_called_with_samples_and_metadata(session):
    seen = []

    def picker(samples, session_metadata):
        seen.append((list(samples), session_metadata))
        return samples[1:]

    def postprocessor(samples, session_metadata):
        seen.append((list(samples), session_metadata))
        return [replace(sample, reward=1) for sample in samples] * 2

    raw, metadata = session
    finished = run(session, picker, postprocessor)
    assert [sample.reward for sample in finished] == [1, 1]
    assert seen == [(raw, metadata), (raw[1:], metadata)]


def test_a_picker_may_reorder_and_return_any_sequence(session):
    raw, _ = session
    assert run(session, picker=lambda samples, _: tuple(samples[::-1])) == raw[::-1]
    assert run(session, picker=lambda samples, _: ()) == []


def test_a_picker_may_take_its_list_apart(session):
    raw, _ = session
    assert run(session, picker=lambda samples, _: [samples.pop()]) == raw[1:]


@pytest.mark.parametrize(
    "picker",
    [
        lambda samples, _: [replace(samples[0])],
        lambda samples, _: [*samples, replace(samples[0], reward=1)],
        lambda samples, _: [samples[0], samples[0]],
        lambda samples, metadata: metadata.update(x=1) or samples,
        lambda samples, metadata: metadata["tree"]["nodes"].pop() and samples,
        lambda samples, _: samples[0].metadata.update(x=1) or samples,
        lambda samples, _: samples[1].metadata["leaf"]["path_node_ids"].append(7) or samples[:1],
    ],
    ids=["copy", "more", "twice", "new key", "nested", "sample", "of a dropped sample"],
)
def test_an_impure_picker_is_refused(session, picker):
    assert "(pure selection)" in failure(session, picker=picker)


@pytest.mark.parametrize(
    "postprocessor",
    [
        lambda samples, metadata: metadata.update(x=1) or samples,
        lambda samples, _: samples[0].metadata.update(x=1) or samples,
    ],
)
def test_a_post_processor_makes_new_samples(session, postprocessor):
    assert "must return new samples" in failure(session, postprocessor=postprocessor)


@pytest.mark.parametrize(
    "returned", [None, 1, "samples", {}, [None], [{}], pytest.param(iter(()), id="an iterator")], ids=repr
)
@pytest.mark.parametrize(("hook", "who"), [("picker", "picker"), ("postprocessor", "post-processor")])
def test_what_is_no_list_of_samples_is_refused(session, hook, who, returned):
    assert failure(session, **{hook: lambda samples, _: returned}).startswith(
        f"the {who} must return a list of samples, got {type(returned).__name__}"
    )


@pytest.mark.parametrize("hook", ["picker", "postprocessor"])
@pytest.mark.parametrize(
    ("error", "text"), [(ValueError("broken"), "broken"), (AssertionError(), "AssertionError"), (KeyError("k"), "'k'")]
)
def test_an_exception_names_the_hooks(session, hook, error, text):
    def broken(samples, session_metadata):
        raise error

    assert failure(session, **{hook: broken}) == text


def test_an_interrupt_is_not_swallowed(session):
    def interrupted(samples, session_metadata):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(session, picker=interrupted)


async def _async_hook(samples, session_metadata):
    return samples


class _AsyncCallable:
    async def __call__(self, samples, session_metadata):
        return samples


def test_a_hook_that_turns_out_to_be_async_is_refused(session):
    assert "got coroutine" in failure(session, picker=lambda *args: _async_hook(*args))


# -- from an import path ------------------------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("hooks_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("picker", ["drop_retries", "keep_all", "longest", "active_only", "by_agent"])
def test_built_in_names(picker):
    hooks = resolve_sample_hooks(picker, "train_once")
    assert (hooks.picker, hooks.picker_name) == (PICKERS[picker], picker)
    assert (hooks.postprocessor, hooks.postprocessor_name) == (POSTPROCESSORS["train_once"], "train_once")


def test_a_users_functions_decide(module, session):
    module.pick = lambda samples, _: samples[:1]
    module.post = lambda samples, _: [replace(sample, reward="mine") for sample in samples]
    hooks = resolve_sample_hooks("hooks_of_a_user.pick", "hooks_of_a_user.post")
    assert [sample.reward for sample in run_hooks(*session, hooks)] == ["mine"]


@pytest.mark.parametrize(
    "hook",
    [_async_hook, _AsyncCallable(), functools.partial(_async_hook, []), _AsyncCallable().__call__],
    ids=["function", "callable object", "partial", "method"],
)
def test_async_hooks_are_refused(module, hook):
    module.hook = hook
    with pytest.raises(ConfigurationError, match=r"^sample picker 'hooks_of_a_user.hook' is async; a picker is sync"):
        resolve_sample_hooks("hooks_of_a_user.hook", "train_once")
    with pytest.raises(ConfigurationError, match=r"^sample postprocessor .* is async; a postprocessor is synchronous"):
        resolve_sample_hooks("keep_all", "hooks_of_a_user.hook")


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (
            "nonsense",
            "unknown sample picker 'nonsense': use drop_retries, keep_all, longest, active_only, by_agent, or a",
        ),
        ("train_once", "unknown sample picker 'train_once'"),
        ("no_such_module_at_all.f", "cannot import sample picker"),
        ("json.no_such_function", "cannot import sample picker"),
        ("json.decoder.NaN", "sample picker 'json.decoder.NaN' is not callable"),
    ],
)
def test_what_cannot_be_resolved_is_a_configuration_error(selector, text):
    with pytest.raises(ConfigurationError, match=text):
        resolve_sample_hooks(selector, "train_once")
