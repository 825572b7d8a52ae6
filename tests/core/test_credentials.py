"""What may be a key, and what is kept of it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_sessions.core.credentials import digest_of, digest_of_hashed, hashed_key, is_short, opens

KEYS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)


@given(key=KEYS)
def test_a_key_is_hashed_once(key: str) -> None:
    hashed = hashed_key(key)
    assert hashed == f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    assert hashed_key(hashed) == hashed
    assert digest_of_hashed(hashed) == digest_of(key.encode())
    # What is kept opens nothing.
    assert not opens(hashed.encode(), [digest_of_hashed(hashed)])


@given(keys=st.lists(KEYS, max_size=5), credential=st.one_of(KEYS, st.binary().map(lambda raw: raw.decode("latin-1"))))
def test_a_credential_opens_if_it_is_one_of_them(keys: list[str], credential: str) -> None:
    digests = [digest_of(key.encode()) for key in keys]
    assert opens(credential.encode(), digests) == (credential in keys)
    assert all(opens(key.encode(), digests) for key in keys)


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "\ta", "\u00e9", "a\x00", "a\x7f", "\u2028", "\ud800"])
def test_what_no_header_carries_is_no_key(key: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as refused:
        hashed_key(key)
    assert not key.strip() or key not in str(refused.value)


def test_short_ones() -> None:
    assert is_short("x" * 15)
    assert not is_short("x" * 16)
