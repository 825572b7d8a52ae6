"""An engine for a model in a folder, as ``transformers`` saves one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trio_sessions.engine.embedded.chat import EmbeddedEngine
from trio_sessions.engine.embedded.load import load_fast_tokenizer
from trio_sessions.errors import ConfigurationError, LibraryMissing

__all__ = ["load_pretrained_engine"]


def load_pretrained_engine(folder: Path, *, seed: int | None = None) -> EmbeddedEngine:
    """The engine whose answers are sampled from the causal language model in ``folder``.

    Takes seconds: call it from a thread.

    Args:
        folder: configuration, weights and a byte-level tokenizer; nothing is looked for elsewhere.
        seed: see ``EmbeddedEngine``.

    Raises:
        LibraryMissing: torch is not installed.
        ConfigurationError: there is no such folder, or no model or tokenizer in it that can be served.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder")
    if not (folder / "tokenizer.json").is_file():
        raise ConfigurationError(f"{folder} has no tokenizer: save the model's tokenizer.json and its config there")
    if find_spec("torch") is None:
        raise LibraryMissing("to run a model, pip install 'trio-sessions[model]'")
    tokenizer = load_fast_tokenizer(str(folder))

    from trio_sessions.engine.embedded.torch_model import TorchModel

    model = TorchModel(folder, eos_id=tokenizer.eos_token_id)
    return EmbeddedEngine(
        tokenizer,
        model=model,
        seed=seed,
        model_name=folder.resolve().name,
        context_length=model.context_length,
    )
