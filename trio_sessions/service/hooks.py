"""Functions of the user that the gateway calls, found by dotted path.

A matcher runs while the session's lock is held, on the event loop or, for long requests, in a worker thread: it has to
be quick and must not block. Hooks for samples run in a worker thread, without the lock. Both must be safe to call from
several threads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trio_sessions.core.matchers import MATCHERS, Matcher
from trio_sessions.core.samples import PICKERS, POSTPROCESSORS, SampleHooks
from trio_sessions.errors import ConfigurationError, MatcherFailed

__all__ = ["resolve_matcher", "resolve_sample_hooks"]


def resolve_matcher(selector: str) -> Matcher:
    """The matcher named by a built-in name or by a dotted import path.

    A matcher from an import path is wrapped so that an exception or an answer that is no bool becomes
    ``MatcherFailed`` instead of a match.

    Raises:
        ConfigurationError: no such name, nothing importable there, not callable, or a coroutine function.
    """
    if selector in MATCHERS:
        return MATCHERS[selector]
    return _checked(_imported(selector, "message matcher", MATCHERS), selector)


def resolve_sample_hooks(picker: str, postprocessor: str) -> SampleHooks:
    """The picker and the post-processor named by built-in names or by dotted import paths.

    Raises:
        ConfigurationError: as for ``resolve_matcher``.
    """
    return SampleHooks(
        picker=PICKERS[picker] if picker in PICKERS else _imported(picker, "sample picker", PICKERS),
        postprocessor=(
            POSTPROCESSORS[postprocessor]
            if postprocessor in POSTPROCESSORS
            else _imported(postprocessor, "sample postprocessor", POSTPROCESSORS)
        ),
        picker_name=picker,
        postprocessor_name=postprocessor,
    )


def _imported(selector: str, kind: str, known: Collection[str]) -> Callable[..., Any]:
    """What a dotted path names; ``known`` are the built-in names, for a selector that is neither."""
    module_name, _, attribute = selector.rpartition(".")
    if not module_name:
        raise ConfigurationError(f"unknown {kind} {selector!r}: use {', '.join(known)}, or a dotted import path")
    try:
        hook = getattr(importlib.import_module(module_name), attribute)
    # Importing a user's module runs it, so anything may come out.
    except Exception as error:
        raise ConfigurationError(f"cannot import {kind} {selector!r}: {error}") from error
    if not callable(hook):
        raise ConfigurationError(f"{kind} {selector!r} is not callable")
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__):
        raise ConfigurationError(f"{kind} {selector!r} is async; a {kind.split()[-1]} is synchronous")
    named: Callable[..., Any] = hook
    return named


def _checked(matcher: Callable[[Any, Any], Any], selector: str) -> Matcher:
    def matches(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
        try:
            answer = matcher(stored, replayed)
        # Whatever a user's function raises is a defect of the configuration, and never a match.
        except Exception as error:
            raise MatcherFailed(f"message matcher {selector} raised {type(error).__name__}: {error}") from error
        if type(answer) is not bool:
            raise MatcherFailed(f"message matcher {selector} must return a bool, got {type(answer).__name__}")
        return answer

    return matches
