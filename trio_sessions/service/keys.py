"""API keys, which open everything, and the tokens of sessions, which open one session's model routes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from trio_sessions.config import Settings
from trio_sessions.core.credentials import digest_of, digest_of_hashed, hashed_key, is_short, opens
from trio_sessions.errors import ConfigurationError

__all__ = ["ApiKeys", "DrawnToken", "api_keys_of", "draw_token", "is_token", "with_keys_of_file"]

_TOKEN: Final = re.compile(rb"ts-[A-Za-z0-9_-]{43}")
_TOKEN_BYTES: Final = 32
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.service")


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A session's token.

    Attributes:
        text: what the session's creator is told, once.
        digest: what is kept.
    """

    text: str = field(repr=False)
    digest: bytes


def draw_token() -> DrawnToken:
    """A new token, of 256 random bits."""
    text = f"ts-{secrets.token_urlsafe(_TOKEN_BYTES)}"
    return DrawnToken(text, digest_of(text.encode()))


def is_token(credential: bytes) -> bool:
    """Whether a credential has the form of a session's token."""
    return _TOKEN.fullmatch(credential) is not None


class ApiKeys:
    """The keys of a gateway; it is false where there are none, and then everything is open.

    Args:
        digests: of the keys.
    """

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def open(self, credential: bytes) -> bool:
        """Whether it is one of the keys."""
        return opens(credential, self._digests)


def api_keys_of(settings: Settings) -> ApiKeys:
    """The keys that ``settings`` name.

    Raises:
        ConfigurationError: as ``with_keys_of_file``.
    """
    return ApiKeys(map(digest_of_hashed, with_keys_of_file(settings).api_key))


def with_keys_of_file(settings: Settings) -> Settings:
    """``settings`` with the keys of their file among the others, and no file any more.

    Raises:
        ConfigurationError: the file cannot be read, has no keys, or a line that is none; the text shows no key.
    """
    path = settings.api_key_file
    if path is None:
        return settings
    lines = [line.strip() for line in _text(path).splitlines()]
    keys = [_key(line, path, number) for number, line in enumerate(lines, 1) if line]
    if not keys:
        raise ConfigurationError(f"--api-key-file: {path} has no keys; it takes one a line")
    if any(is_short(line) for line in lines if line):
        _log.warning("an API key is so short that it might be guessed", file=str(path))
    return replace(settings, api_key=(*settings.api_key, *keys), api_key_file=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"--api-key-file: cannot read {path}: {reason}") from error


def _key(line: str, path: Path, number: int) -> str:
    try:
        return hashed_key(line)
    except ValueError as error:
        raise ConfigurationError(f"--api-key-file: the key in line {number} of {path} {error}") from None
