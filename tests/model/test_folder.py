"""Which folders are served, and what the others are told."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'trio-sessions[model]'")

from safetensors.torch import load_file, save_file

from tests.model.tiny import CONTEXT, save_tiny_qwen3
from trio_sessions.data import builtin_tokenizer_path
from trio_sessions.engine.embedded import load_pretrained_engine
from trio_sessions.errors import ConfigurationError

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_qwen3(tmp_path, builtin_tokenizer_path(), hidden=8)
    return tmp_path


def test_limits_and_stops_are_the_model_s(folder: Path) -> None:
    engine = load_pretrained_engine(folder)
    controls = engine.vocabulary.controls
    ends = {engine.vocabulary.ids[controls[token]] for token in ("<|im_end|>", "<|endoftext|>")}
    assert set(engine.language.model.stop_ids) == ends
    assert engine.family.stop == controls["<|im_end|>"]
    assert engine.context_length == CONTEXT
    assert engine.model_name == folder.name


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load_pretrained_engine(folder)


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(ConfigurationError, match="cannot load a causal language model"):
        load_pretrained_engine(folder)


def test_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigurationError):
        load_pretrained_engine(folder)
