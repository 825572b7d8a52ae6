"""Loading the tokenizer that an engine speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from trio_sessions import data
from trio_sessions.errors import ConfigurationError

__all__ = ["BUILTIN", "load_tokenizer"]

BUILTIN: Final = "builtin"


def load_tokenizer(name: str | Path) -> Any:
    """A fast tokenizer of ``transformers``.

    Args:
        name: ``BUILTIN``, a folder in the layout of ``transformers``, or a hub id.

    Raises:
        ConfigurationError: it cannot be loaded, or has no ``tokenizer.json``.
    """
    # Importing transformers takes seconds: only who starts an engine pays for it.
    from transformers import AutoTokenizer

    local = data.builtin_tokenizer_path() if name == BUILTIN else Path(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(local), local_files_only=local.is_dir())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"the tokenizer {name} cannot be loaded: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError(f"the tokenizer {name} has no tokenizer.json, which the embedded engine needs")
    return tokenizer
