"""From a tokenizer's name to a renderer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.data import builtin_tokenizer_path
from trio_sessions.errors import ConfigurationError, InvalidRequest, LibraryMissing
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.conversation import ConversationTemplate
from trio_sessions.render.encoder import EncoderTemplate
from trio_sessions.render.escape import SpecialTokensPolicy
from trio_sessions.render.families import ENCODER, FAMILIES, Family
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.library import LibraryTemplate
from trio_sessions.render.template import TemplateRenderer
from trio_sessions.render.tools import ToolsAs

__all__ = ["FAMILIES", "load_renderer", "load_tokenizer"]

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
    chat_template: str | Path | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    special_tokens: SpecialTokensPolicy = "escape",
    tools_as: ToolsAs = "sglang",
) -> TemplateRenderer:
    """Load a tokenizer, probe its chat template and make the renderer.

    Takes seconds for a large vocabulary, and may read from the network for a hub id: call it from a thread.

    Args:
        tokenizer: ``builtin``, a folder, or a hub id.
        family: one of ``FAMILIES``. ``auto`` uses the chat template where it can be served, with the kwarg that keeps
            past thinking if it has one, and otherwise the family whose control tokens the tokenizer has.
        chat_template: what replaces the tokenizer's own template: jinja text, a file of it, or a Python file with the
            model's own encoder (see ``EncoderTemplate``), which is run.
        chat_template_kwargs: launch defaults of the template's kwargs.
        special_tokens: what to do with a client's text that spells a control token.
        tools_as: how tool definitions are rendered.

    Raises:
        ConfigurationError: unknown family; the tokenizer cannot be loaded or has no template; a kwarg has a reserved
            name or contradicts the family; nothing can be appended under this template. The text is one line and says
            what to do.
    """
    if family not in FAMILIES:
        raise ConfigurationError(f"unknown family {family!r}; choose one of {', '.join(FAMILIES)}")
    loaded = load_tokenizer(tokenizer)
    source = _Source(
        loaded,
        TextCodec(loaded, eos_ids=_generation_eos(loaded.name_or_path)),
        dict(chat_template_kwargs or {}),
        special_tokens,
        tools_as,
    )
    chosen = FAMILIES[family]
    if chat_template is None and not loaded.chat_template:
        without = f"{tokenizer!r} has no chat template"
        advice = f"--tokenizer: {without}; give one with --chat-template FILE (jinja, or the model's own encoder.py)"
        if chosen.library:
            return source.of_library(chosen, f"{without}, so the renderers library writes the format")
        if family != "auto":
            raise ConfigurationError(advice)
        return source.recognised(without, otherwise=ConfigurationError(advice))
    template = _template(loaded, chat_template)
    if loaded.eos_token is None and _writes_eos(template):
        raise ConfigurationError(
            f"--tokenizer: the chat template writes eos_token, which {tokenizer!r} does not name, so that "
            'nothing would end a turn; name it in the folder\'s tokenizer_config.json: {"eos_token": "..."}'
        )
    if family != "auto":
        return source.of_template(template, chosen, *_unread(template, chosen))
    if isinstance(template, EncoderTemplate) and template.switches_thinking:
        chosen = ENCODER
    try:
        return source.keeping_thinking(source.of_template(template, chosen))
    except ConfigurationError as error:
        if chat_template is not None:
            raise
        return source.recognised(str(error), otherwise=error)


def _template(tokenizer: Any, given: str | Path | None) -> ConversationTemplate:
    if not isinstance(given, Path):
        return ChatTemplate(tokenizer, given)
    if given.suffix == ".py":
        return EncoderTemplate(given)
    try:
        return ChatTemplate(tokenizer, given.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read --chat-template {given}: {error}") from error


def _unread(template: ConversationTemplate, family: Family) -> list[str]:
    """Notes on what a family pins to no effect: it may not be this model's."""
    unread = [name for name in family.pinned if not template.mentions(name)]
    return (
        [f"the chat template does not read {', '.join(unread)}, which the family {family.name} pins"] if unread else []
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What every renderer of one tokenizer is made of."""

    tokenizer: Any
    codec: TextCodec
    kwargs: Mapping[str, Any]
    special_tokens: SpecialTokensPolicy
    tools_as: ToolsAs

    def of_template(
        self, template: ConversationTemplate, family: Family, *notes: str, **extra: Any
    ) -> TemplateRenderer:
        """A renderer of a template; ``extra`` are further launch defaults."""
        return TemplateRenderer(
            template,
            self.codec,
            family=family,
            defaults={**extra, **self.kwargs},
            special_tokens=self.special_tokens,
            tools_as=self.tools_as,
            notes=notes,
        )

    def of_library(self, family: Family, note: str) -> TemplateRenderer:
        """A renderer of the format that the library knows for ``family``."""
        return self.of_template(LibraryTemplate(self.tokenizer, self.codec, family.library), family, note)

    def keeping_thinking(self, renderer: TemplateRenderer) -> TemplateRenderer:
        """The same with the kwarg that makes its template keep past thinking, unless the launch says otherwise."""
        keeping = [item for item in renderer.profile.keeps_thinking.items() if item[0] not in self.kwargs]
        if not keeping:
            return renderer
        name, value = keeping[0]
        note = (
            f"past thinking is kept: {name}={json.dumps(value)} is a default here, as the template drops it otherwise"
        )
        return self.of_template(renderer.template, renderer.family, note, **{name: value})

    def recognised(self, reason: str, *, otherwise: ConfigurationError) -> TemplateRenderer:
        """A renderer of the first family of the library whose control tokens the tokenizer has.

        Raises:
            ConfigurationError: ``otherwise``; or the library is not installed, or cannot serve the tokenizer either.
        """
        tokens = frozenset(self.codec.added_text.values())
        for family in FAMILIES.values():
            if not family.marks or not tokens.issuperset(family.marks):
                continue
            try:
                return self.of_library(family, f"{reason}, but it has the control tokens of the family {family.name}")
            except LibraryMissing as error:
                raise ConfigurationError(f"{otherwise}; or, as it has those of {family.name}, {error}") from error
        raise otherwise


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


def _writes_eos(template: ConversationTemplate) -> bool:
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
