"""Text to ids and back: the one place that calls a tokenizer's encoder."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.errors import InvalidRequest, TokenizationFailed

__all__ = ["TextCodec"]

# A letter that merges with nothing a template writes behind it.
_ORDINARY: Final = "q"


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
        self._unmarked: dict[str, _UnmarkedEncoder | None] = {}
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

    def encode_behind(self, token_id: int, text: str) -> list[int]:
        """Ids of ``text`` where the added token ``token_id`` stands right before it.

        A tokenizer that marks the starts of words encodes a text in another way at the start of everything.
        """
        before = self.added_text.get(token_id, "")
        ids = self.encode(before + text)
        return ids[1:] if before and ids[:1] == [token_id] else self.encode(text)

    def encode_within(self, text: str) -> list[int]:
        """Ids of ``text`` where ordinary text stands right before it."""
        before = self.encode(_ORDINARY)
        ids = self.encode(_ORDINARY + text)
        return ids[len(before) :] if ids[: len(before)] == before else self.encode(text)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Ids of ``text`` without its marks, where no added token is found across a mark.

        The marks disappear between the search for added tokens and everything else that the encoder does, so what is
        encoded is the text as it stands. A tokenizer for which that cannot be arranged (one in Python, say) gets the
        pieces between the marks one by one. Either way it is checked that only the added tokens outside of marks come
        out, and that the text stays what it was.

        Args:
            text: with marks in it.
            mark: one noncharacter.

        Raises:
            InvalidRequest: it does not (such a tokenizer marks the start of every piece as that of a word, or its
                vocabulary cannot spell the token); or as ``encode``.
            TokenizationFailed: as ``encode``.
        """
        # With its marks the text shows which added tokens are meant, and what the rest of it says.
        measure = self.encode(text)
        encoder = self._unmarked_encoder(mark)
        if encoder is None:
            ids = [token_id for piece in text.split(mark) for token_id in self.encode(piece)]
        else:
            ids = encoder.encode(text)
        if self._added(ids) != self._added(measure) or self.decode(ids) != self.decode(measure).replace(mark, ""):
            raise InvalidRequest(
                "the messages spell a control token, which this tokenizer cannot write as ordinary text; "
                "serve with --special-tokens-in-content allow or reject"
            )
        return ids

    def _added(self, ids: Iterable[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self.added_text]

    def _unmarked_encoder(self, mark: str) -> _UnmarkedEncoder | None:
        if self._backend is None:
            return None
        # Two threads may make one each, with the same result.
        if mark not in self._unmarked:
            self._unmarked[mark] = _UnmarkedEncoder.make(self._backend, self._tokenizer.added_tokens_decoder, mark)
        return self._unmarked[mark]

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

    def decode_behind(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` where a control token stands right before them.

        A tokenizer that marks the starts of words drops the space of the first one at the start of everything.

        Raises:
            TokenizationFailed: an id is not in the vocabulary.
        """
        before = min(self.special_ids & self.added_text.keys(), default=None)
        # Tokenizers in Python may put a space behind a control token.
        if before is None or self._backend is None:
            return self.decode(token_ids)
        return self.decode([before, *token_ids]).removeprefix(self.added_text[before])

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


@dataclass(frozen=True, slots=True)
class _UnmarkedEncoder:
    """A pipeline that looks for added tokens first, drops the marks then, and goes on as the tokenizer's own does.

    Attributes:
        pipeline: shares the model with the tokenizer, so it costs next to nothing.
        mark: what is dropped.
        own_ids: ids of added tokens by the ids that they have in the pipeline.
    """

    pipeline: Any
    mark: str
    own_ids: Mapping[int, int]

    @classmethod
    def make(cls, backend: Any, added: Mapping[int, Any], mark: str) -> _UnmarkedEncoder | None:
        """The pipeline for ``backend``; None where it would not find the same added tokens in the same texts."""
        # Imported here because whatever imports this module should not have to wait for it.
        from tokenizers import AddedToken, Tokenizer, normalizers

        normalizer = backend.normalizer
        for token in added.values():
            # Such a token is looked for behind the normaliser, which is too late here, as something else.
            if token.normalized and normalizer and normalizer.normalize_str(token.content) != token.content:
                return None
        pipeline = Tokenizer(backend.model)
        drop = normalizers.Replace(mark, "")
        pipeline.normalizer = normalizers.Sequence([drop, normalizer] if normalizer else [drop])
        if backend.pre_tokenizer is not None:
            pipeline.pre_tokenizer = backend.pre_tokenizer
        pipeline.add_tokens(
            [
                AddedToken(
                    token.content,
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=False,
                    special=token.special,
                )
                for _, token in sorted(added.items())
            ]
        )
        own_ids: dict[int, int] = {}
        for own, token in added.items():
            found = pipeline.token_to_id(token.content)
            # In a vocabulary with holes a new id may be another token's.
            if found is None or found in own_ids or backend.model.id_to_token(found) not in (None, token.content):
                return None
            own_ids[found] = own
        return cls(pipeline, mark, own_ids)

    def encode(self, text: str) -> list[int]:
        encoding = self.pipeline.encode_batch([text], add_special_tokens=False)[0]
        ids: list[int] = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self.own_ids:
                ids.append(token_id)
            elif self.mark not in text[start:end]:
                ids.append(self.own_ids[token_id])
            else:
                # The vocabulary holds the control token as a word of its own, and the merges lead to it.
                for character in self.pipeline.id_to_token(token_id):
                    ids.extend(token.id for token in self.pipeline.model.tokenize(character))
        return ids
