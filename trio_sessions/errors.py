"""The domain errors: one small tree, each class with a stable ``code``.

There is no HTTP in here. ``trio_sessions.web.errors`` maps a class to a status; the text of an error is what the
client reads, so it says what was wrong and, where there is a choice, what to do.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AddressInUse",
    "AppendRoleNotSupported",
    "BadEngineAnswer",
    "ClientDisconnected",
    "ConfigurationError",
    "ContextOverflow",
    "EngineTimedOut",
    "EngineUnreachable",
    "InvalidRequest",
    "LibraryMissing",
    "MatcherFailed",
    "MemoryExhausted",
    "NestedTooDeeply",
    "NodeCapReached",
    "NotProxied",
    "Overloaded",
    "PermissionDenied",
    "PrefixMismatch",
    "PreviousResponseNotFound",
    "RenderingChanged",
    "RollbackRefused",
    "SampleAssemblyFailed",
    "ServerDraining",
    "SessionError",
    "SessionExpired",
    "SessionNotFound",
    "SessionTokensReached",
    "SessionUnreadable",
    "StoreUnavailable",
    "TokenizationFailed",
    "TooManyMessages",
    "TooManySessionTurns",
    "TooManySessions",
    "TooManyValues",
    "TruncatedGeneration",
    "TurnCancelled",
    "TurnQueueFull",
    "TurnQueueTimeout",
    "Unauthenticated",
]


class SessionError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        code: stable identifier for logs and metrics; it never changes with the wording.
    """

    code: ClassVar[str] = "session_error"


class ConfigurationError(SessionError):
    """A setting is wrong, or the parts it names do not fit together; found before serving starts."""

    code: ClassVar[str] = "configuration_error"


class AddressInUse(ConfigurationError):
    """The address to listen on cannot be bound; it may be free later."""

    code: ClassVar[str] = "address_in_use"


class LibraryMissing(ConfigurationError):
    """A library that comes with an extra is needed and not installed; the text says how to get it."""

    code: ClassVar[str] = "library_missing"


class NotProxied(SessionError):
    """The path is not one that is passed on to the engine."""

    code: ClassVar[str] = "not_proxied"


class SessionNotFound(SessionError):
    """The session does not exist, or is deleted or being deleted."""

    code: ClassVar[str] = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session not found: session_id={session_id}")
        self.session_id = session_id


class SessionUnreadable(SessionError):
    """What was written down of the session is damaged; it cannot be served any more."""

    code: ClassVar[str] = "session_unreadable"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session lost: session_id={session_id}; what the journal has of it is damaged")


class StoreUnavailable(SessionError):
    """The journal cannot be written or read now; the session is what it was."""

    code: ClassVar[str] = "store_unavailable"


class Unauthenticated(SessionError):
    """The request needs a key, and has none or a wrong one."""

    # OpenAI's word for it, which its clients look for.
    code: ClassVar[str] = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "no valid API key: send the header 'authorization: Bearer KEY' or 'x-api-key: KEY' with a key of this "
            "gateway (--api-key), or, for the model routes of a session, with the token that POST /sessions gave"
        )


class PermissionDenied(SessionError):
    """The request has the token of a session, which does not open what it asks for.

    The same for a session that does not exist as for another one that does.
    """

    code: ClassVar[str] = "permission_denied"

    def __init__(self) -> None:
        super().__init__(
            "this session token does not open that: a token opens the model routes of its own session, such as "
            "/sessions/{id}/v1/chat/completions, as long as the session exists; everything else needs an API key"
        )


class InvalidRequest(SessionError):
    """The client's request cannot be served as it is; sending it again unchanged cannot help."""

    code: ClassVar[str] = "invalid_request"


class PreviousResponseNotFound(InvalidRequest):
    """The request extends a response that the session does not have, or no longer has."""

    code: ClassVar[str] = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id}' not found. The session does not have it, or no longer: send "
            "the whole conversation as input"
        )


class NestedTooDeeply(InvalidRequest):
    """The request's JSON is nested deeper than anything that is served."""

    code: ClassVar[str] = "nested_too_deeply"


class TooManyValues(InvalidRequest):
    """The request's JSON has more values than the launch allows."""

    code: ClassVar[str] = "too_many_values"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the request body has more than {most} JSON values (--max-json-values): send what is long as text"
        )


class TooManyMessages(InvalidRequest):
    """The request has more messages than the launch allows."""

    code: ClassVar[str] = "too_many_messages"

    def __init__(self, messages: int, most: int) -> None:
        super().__init__(
            f"the request has {messages} messages, {most} are allowed (--max-messages): shorten the conversation"
        )


class SessionTokensReached(InvalidRequest):
    """The session stores as many token ids as it may, or would with this turn's prompt."""

    code: ClassVar[str] = "session_tokens_reached"

    def __init__(self, *, stored: int, added: int, most: int) -> None:
        super().__init__(
            f"the session stores {stored} tokens and the prompt adds {added}, {most} are allowed "
            "(--max-session-tokens): start another session"
        )


class RollbackRefused(InvalidRequest):
    """The request diverges from the stored history further back than may be discarded."""

    code: ClassVar[str] = "rollback_refused"


class AppendRoleNotSupported(InvalidRequest):
    """An appended message has a role that the chat template does not render after an assistant."""

    code: ClassVar[str] = "append_role_not_supported"


class RenderingChanged(InvalidRequest):
    """The request has other tools or template kwargs than the turn it extends, and the launch forbids that."""

    code: ClassVar[str] = "rendering_changed"


class TruncatedGeneration(InvalidRequest):
    """The turn to extend ended at the length limit, and the launch forbids extending it."""

    code: ClassVar[str] = "truncated_generation"


class ContextOverflow(InvalidRequest):
    """The prompt leaves no room for an answer; a shorter conversation may be sent."""

    code: ClassVar[str] = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, most: int) -> None:
        # Agents look for one phrase or the other before they shorten their history.
        super().__init__(
            f"prompt is too long: {prompt_tokens} tokens > {most} maximum; this session's maximum context length is "
            f"{most} tokens (--max-seq-len), answer included"
        )
        self.prompt_tokens = prompt_tokens
        self.most = most


class SessionExpired(InvalidRequest):
    """The session's deadline has passed: it takes no more turns. What it has can still be read.

    Attributes:
        running: whether it passed while the turn ran.
    """

    code: ClassVar[str] = "session_expired"

    def __init__(self, session_id: str, *, running: bool) -> None:
        super().__init__(
            f"session deadline passed: session_id={session_id}; it takes no more turns, and what it has can still be "
            "read (see --session-deadline)"
        )
        self.running = running


class MatcherFailed(SessionError):
    """The configured message matcher raised, or answered something that is not a bool."""

    code: ClassVar[str] = "matcher_failed"


class TokenizationFailed(SessionError):
    """The prompt could not be turned into token ids exactly."""

    code: ClassVar[str] = "tokenization_failed"


class NodeCapReached(SessionError):
    """A tree session has as many nodes as it may have."""

    code: ClassVar[str] = "node_cap_reached"


class PrefixMismatch(TokenizationFailed):
    """The stored token ids are not a prefix of the prompt and completion that should extend them.

    Attributes:
        first_mismatch: index of the first differing id.
        checked: how many leading ids had to agree.
    """

    code: ClassVar[str] = "prefix_mismatch"

    def __init__(self, message: str, *, first_mismatch: int, checked: int) -> None:
        super().__init__(message)
        self.first_mismatch = first_mismatch
        self.checked = checked


class BadEngineAnswer(SessionError):
    """The engine answered 200 with something that cannot be recorded exactly."""

    code: ClassVar[str] = "bad_engine_answer"


class EngineUnreachable(SessionError):
    """The engine could not be reached, did not answer in time, or broke off its answer.

    Attributes:
        kind: class of the transport's error. Logs show it rather than the text, which may quote what came back.
    """

    code: ClassVar[str] = "engine_unreachable"

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"backend transport error: {kind}: {text}")
        self.kind = kind


class EngineTimedOut(EngineUnreachable):
    """The engine did not answer within the time that it has."""

    code: ClassVar[str] = "engine_timed_out"

    def __init__(self, seconds: float) -> None:
        super().__init__("ReadTimeout", f"the engine did not answer within {seconds:g} s")


class SampleAssemblyFailed(SessionError):
    """What was recorded of a session cannot be made into training samples; asking again unchanged cannot help."""

    code: ClassVar[str] = "sample_assembly_failed"


class ClientDisconnected(SessionError):
    """The client went away before its request was answered; nobody reads this."""

    code: ClassVar[str] = "client_disconnected"


class TurnCancelled(SessionError):
    """The turn that a retry joined was cancelled; sending the request again begins another."""

    code: ClassVar[str] = "turn_cancelled"


class ServerDraining(SessionError):
    """The server is shutting down and takes no more turns."""

    code: ClassVar[str] = "server_draining"


class Overloaded(SessionError):
    """There is no room for the request now, and may be later.

    Attributes:
        retry_after: after how many seconds to try again, at least 1.
    """

    code: ClassVar[str] = "overloaded"

    def __init__(self, text: str, *, retry_after: int) -> None:
        # Some agents read the delay in the text, in these words.
        super().__init__(f"{text}; try again in {retry_after}s")
        self.retry_after = retry_after


class TooManySessions(Overloaded):
    """There are as many sessions as there may be; deleting one makes room."""

    code: ClassVar[str] = "too_many_sessions"


class MemoryExhausted(Overloaded):
    """The sessions that are in use take all the memory they may have."""

    code: ClassVar[str] = "memory_exhausted"


class TooManySessionTurns(Overloaded):
    """The session runs as many turns as it may."""

    code: ClassVar[str] = "too_many_session_turns"


class TurnQueueFull(Overloaded):
    """As many turns run as may, and as many wait for their place as may."""

    code: ClassVar[str] = "turn_queue_full"


class TurnQueueTimeout(Overloaded):
    """The turn waited for its place as long as it may."""

    code: ClassVar[str] = "turn_queue_timeout"
