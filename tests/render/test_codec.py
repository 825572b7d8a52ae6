from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest

from tests.render.conversations import ids_of
from tests.render.families import renderer_of
from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.render.codec import TextCodec


class _Python:
    """A tokenizer without a Rust backend: code points are ids."""

    is_fast = False
    all_special_ids = (1,)
    eos_token_id = None
    added_tokens_decoder = MappingProxyType(
        {
            1: SimpleNamespace(content="<s>", special=True),
            2: SimpleNamespace(content="</t>", special=False),
            3: SimpleNamespace(content="\n\n", special=False),
        }
    )

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        if "?" in text:
            raise ValueError("no question marks")
        names = {token.content: i for i, token in self.added_tokens_decoder.items()}
        ids = []
        while text:
            found = next((name for name in names if text.startswith(name)), text[0])
            ids.append(names.get(found) or ord(found))
            text = text[len(found) :]
        return ids

    def decode(self, ids, **_options):
        if 0 in ids:
            raise IndexError("unknown id")
        return "".join(chr(i) for i in ids)


def test_a_tokenizer_in_python():
    codec = TextCodec(_Python(), eos_ids=[7])
    assert codec.encode("ab") == [97, 98]
    assert codec.decode([97, 98]) == "ab"
    assert codec.eos_ids == {7}
    assert codec.special_ids == {1}


def test_the_first_control_token_is_never_white_space():
    codec = TextCodec(_Python())
    assert codec.first_added("a\n\nb</t><s>") == (4, 2)
    assert codec.first_added("a\n\nb") is None


def test_what_the_tokenizer_refuses():
    codec = TextCodec(_Python())
    with pytest.raises(TokenizationFailed, match="no question marks"):
        codec.encode("?")
    with pytest.raises(TokenizationFailed, match="unknown id"):
        codec.decode([0])
    with pytest.raises(InvalidRequest, match=r"U\+DC00"):
        codec.encode("a\udc00")


def test_an_id_that_no_tokenizer_has():
    with pytest.raises(TokenizationFailed):
        renderer_of("qwen3").decode(ids_of(-5))
