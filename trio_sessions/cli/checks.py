"""What can be refused at once, before seconds go into loading a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.errors import ConfigurationError
from trio_sessions.service.hooks import resolve_matcher

__all__ = ["check_family", "check_matcher", "check_model", "check_tokenizer"]

_PATHS: Final = ("/", "./", "../", "~")


def check_tokenizer(tokenizer: str, *, name: str = "--tokenizer") -> None:
    """Refuse what can only be a folder and is none; without this it would be looked for on the hub.

    Raises:
        ConfigurationError: no folder is there; the text starts with ``name``, the option.
    """
    if tokenizer.startswith(_PATHS) and not Path(tokenizer).is_dir():
        raise ConfigurationError(f"{name}: {tokenizer} is not a folder")


def check_model(folder: str, *, tokenizer: str) -> None:
    """Refuse what is no folder, or comes with a tokenizer of another.

    Raises:
        ConfigurationError: the text names the option.
    """
    if tokenizer != BUILTIN_TOKENIZER:
        raise ConfigurationError("--model and --tokenizer exclude each other: a model's folder has its tokenizer")
    if not Path(folder).is_dir():
        raise ConfigurationError(f"--model: {folder} is not a folder")


def check_family(family: str) -> None:
    """Refuse a family that no renderer has.

    Raises:
        ConfigurationError: the text names the option and lists the families.
    """
    from trio_sessions.render.families import FAMILIES

    if family not in FAMILIES:
        raise ConfigurationError(f"--family must be one of {', '.join(FAMILIES)}, got {family!r}")


def check_matcher(selector: str) -> None:
    """Refuse a matcher that cannot be used.

    Raises:
        ConfigurationError: see ``resolve_matcher``; the text names the option.
    """
    try:
        resolve_matcher(selector)
    except ConfigurationError as error:
        raise ConfigurationError(f"--message-matcher: {error}") from error
