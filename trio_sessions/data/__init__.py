"""Files shipped with the package: the built-in tokenizer and the model that goes with it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

__all__ = ["builtin_model_path", "builtin_tokenizer_path"]

_HERE: Final = files(__name__)


def builtin_tokenizer_path() -> Path:
    """Directory of the built-in tokenizer, in the layout of ``transformers``.

    Raises:
        FileNotFoundError: the package was installed in a way that leaves it no directory (a zip archive).
    """
    return _real("tokenizer")


def builtin_model_path() -> Path:
    """The ``.npz`` file with the n-gram counts that go with the built-in tokenizer.

    Raises:
        FileNotFoundError: as ``builtin_tokenizer_path``.
    """
    return _real("ngram.npz")


def _real(name: str) -> Path:
    path = Path(str(_HERE / name))
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: trio_sessions must be installed unpacked")
    return path
