"""What a call to a gateway can end with, apart from its result.

Codes that the gateway has too are the same: what one process raises, the other recognises.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from trio_sessions.errors import SessionError

__all__ = [
    "AssemblyFailed",
    "AuthenticationFailed",
    "ClientError",
    "GatewayUnreachable",
    "PermissionRefused",
    "RequestRefused",
    "ServerError",
    "SessionNotFound",
    "StatusError",
    "TruncatedGeneration",
    "UnusableAnswer",
]

_MOST_SHOWN: Final = 500


class ClientError(SessionError):
    """Base of every error that a client raises on purpose. All of them can be pickled, as Ray does with errors."""

    code: ClassVar[str] = "client_error"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the text alone.
        return _restored, (type(self), self.args, self.__dict__)


class GatewayUnreachable(ClientError):
    """No answer came: the gateway could not be connected to, broke off, or did not answer in time.

    Attributes:
        may_have_arrived: whether the gateway may have acted on the request. False: it surely did not.
    """

    code: ClassVar[str] = "gateway_unreachable"

    def __init__(self, message: str, *, may_have_arrived: bool) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


class UnusableAnswer(ClientError):
    """The answer has a good status and is not what the contract says.

    Attributes:
        body: the answer as it came.
    """

    code: ClassVar[str] = "unusable_answer"

    def __init__(self, message: str, *, body: bytes) -> None:
        super().__init__(message)
        self.body = body


class StatusError(ClientError):
    """The answer has a status that is not the one of success.

    Attributes:
        status: status code.
        text: what the answer says, as text.
        body: the answer as it came.
        retry_after: seconds after which the gateway wants to be asked again, or None.
    """

    code: ClassVar[str] = "status_error"

    def __init__(self, status: int, text: str, *, body: bytes, retry_after: float | None = None) -> None:
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        super().__init__(f"{status}: {shown}" if shown else str(status))
        self.status = status
        self.text = text
        self.body = body
        self.retry_after = retry_after


class SessionNotFound(StatusError):
    """The session does not exist, or is deleted or being deleted."""

    code: ClassVar[str] = "session_not_found"


class RequestRefused(StatusError):
    """The request cannot be served as it is; the session is as it was before."""

    code: ClassVar[str] = "request_refused"


class AuthenticationFailed(RequestRefused):
    """The gateway, or its engine, wants a key, and got none or a wrong one; see the argument ``api_key`` of clients."""

    code: ClassVar[str] = "invalid_api_key"


class PermissionRefused(RequestRefused):
    """The key was a session's token, which opens the model routes of that session and nothing else."""

    code: ClassVar[str] = "permission_denied"


class TruncatedGeneration(RequestRefused):
    """The turn to extend ended at the length limit, and the gateway does not extend such turns."""

    code: ClassVar[str] = "truncated_generation"


class AssemblyFailed(RequestRefused):
    """What was recorded of the session does not make training samples; asking again unchanged cannot help."""

    code: ClassVar[str] = "sample_assembly_failed"


class ServerError(StatusError):
    """The gateway or its engine failed. A turn that ended so is not recorded."""

    code: ClassVar[str] = "server_error"


def _restored(kind: type[ClientError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
