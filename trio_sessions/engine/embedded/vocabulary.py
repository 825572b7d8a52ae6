"""A byte-level tokenizer seen as a sampler needs it: what each id spells, and which ids may be drawn where.

Spellings are strings in which a character below 256 is one byte of text and a character above ``_CONTROL`` is one
control id (an added token such as ``<|im_end|>``). So a piece of markup that must be a single id and text that may be
cut in any way live in one string, and a plan for an answer is a list of such strings.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trio_sessions.errors import ConfigurationError

__all__ = ["Alphabet", "Vocabulary", "bytes_of", "spelled"]

_CONTROL: Final = 0x10000
# A longer piece of a literal is never drawn; it keeps the look-up of candidates short.
_LONGEST: Final = 24
_NEVER_IN_UTF8: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})

BoolMask = npt.NDArray[np.bool_]


class Alphabet(Enum):
    """Which pieces free text may be made of.

    No piece holds ``<``, so that free text can never spell markup, and each piece is whole characters, so that an
    answer can end after any of them.
    """

    LINE = "line"
    """Printable text without a line break, and without the signs that would make it look like JSON."""

    TEXT = "text"
    """The same with line breaks."""

    STRING = "string"
    """The inside of a JSON string that needs no escapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What the ids of one tokenizer spell.

    Attributes:
        size: number of ids; every array over the vocabulary has shape (size,).
        spellings: for each id what it spells; empty for an id that no token has.
        ids: the reverse.
        controls: text of each added token, to its spelling.
        known: bool; True for an id that a token has.
        text_bytes: for each id the bytes that it decodes to, control ids included.
        masks: for each alphabet three masks: pieces that may come first (no white space in front), between, and last
            (no white space behind).
    """

    size: int
    spellings: tuple[str, ...]
    ids: dict[str, int]
    controls: dict[str, str]
    known: BoolMask
    text_bytes: tuple[bytes, ...]
    masks: dict[Alphabet, tuple[BoolMask, BoolMask, BoolMask]]

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """The vocabulary of a ``tokenizers.Tokenizer``.

        Raises:
            ConfigurationError: the tokenizer is not byte-level, so its pieces are not bytes.
        """
        added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        entries: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        size = max(entries.values()) + 1
        spellings = [""] * size
        text_bytes = [b""] * size
        for piece, token_id in entries.items():
            if token_id in added:
                spellings[token_id] = chr(_CONTROL + token_id)
                text_bytes[token_id] = added[token_id].encode()
            else:
                spelling = piece.translate(_BYTE_OF_SIGN)
                try:
                    text_bytes[token_id] = spelling.encode("latin-1")
                except UnicodeEncodeError:
                    raise ConfigurationError(
                        "the embedded engine needs a byte-level tokenizer (GPT-2's alphabet, as Qwen, Llama 3, GLM "
                        f"and DeepSeek have); this one has the piece {piece!r}"
                    ) from None
                spellings[token_id] = spelling
        ids = {spelling: token_id for token_id, spelling in enumerate(spellings) if spelling}
        missing = [byte for byte in range(256) if chr(byte) not in ids and byte not in _NEVER_IN_UTF8]
        if missing:
            raise ConfigurationError(f"the embedded engine needs a byte-level tokenizer; no piece for bytes {missing}")
        controls = {text: spellings[token_id] for token_id, text in added.items()}
        known = np.asarray([bool(spelling) for spelling in spellings], dtype=np.bool_)
        return cls(size, tuple(spellings), ids, controls, known, tuple(text_bytes), _masks(spellings, text_bytes))

    def candidates(self, options: Iterable[str]) -> list[int]:
        """Ids whose spelling begins one of ``options`` (ascending, each once)."""
        ids = self.ids
        found = set()
        for option in options:
            for end in range(1, min(len(option), _LONGEST) + 1):
                token_id = ids.get(option[:end])
                if token_id is not None:
                    found.add(token_id)
        return sorted(found)

    def control(self, text: str) -> str:
        """``text`` as one control id where the tokenizer has such a token, else as its bytes."""
        return self.controls.get(text) or spelled(text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of ids, control ids included; bytes that are not UTF-8 become U+FFFD."""
        text_bytes = self.text_bytes
        return b"".join([text_bytes[token_id] for token_id in token_ids]).decode("utf-8", errors="replace")


def spelled(text: str) -> str:
    """Ordinary text as a spelling: one character per byte of its UTF-8 form."""
    return text.encode().decode("latin-1")


def bytes_of(spelling: str) -> bytes:
    """The bytes of a spelling that holds no control id."""
    return spelling.encode("latin-1")


def _signs() -> dict[int, str]:
    """GPT-2's byte alphabet, reversed: printable Latin-1 stands for itself, other bytes for U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {0x100 + index: chr(byte) for index, byte in enumerate(others)} | {byte: chr(byte) for byte in printable}


_BYTE_OF_SIGN: Final = _signs()


def _masks(spellings: list[str], text_bytes: list[bytes]) -> dict[Alphabet, tuple[BoolMask, BoolMask, BoolMask]]:
    size = len(spellings)
    base = {alphabet: np.zeros(size, dtype=np.bool_) for alphabet in Alphabet}
    starts_blank = np.zeros(size, dtype=np.bool_)
    ends_blank = np.zeros(size, dtype=np.bool_)
    for token_id, spelling in enumerate(spellings):
        if not spelling or ord(spelling[0]) >= _CONTROL:
            continue
        try:
            text = text_bytes[token_id].decode()
        except UnicodeDecodeError:
            continue
        if "<" in text or not _is_plain(text.replace("\n", "")):
            continue
        structural = any(sign in '{}"\\' for sign in text)
        starts_blank[token_id] = text[0].isspace()
        ends_blank[token_id] = text[-1].isspace()
        base[Alphabet.TEXT][token_id] = not structural
        base[Alphabet.LINE][token_id] = "\n" not in text and not structural
        base[Alphabet.STRING][token_id] = "\n" not in text and '"' not in text and "\\" not in text
    return {alphabet: (mask & ~starts_blank & ~ends_blank, mask, mask & ~ends_blank) for alphabet, mask in base.items()}


def _is_plain(text: str) -> bool:
    """Printable, and unchanged by NFC whatever stands beside it (tokenizers may normalise before they encode)."""
    if text.isascii():
        return text.isprintable() or not text
    return (
        text.isprintable()
        and unicodedata.is_normalized("NFC", text)
        and not any(unicodedata.category(sign).startswith("M") or "\u1100" <= sign <= "\u11ff" for sign in text)
    )
