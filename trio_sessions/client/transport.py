"""How both clients use httpx."""

from __future__ import annotations

import math
import os
import re
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from trio_sessions.client.wire import Answer, Call
from trio_sessions.errors import ConfigurationError

__all__ = [
    "DEFAULT_BASE_URL",
    "DEFAULT_TIMEOUT",
    "LAST_WORD_SECONDS",
    "Place",
    "answer_of",
    "check_api_key",
    "check_base_url",
    "check_timeout",
    "client_options",
    "request_options",
]

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8700"
DEFAULT_TIMEOUT: Final = 660.0
"""Longer than a gateway waits for its engine by default, so that the gateway's own error comes first."""

_API_KEY_VARIABLE: Final = "TRIO_SESSIONS_API_KEY"

LAST_WORD_SECONDS: Final = 5.0
"""How long a block that failed or was cancelled may take to delete its session."""

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_CONNECT_SECONDS: Final = 10.0
_QUICK_SECONDS: Final = 30.0
# Below the five seconds of most servers and routers: a connection that is about to be closed is not used.
_KEEP_ALIVE_SECONDS: Final = 4.0


class Place:
    """Where requests about a session go: to the worker that has it, or to the gateway if that cannot be reached.

    Args:
        gateway: its URL.
        worker: URL of the worker as the gateway told it, which need not be one that this machine can connect to.
    """

    def __init__(self, gateway: str, worker: str | None = None) -> None:
        self._gateway = gateway
        self._worker = None if worker is None else _usable(worker, gateway)

    @property
    def url(self) -> str:
        """The URL that the path of a request is added to."""
        return self._worker or self._gateway

    def failed(self, error: httpx.HTTPError) -> None:
        """Give up the worker if nobody answers there; the gateway passes everything on to it."""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            self._worker = None


def _usable(worker: str, gateway: str) -> str | None:
    try:
        url = check_base_url(worker)
    except ConfigurationError:
        return None
    # What was to be encrypted is not sent in the clear because of an answer.
    return url if httpx.URL(url).scheme == httpx.URL(gateway).scheme else None


def check_base_url(url: str) -> str:
    """The URL of a gateway, without a slash at its end.

    Raises:
        ConfigurationError: it is not an http or https URL of a host.
    """
    try:
        parts = httpx.URL(url)
        usable = parts.scheme in ("http", "https") and bool(parts.host) and not parts.query and not parts.fragment
    except (httpx.InvalidURL, TypeError):
        usable = False
    if not usable:
        raise ConfigurationError(f"the gateway must be an http or https URL such as {DEFAULT_BASE_URL}, got {url!r}")
    return url.rstrip("/")


def check_timeout(seconds: float) -> float:
    """A timeout that can be waited for.

    Raises:
        ConfigurationError: it is not positive or not finite.
    """
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"the timeout must be a positive number of seconds, got {seconds!r}")
    return seconds


def check_api_key(key: str | None) -> str | None:
    """A key that a header carries: the one that is given, or the first in the environment, or None for none.

    Raises:
        ConfigurationError: it is empty, or has white space or anything outside ASCII.
    """
    key = next(iter(os.environ.get(_API_KEY_VARIABLE, "").split()), None) if key is None else key
    if key is not None and not _KEY.fullmatch(key):
        raise ConfigurationError("an API key is not empty, and ASCII without white space")
    return key


def client_options(base_url: str, headers: Mapping[str, str] | None, api_key: str | None) -> dict[str, Any]:
    """Arguments for ``httpx.Client`` and ``httpx.AsyncClient``.

    Raises:
        ConfigurationError: the key is none that a header carries.
    """
    key = check_api_key(api_key)
    ours = {"accept-encoding": "identity", **({} if key is None else {"authorization": f"Bearer {key}"})}
    return {
        # What the caller says of a header goes first.
        "headers": {**ours, **{name.lower(): value for name, value in (headers or {}).items()}},
        # Proxies from the environment are for the outside world, not for a gateway next door.
        "trust_env": False,
        # Reading the certificate store is slow, and useless without TLS.
        "verify": ssl.create_default_context() if base_url.startswith("https:") else False,
        "follow_redirects": False,
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        # There are as many connections as calls: a limit here would make turns wait for each other.
        "limits": httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_SECONDS),
    }


def request_options(call: Call[Any], timeout: float, place: Place) -> dict[str, Any]:
    """Arguments for ``request`` of either client."""
    seconds = min(timeout, _QUICK_SECONDS) if call.quick else timeout
    return {
        "method": call.method,
        "url": f"{place.url}{call.path}",
        "content": call.body,
        "headers": {} if call.body is None else {"content-type": "application/json"},
        "timeout": httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
    }


def answer_of(response: httpx.Response) -> Answer:
    """A response whose body was read."""
    return Answer(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )
