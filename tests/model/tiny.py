"""A tiny Qwen3 model with random weights, in a folder as a real one would be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

CONTEXT = 8192
# How much more the logits of some ids spread than those of the others.
_LOUD = ("<|im_end|>", "</think>")


def save_tiny_qwen3(folder: Path, tokenizer: Path, *, hidden: int, seed: int = 0) -> None:
    """Write configuration, weights, generation config and tokenizer.

    The logits of most ids are about as peaked as a trained model's. Those of the ids that end a turn and a thought
    spread so far that one of them wins about every tenth position: a random model would otherwise hardly ever stop.

    Args:
        folder: where to.
        tokenizer: folder of the tokenizer and its chat template.
        hidden: width of the model.
        seed: of the weights.
    """
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    loaded.save_pretrained(folder)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=math.ceil(len(loaded) / 128) * 128,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=CONTEXT,
            initializer_range=1 / math.sqrt(hidden),
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=loaded.eos_token_id,
        )
    )
    with torch.no_grad():
        rows = model.lm_head.weight
        spread = 2.0
        rows.normal_(0, spread / math.sqrt(hidden))
        # The rest weigh as much as this logit alone, by the mean of a log-normal.
        weight_of_rest = math.log(len(rows)) + spread**2 / 2
        for token in _LOUD:
            rows[loaded.convert_tokens_to_ids(token)] *= weight_of_rest / 1.3 / spread
    model.to(torch.bfloat16).save_pretrained(folder)
    # As the real ones have it: several ids.
    path = folder / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["eos_token_id"] = [loaded.eos_token_id, loaded.convert_tokens_to_ids("<|endoftext|>")]
    path.write_text(json.dumps(config), encoding="utf-8")
