"""Text to ids and back: the one place that calls a tokenizer's encoder."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from trio_sessions.errors import InvalidRequest, TokenizationFailed

__all__ = ["TextCodec"]


class TextCodec:
    """Encodes rendered text exactly as it stands: no special token is added, nothing is truncated or padded.

    Safe to use from several threads.

    Attributes:
        added_text: text of every added token by id, flagged special or not: the encoder never merges across one.
        special_ids: ids of the tokens that are flagged special.
        eos_ids: ids that the tokenizer or the model's generation config names as ends of generation.
    """

    def __init__(self, tokenizer: Any, *, eos_ids: Iterable[int] = ()) -> None:
        """Take over ``tokenizer``: its truncation and padding are switched off.

        Args:
            tokenizer: of ``transformers``, fast or not.
            eos_ids: further ends of generation, from the model's generation config.
        """
        self._tokenizer = tokenizer
        self._backend: Any = tokenizer.backend_tokenizer if getattr(tokenizer, "is_fast", False) else None
        # Tokenizers in Python make no promise about threads.
        self._lock = threading.Lock()
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        self.added_text: Mapping[int, str] = {index: str(token.content) for index, token in added.items()}
        self.special_ids = frozenset(
            {index for index, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        )
        own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.eos_ids = frozenset((*own, *eos_ids))

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``.

        Raises:
            InvalidRequest: the text holds half of a surrogate pair, which no encoding can express.
            TokenizationFailed: the tokenizer refused the text.
        """
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InvalidRequest(
                    f"the text holds U+{ord(text[error.start]):04X}, half of a surrogate pair, which is not a character"
                ) from error
        try:
            if self._backend is None:
                with self._lock:
                    return list(self._tokenizer.encode(text, add_special_tokens=False))
            # The batch call releases the GIL and computes no offsets; encode() does neither.
            return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TokenizationFailed(f"the tokenizer refused the rendered text: {error}") from error

    def encode_cut(self, text: str, mark: str) -> list[int]:
        """Ids of ``text`` without its marks, where no token spans a mark: each piece is encoded by itself.

        Raises:
            InvalidRequest: the tokenizer writes pieces in another way than the whole (a word-start mark at each, say),
                so that the text would change; or as ``encode``.
            TokenizationFailed: as ``encode``.
        """
        ids = [token_id for piece in text.split(mark) for token_id in self.encode(piece)]
        if self.decode(ids) != self.decode(self.encode(text.replace(mark, ""))):
            raise InvalidRequest(
                "the messages spell a control token, which this tokenizer cannot write as ordinary text; "
                "serve with --special-tokens-in-content allow or reject"
            )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``, special tokens included, nothing cleaned up.

        Raises:
            TokenizationFailed: an id is not in the vocabulary.
        """
        try:
            with nullcontext() if self._backend is not None else self._lock:
                text = self._tokenizer.decode(
                    list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            return str(text)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise TokenizationFailed(f"the tokenizer cannot decode the ids: {error}") from error

    def split(self, token_id: int) -> list[tuple[int, int]]:
        """Pairs of ids that together spell what ``token_id`` spells, as a sampler may; none for an added token."""
        if token_id in self.added_text:
            return []
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        # Tokenizers in Python may keep their pieces as bytes.
        if not isinstance(token, str):
            return []
        pairs: list[tuple[int, int]] = []
        for cut in range(1, len(token)):
            halves = [token[:cut], token[cut:]]
            left, right = self._tokenizer.convert_tokens_to_ids(halves)
            # What is not in the vocabulary is answered with the unknown token.
            if None not in (left, right) and self._tokenizer.convert_ids_to_tokens([left, right]) == halves:
                pairs.append((int(left), int(right)))
        return pairs

    def first_added(self, text: str) -> tuple[int, int] | None:
        """The first added token in ``text`` that is more than white space: (position in the text, id), or None."""
        for token_id in self.encode(text):
            token = self.added_text.get(token_id, "")
            if token.strip():
                position = text.find(token)
                return None if position < 0 else (position, token_id)
        return None
