"""Real tokenizers and chat templates, from a package that carries them as data."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.tokenizers import SIBLINGS, offline_data, unpack

__all__ = ["encoder_of", "template_of", "unpack"]


def template_of(model: str) -> str | None:
    """The text of ``model``'s chat template where its tokenizer is a sibling's, else None."""
    if model not in SIBLINGS:
        return None
    file = offline_data() / model / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    config = json.loads((offline_data() / model / "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(config["chat_template"])


def encoder_of(model: str) -> Path:
    """The file with ``model``'s own encoder, for a model that has no chat template."""
    (file,) = (offline_data() / model).glob("encoding_*.py")
    return file
