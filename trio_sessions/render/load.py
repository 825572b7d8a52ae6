"""From a tokenizer's name to a renderer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.data import builtin_tokenizer_path
from trio_sessions.errors import ConfigurationError, InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.escape import SpecialTokensPolicy
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.template import TemplateRenderer

__all__ = ["FAMILIES", "load_renderer", "load_tokenizer"]

FAMILIES: Final = (
    "auto",
    "default",
    "qwen3",
    "qwen35",
    "qwennext",
    "glm47",
    "nemotron3",
    "kimi25",
    "kimi26",
    "minimax_m25",
    "minimax_m27",
    "deepseekv32",
    "deepseekv4",
    "inkling",
)
_GENERATION_CONFIG: Final = "generation_config.json"
# Formats that transformers reads with the help of other packages; without them it says something else.
_READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tokenizer.model": ("sentencepiece", "protobuf"),
    "tekken.json": ("mistral-common",),
}


def load_renderer(
    tokenizer: str,
    *,
    family: str = "auto",
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    special_tokens: SpecialTokensPolicy = "escape",
) -> TemplateRenderer:
    """Load a tokenizer, probe its chat template and make the renderer.

    Takes seconds for a large vocabulary, and may read from the network for a hub id: call it from a thread.

    Args:
        tokenizer: ``builtin``, a folder, or a hub id.
        family: one of ``FAMILIES``; it names the renderer. What the template does is probed in any case.
        chat_template: jinja text that replaces the tokenizer's own template.
        chat_template_kwargs: launch defaults of the template's kwargs.
        special_tokens: what to do with a client's text that spells a control token.

    Raises:
        ConfigurationError: unknown family; the tokenizer cannot be loaded or has no template; a kwarg has a reserved
            name; nothing can be appended under this template. The text is one line and says what to do.
    """
    if family not in FAMILIES:
        raise ConfigurationError(f"unknown family {family!r}; choose one of {', '.join(FAMILIES)}")
    loaded = load_tokenizer(tokenizer)
    if chat_template is None and not loaded.chat_template:
        raise ConfigurationError(f"--tokenizer: {tokenizer!r} has no chat template; give one with --chat-template FILE")
    template = ChatTemplate(loaded, chat_template)
    if loaded.eos_token is None and _writes_eos(template):
        raise ConfigurationError(
            f"--tokenizer: the chat template writes eos_token, which {tokenizer!r} does not name, so that "
            'nothing would end a turn; name it in the folder\'s tokenizer_config.json: {"eos_token": "..."}'
        )
    return TemplateRenderer(
        template,
        TextCodec(loaded, eos_ids=_generation_eos(loaded.name_or_path)),
        name=family,
        defaults=chat_template_kwargs,
        special_tokens=special_tokens,
    )


def load_tokenizer(name: str) -> Any:
    """A tokenizer of ``transformers``.

    Args:
        name: ``builtin``, a folder, or a hub id.

    Raises:
        ConfigurationError: it cannot be loaded. The text is one line and says what to do.
    """
    source = str(builtin_tokenizer_path()) if name == BUILTIN_TOKENIZER else name
    try:
        # The advice to install PyTorch is for those who load models.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        # Imported here because it takes a second or more, which no other use of this package should pay.
        from transformers import AutoTokenizer

        # Where mistral-common is installed, a folder with a tekken.json would become a tokenizer that has no template
        # and takes no control tokens from text.
        return AutoTokenizer.from_pretrained(source, mistral_format=False)
    # The loader reaches into files, JSON, the network and optional packages, and documents none of its errors.
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigurationError(
            f"--tokenizer: cannot load {name!r} ({reason}); {advice_for(Path(source))}"
            f"give {BUILTIN_TOKENIZER}, a folder with tokenizer.json and tokenizer_config.json, "
            "or a hub id that can be reached"
        ) from error


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def advice_for(folder: Path, *, installed: Callable[[str], bool] = _is_installed) -> str:
    """What to do for a tokenizer that is in none but its maker's format; empty where that is not the cause.

    Args:
        folder: where it should be.
        installed: whether a package is.
    """
    if (folder / "tokenizer.json").is_file():
        return ""
    for file, packages in _READERS.items():
        missing = [package for package in packages if not installed(package)]
        if missing and (folder / file).is_file():
            return f"to read {file}, pip install {' '.join(missing)}; or "
    return ""


def _writes_eos(template: ChatTemplate) -> bool:
    mark = "qEndOfTurnq"
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        return mark in template.render(turn, tools=None, kwargs={"eos_token": mark}, generation=False)
    except InvalidRequest:
        return False


def _generation_eos(source: str) -> tuple[int, ...]:
    """Ends of generation that the model's generation config names; empty where there is none."""
    path = Path(source) / _GENERATION_CONFIG
    if not Path(source).is_dir():
        from transformers.utils import cached_file

        found = cached_file(
            source,
            _GENERATION_CONFIG,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is None:
            return ()
        path = Path(found)
    if not path.is_file():
        return ()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ids = config.get("eos_token_id") if isinstance(config, dict) else None
        return tuple(int(i) for i in (ids if isinstance(ids, list) else [] if ids is None else [ids]))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; repair or remove the file") from error
