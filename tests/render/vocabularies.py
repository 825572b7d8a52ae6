"""Small tokenizers, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_CORPUS = [
    "user assistant system tool developer hello world\n",
    "The quick brown fox jumps over the lazy dog. " * 3,
    '{"name": "lookup", "arguments": {"query": "hello"}}\n',
    "lookup(query) returned 42; ordinary words, hello hello world world\n",
]


@cache
def byte_level(specials: Sequence[str], *, eos: str, bos: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE: every text has ids, and decoding gives the text back."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(specials),
        show_progress=False,
    )
    inner.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, bos_token=bos)


@cache
def metaspace(specials: Sequence[str], *, eos: str, bos: str) -> PreTrainedTokenizerFast:
    """The shape of a SentencePiece model: a word-start marker before the first word, BOS added when encoding."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([])
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>", bos, eos, *(f"<0x{byte:02X}>" for byte in range(256)), *specials],
        show_progress=False,
    )
    inner.train_from_iterator(_CORPUS, trainer)
    # The trainer takes bytes as control tokens, which they are not.
    state = json.loads(inner.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    inner = Tokenizer.from_str(json.dumps(state))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (bos, eos, *specials)])
    inner.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, inner.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, bos_token=bos, unk_token="<unk>")
