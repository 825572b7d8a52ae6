"""Who may do what: decided from a request's method, path and headers alone, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from trio_sessions.core.credentials import opens
from trio_sessions.engine.base import RawHeaders
from trio_sessions.errors import PermissionDenied, SessionError, Unauthenticated
from trio_sessions.service.keys import ApiKeys, is_token
from trio_sessions.web.paths import routed, session_target

__all__ = ["Access", "Admitted", "Audience", "Judge", "Refused", "access_to"]

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER: Final = b"bearer"
# What no token ever hashes to, so that a session without one takes as long as one with another.
_NO_DIGEST: Final = bytes(32)


class Audience(Enum):
    """For whom a route is."""

    ANYONE = auto()
    """Needs nothing."""

    AGENT = auto()
    """Needs the token of the session that is named, or an API key."""

    OPERATOR = auto()
    """Needs an API key."""


_OPEN_PATHS: Final = frozenset({"/health", "/openapi.json"})
# Below a session, and for operators with every method.
_SAMPLES: Final = "samples"


@dataclass(frozen=True, slots=True)
class Access:
    """What a request asks for.

    Attributes:
        audience: for whom that is.
        session_id: the session that it is in, where a token opens it.
    """

    audience: Audience
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may go on.

    Attributes:
        headers: of the request, without our own credentials.
        judged: whether nobody else has to look at it; otherwise it has a token for a session that is elsewhere.
    """

    headers: RawHeaders
    judged: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """The request ends here; ``error`` says why."""

    error: SessionError


def access_to(method: str, path: str) -> Access:
    """What a request of this method and path asks for.

    Args:
        method: of HTTP.
        path: decoded, as in an ASGI scope. It is read as the routes read it, so that a request is served by the route
            for which it was judged.
    """
    if routed(path) in _OPEN_PATHS and method in _READING:
        return Access(Audience.ANYONE)
    target = session_target(path)
    if target is None:
        return Access(Audience.OPERATOR)
    if target.agent is None and (target.path in ("", _SAMPLES) or target.path.startswith("/")):
        return Access(Audience.OPERATOR)
    return Access(Audience.AGENT, target.session_id)


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides.

    Attributes:
        keys: open everything.
        token_digest: the digest of the token of a session; None where there is none.
        elsewhere: whether a session is another process's, which then judges its tokens.
        vouched: whether a request comes from such a process, which has judged it, but for tokens.
    """

    keys: ApiKeys
    token_digest: Callable[[str], bytes | None]
    elsewhere: Callable[[str], bool] = lambda _: False
    vouched: Callable[[RawHeaders], bool] = lambda _: False

    def decide(self, method: str, path: str, headers: RawHeaders) -> Admitted | Refused:
        """Whether a request may go on.

        Args:
            method: of HTTP.
            path: decoded, as in an ASGI scope.
            headers: as they arrived.
        """
        by_key = False
        tokens: list[bytes] = []
        kept: list[tuple[bytes, bytes]] = []
        for header in headers:
            ours = False
            for credential in _credentials(header):
                if self.keys.open(credential):
                    ours = by_key = True
                elif is_token(credential):
                    ours = True
                    tokens.append(credential)
            if not ours:
                kept.append(header)
        access = access_to(method, path)
        if by_key or access.audience is Audience.ANYONE:
            return Admitted(kept)
        if tokens:
            return self._by_token(access, tokens, headers, kept)
        return Admitted(kept) if self.vouched(headers) else Refused(Unauthenticated())

    def _by_token(
        self, access: Access, tokens: Sequence[bytes], headers: RawHeaders, kept: RawHeaders
    ) -> Admitted | Refused:
        if access.audience is not Audience.AGENT:
            return Refused(PermissionDenied())
        if self.elsewhere(access.session_id):
            # With the token: who has the session wants to see it.
            return Admitted(headers, judged=False)
        digest = self.token_digest(access.session_id) or _NO_DIGEST
        if any(opens(token, [digest]) for token in tokens):
            return Admitted(kept)
        return Refused(PermissionDenied())


def _credentials(header: tuple[bytes, bytes]) -> Iterator[bytes]:
    """What a header presents: as an API key, or as a bearer."""
    name, value = header[0].lower(), header[1].strip()
    if name == b"x-api-key":
        yield value
    elif name == b"authorization":
        scheme, _, credential = value.partition(b" ")
        if scheme.lower() == _BEARER:
            yield credential.strip()
