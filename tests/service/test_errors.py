"""Every error can be told from every other, and has a status."""

from __future__ import annotations

import importlib
import pkgutil
import re
from importlib.util import find_spec

import pytest

import trio_sessions
from trio_sessions.errors import ConfigurationError, SessionError
from trio_sessions.web.errors import STATUS, status_of

# Stable: dashboards and alerts are built on them.
CODES = {
    "AppendRoleNotSupported": ("append_role_not_supported", 400),
    "BadEngineAnswer": ("bad_engine_answer", 502),
    "ContextOverflow": ("context_length_exceeded", 400),
    "EngineUnreachable": ("engine_unreachable", 502),
    "EngineTimedOut": ("engine_timed_out", 502),
    "InvalidRequest": ("invalid_request", 400),
    "MatcherFailed": ("matcher_failed", 500),
    "NestedTooDeeply": ("nested_too_deeply", 400),
    "Overloaded": ("overloaded", 429),
    "TooManySessionTurns": ("too_many_session_turns", 429),
    "TurnQueueFull": ("turn_queue_full", 429),
    "TurnQueueTimeout": ("turn_queue_timeout", 429),
    "TooManyMessages": ("too_many_messages", 400),
    "TooManyValues": ("too_many_values", 400),
    "SessionTokensReached": ("session_tokens_reached", 400),
    "NotProxied": ("not_proxied", 404),
    "PermissionDenied": ("permission_denied", 403),
    "PrefixMismatch": ("prefix_mismatch", 500),
    "PreviousResponseNotFound": ("previous_response_not_found", 400),
    "RenderingChanged": ("rendering_changed", 400),
    "NodeCapReached": ("node_cap_reached", 400),
    "RollbackRefused": ("rollback_refused", 400),
    "SampleAssemblyFailed": ("sample_assembly_failed", 422),
    "ClientDisconnected": ("client_disconnected", 499),
    "ServerDraining": ("server_draining", 503),
    "SessionExpired": ("session_expired", 400),
    "SessionNotFound": ("session_not_found", 404),
    "SessionUnreadable": ("session_unreadable", 500),
    "StoreUnavailable": ("store_unavailable", 503),
    "MemoryExhausted": ("memory_exhausted", 503),
    "TooManySessions": ("too_many_sessions", 429),
    "TokenizationFailed": ("tokenization_failed", 500),
    "TurnCancelled": ("turn_cancelled", 503),
    "TruncatedGeneration": ("truncated_generation", 409),
    "Unauthenticated": ("invalid_api_key", 401),
}


def _kinds(base: type[SessionError] = SessionError) -> list[type[SessionError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]


@pytest.fixture(scope="module")
def kinds() -> list[type[SessionError]]:
    for module in pkgutil.walk_packages(trio_sessions.__path__, "trio_sessions."):
        # The one module that needs what no test extra brings defines no error.
        needs_torch = module.name.endswith(".torch_model") and find_spec("torch") is None
        if not module.name.endswith("__main__") and not needs_torch:
            importlib.import_module(module.name)
    # A client's errors say what a server answered: they have the server's codes.
    ours = [kind for kind in _kinds() if kind.__module__.startswith("trio_sessions.")]
    return [kind for kind in ours if not kind.__module__.startswith("trio_sessions.client.")]


def test_every_error_has_a_code_of_its_own(kinds):
    assert all("code" in vars(kind) for kind in kinds)
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_every_error_that_a_request_can_meet_has_a_status(kinds):
    # A configuration is wrong before there is anybody to answer.
    served = [kind for kind in kinds if not issubclass(kind, ConfigurationError) and kind is not SessionError]
    assert [kind.__name__ for kind in served if not STATUS.keys() & set(kind.__mro__)] == []
    assert {kind.__name__: (kind.code, _status(kind)) for kind in served} == CODES


def _status(kind: type[SessionError]) -> int:
    # The class decides, whatever its constructor wants.
    return status_of(kind.__new__(kind))
