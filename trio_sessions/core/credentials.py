"""Keys and tokens: what may be one, and the digests that are all that is kept of them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["digest_of", "digest_of_hashed", "hashed_key", "is_short", "opens"]

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_PREFIX: Final = "sha256:"
_HASHED: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{64}}")
_SHORT: Final = 16


def hashed_key(key: str) -> str:
    """``sha256:`` and the hex digest of an API key; one that is hashed already stays as it is.

    Raises:
        ValueError: it is empty, or has white space or anything outside ASCII, which no header carries unchanged. The
            text, which does not show the key, ends the sentence "an API key ...".
    """
    if _HASHED.fullmatch(key):
        return key
    if not key:
        raise ValueError("must not be empty")
    if not _KEY.fullmatch(key):
        raise ValueError("must be ASCII without white space")
    return f"{_PREFIX}{digest_of(key.encode()).hex()}"


def is_short(key: str) -> bool:
    """Whether an API key has so few characters that it might be guessed."""
    return len(key) < _SHORT


def digest_of(credential: bytes) -> bytes:
    """What is kept of a credential: 32 bytes, from which one with many random bits is not found again."""
    return hashlib.sha256(credential).digest()


def digest_of_hashed(hashed: str) -> bytes:
    """The digest in what ``hashed_key`` returns."""
    return bytes.fromhex(hashed.removeprefix(_PREFIX))


def opens(credential: bytes, digests: Iterable[bytes]) -> bool:
    """Whether a credential is one of those kept; how long that takes does not say how near it comes."""
    presented = digest_of(credential)
    found = False
    for digest in digests:
        # All of them, whichever it is.
        found |= hmac.compare_digest(presented, digest)
    return found
