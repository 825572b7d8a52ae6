"""Causal language models of ``transformers``: the only module that knows torch, which the extra ``[model]`` brings.

On the CPU and in float32, whatever the weights are stored in: it is there to check log probs against, not for speed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from trio_sessions.engine.embedded.causal import Feed
from trio_sessions.errors import ConfigurationError

__all__ = ["TorchModel"]


class TorchModel:
    """A model in a folder. Loading it takes seconds, and a call as long as the model takes: never on an event loop.

    Args:
        folder: in the layout of ``transformers``, with configuration and weights.
        eos_id: another id that ends an answer, besides those of the generation config.

    Attributes:
        size: number of logits.
        stop_ids: ids that end an answer, ascending.
        context_length: most ids of a sequence.

    Raises:
        ConfigurationError: it cannot be loaded, lacks weights, or is not a causal model with a key-value cache.
    """

    def __init__(self, folder: Path, *, eos_id: int | None = None) -> None:
        transformers_logging.disable_progress_bar()
        try:
            self._model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
        # The loader reaches into files, JSON and optional packages, and documents none of its errors.
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ConfigurationError(f"cannot load a causal language model from {folder} ({reason})") from error
        # They would be drawn at random, without a word.
        if missing := sorted(report["missing_keys"]):
            raise ConfigurationError(
                f"{folder} lacks {len(missing)} weights of its {type(self._model).__name__}, {missing[0]} for one"
            )
        self._model.eval()
        parameters = inspect.signature(self._model.forward).parameters
        # Renamed in the course of transformers 5.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        # Without it a long prompt costs the logits of all its positions.
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self.stop_ids = _stop_ids(self._model, eos_id)
        if not self.stop_ids:
            raise ConfigurationError(f"{folder} names no id that ends an answer: put eos_token_id into its config.json")
        self.context_length = int(getattr(self._model.config.get_text_config(), "max_position_embeddings", 32_768))
        self.size = self._probed(folder)

    def begin(self) -> Feed:
        """A new sequence with a cache of its own."""
        return partial(self._feed, DynamicCache(config=self._model.config))

    def _feed(self, cache: Any, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            answer = self._model(
                input_ids=torch.tensor([token_ids]), use_cache=True, **{self._cache_name: cache}, **self._options
            )
        logits: npt.NDArray[np.float32] = answer.logits[0, -1].numpy()
        return logits

    def _probed(self, folder: Path) -> int:
        """How many logits there are, once it is known that ids one by one give what ids at once do."""
        ids = range(min(8, self._model.get_input_embeddings().num_embeddings))
        whole = self.begin()(ids)
        try:
            feed = self.begin()
            parts = [feed([token_id]) for token_id in ids]
        # Models that keep another state than keys and values fail in their own ways.
        except Exception as error:
            raise ConfigurationError(f"{folder}: the model cannot go on from a cache ({error})") from error
        if np.abs(whole - parts[-1]).max() > 1e-4 * np.ptp(whole):
            raise ConfigurationError(f"{folder}: the model gives other logits with a key-value cache than without")
        return len(whole)


def _stop_ids(model: Any, eos_id: int | None) -> tuple[int, ...]:
    named = model.generation_config.eos_token_id
    ids = {eos_id, *(named if isinstance(named, list) else [named])}
    return tuple(sorted(token_id for token_id in ids if token_id is not None))
