"""Tells whether two renderers render alike, as far as one conversation shows."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.render.base import Renderer

__all__ = ["fingerprint"]

# Words, digits, scripts, white space and code: what tokenizers cut differently. The date is one that is not now.
_CONVERSATION: Final[list[dict[str, Any]]] = [
    {
        "role": "user",
        "content": "Résumé №42:\n\tprint(f'{x!r:>10}')  # 日本語 и кириллица, 1234567 rollouts 🙂",
    }
]
_NOW: Final = datetime(2025, 1, 2, 3, 4, 5)


def fingerprint(renderer: Renderer) -> str:
    """Hex digits that change with the tokenizer, the chat template and its kwargs. It renders."""
    digest = blake2b(renderer.name.encode(), digest_size=16)
    try:
        kwargs = renderer.effective_kwargs({})
        ids = renderer.render(_CONVERSATION, tools=None, kwargs=kwargs, now=_NOW)
    except (InvalidRequest, TokenizationFailed):
        # A template may refuse any conversation; its name has to do then.
        return digest.hexdigest()
    digest.update(ids.tobytes())
    return digest.hexdigest()
