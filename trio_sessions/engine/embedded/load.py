"""Loading the tokenizer that an engine speaks."""

from __future__ import annotations

from typing import Any

from trio_sessions.errors import ConfigurationError
from trio_sessions.render.load import load_tokenizer

__all__ = ["load_fast_tokenizer"]


def load_fast_tokenizer(name: str) -> Any:
    """A tokenizer of ``transformers`` that has a ``tokenizer.json``.

    Args:
        name: ``builtin``, a folder, or a hub id.

    Raises:
        ConfigurationError: it cannot be loaded, or has no ``tokenizer.json``.
    """
    tokenizer = load_tokenizer(name)
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(f"the tokenizer {name} has no tokenizer.json, which the embedded engine needs")
    return tokenizer
