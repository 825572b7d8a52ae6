"""Trains the tokenizer and the model that the package ships: ``python -m trio_sessions.engine.embedded.train``.

Needs nothing but this package and the source of the Python that runs it. Deterministic for one version of Python.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

from trio_sessions import data
from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.tokenizer import TOKENIZER_CONFIG, train_tokenizer
from trio_sessions.engine.embedded.training import train_model
from trio_sessions.engine.embedded.vocabulary import Vocabulary

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``ngram.npz`` below ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(data.__file__).parent,
        help="directory to write to; it must hold tokenizer/chat_template.jinja (default: the package's own data)",
    )
    parser.add_argument("--model-only", action="store_true", help="keep the tokenizer, train only the model")
    options = parser.parse_args(arguments)

    folder: Path = options.output / "tokenizer"
    if not options.model_only:
        train_tokenizer().save(str(folder / "tokenizer.json"))
        config = json.dumps(TOKENIZER_CONFIG, indent=2) + "\n"
        (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    encoder = tokenizer.backend_tokenizer
    vocabulary = Vocabulary.of(encoder)
    model = train_model(encoder, vocabulary, Family.of(tokenizer, vocabulary))
    model.save(options.output / "ngram.npz")
    sys.stdout.write(f"{vocabulary.size} ids, written to {options.output}\n")


if __name__ == "__main__":
    main()
