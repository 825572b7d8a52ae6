from __future__ import annotations

import json
from functools import cache
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from tests.render.conversations import PATIENT, ids_of, texts
from tests.render.families import CHATML_SPECIALS, renderer_of, tokenizer_of
from tests.render.vocabularies import byte_level
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


@cache
def codec_of(name):
    return TextCodec(tokenizer_of(name))


@pytest.mark.parametrize("name", ["chatml", "thinks", "llama", "glm", "mistral", "qwen3"])
@settings(PATIENT, max_examples=30)
@given(text=texts, place=st.integers(0, 30))
def test_marks_change_no_ids_of_a_text_without_control_tokens(name, text, place):
    codec = renderer_of("qwen3")._codec if name == "qwen3" else codec_of(name)
    whole = f"a{text}"
    cut = min(place, len(text)) + 1
    marked = f"{whole[:cut]}\ufdd0{whole[cut:]}"
    # A mark in the middle of a control token is what marks are for.
    if all(marked.count(token) == whole.count(token) for token in codec.added_text.values()):
        assert codec.encode_marked(marked, "\ufdd0") == codec.encode(whole)


@pytest.mark.parametrize("name", ["chatml", "thinks", "llama", "glm", "mistral", "qwen3"])
def test_every_control_token_can_be_spelled(name):
    codec = renderer_of("qwen3")._codec if name == "qwen3" else codec_of(name)
    end = max(codec.eos_ids)
    for token in codec.added_text.values():
        # Such a token is not escaped.
        if len(token) > 1 and token.strip():
            text = f"{codec.added_text[end]}a{token[0]}\ufdd0{token[1:]}b{token[0]}\ufdd0{token[1:]}"
            ids = codec.encode_marked(text, "\ufdd0")
            assert [i for i in ids if i in codec.added_text] == [end]
            assert codec.decode_behind(ids) == f"{codec.added_text[end]}a{token}b{token}"


def words(*added, normalizer=None, ignore_merges=False):
    """A vocabulary of letters that also holds its control tokens as words."""
    letters = [*"abxS<>/s[]\ufdd0", "<s", "</", "s>", "</s>", "b</s>", "[a]"]
    merges = [("<", "s"), ("<", "/"), ("s", ">"), ("</", "s>"), ("b", "</s>")]
    inner = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(letters)}, merges, ignore_merges=ignore_merges, unk_token="a")
    )
    inner.normalizer = normalizer
    inner.decoder = decoders.Fuse()
    inner.add_tokens(list(added))
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=inner))


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("token", ["</s>", "[a]"])
def test_a_control_token_that_the_vocabulary_holds_as_a_word_is_spelled(token, ignore_merges):
    codec = words(AddedToken("</s>", special=True), AddedToken("[a]", special=True), ignore_merges=ignore_merges)
    ids = codec.encode_marked(f"{token}{token[0]}\ufdd0{token[1:]}{token}", "\ufdd0")
    (own,) = codec.encode(token)
    assert [i for i in ids if i in codec.added_text] == [own, own]
    assert (ids[0], ids[-1]) == (own, own)
    assert codec.decode(ids) == token * 3


def test_ids_behind_a_hole_in_the_vocabulary_stay_those_of_the_tokenizer():
    tokenizer = byte_level(CHATML_SPECIALS, eos="<|im_end|>").backend_tokenizer
    state = json.loads(tokenizer.to_str())
    # The first of the added tokens is not in the vocabulary of the model, and stands behind a hole.
    del state["model"]["vocab"]["<|im_start|>"]
    state["added_tokens"][0]["id"] = 5000
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state))))
    ids = codec.encode_marked("<|im_start|>a<\ufdd0|im_start|>", "\ufdd0")
    assert ids[0] == codec.encode("<|im_start|>")[0]
    assert codec.decode(ids) == "<|im_start|>a<|im_start|>"
    assert ids.count(ids[0]) == 1


def test_a_token_that_is_looked_for_in_normalised_text_falls_back_to_pieces():
    codec = words(AddedToken("</S>", normalized=True), normalizer=normalizers.Lowercase())
    ids = codec.encode_marked("<\ufdd0/s>a", "\ufdd0")
    assert codec.decode(ids) == "</s>a"
    assert not set(ids) & codec.added_text.keys()


def test_a_tokenizer_in_python_gets_pieces():
    codec = TextCodec(_Python())
    assert codec.encode_marked("<s><\ufdd0s>", "\ufdd0") == [1, *map(ord, "<s>")]


def test_what_cannot_be_spelled_is_refused_rather_than_changed():
    # There is no letter é in the vocabulary.
    codec = words(AddedToken("<é>", special=True))
    assert codec.encode("<é>")[0] in codec.added_text
    with pytest.raises(InvalidRequest, match="--special-tokens-in-content"):
        codec.encode_marked("a<\ufdd1é>", "\ufdd1")


@pytest.mark.parametrize(("name", "scheme"), [("mistral", "first"), ("chatml", None)])
def test_a_text_is_encoded_as_it_is_in_its_place(name, scheme):
    codec = codec_of(name)
    end = max(codec.eos_ids)
    before = codec.added_text[end]
    for text in ("\n", " hello", "hello", "</s>", ""):
        assert codec.encode(before) + codec.encode_behind(end, text) == codec.encode(before + text)
        whole = codec.encode(f"hello q{text}")
        within = codec.encode_within(text)
        assert whole[len(whole) - len(within) :] == within
    assert (codec.encode("hello") == codec.encode_behind(end, "hello")) is (scheme is None)
    # An id that is no added token has no place of its own.
    assert codec.encode_behind(-1, "hello") == codec.encode("hello")


@pytest.mark.parametrize("name", ["mistral", "llama", "glm"])
def test_a_space_behind_a_control_token_is_decoded(name):
    codec = codec_of(name)
    end = max(codec.eos_ids)
    assert codec.decode_behind(codec.encode_behind(end, " hello")) == " hello"
    assert codec.decode_behind(codec.encode_behind(end, "hello")) == "hello"
    assert codec.decode_behind([]) == ""
