"""An inference engine in the package: a real tokenizer, an honest sampler, a toy model, SGLang's chat contract.

For demonstrations, tests and benchmarks without a GPU. Its ids are sampled with known probabilities and are not the
canonical spelling of their text, which is what a gateway has to get right. ``load_pretrained_engine`` puts a small
causal language model of ``transformers`` in the toy model's place.
"""

from __future__ import annotations

from trio_sessions.engine.embedded.app import create_engine_app, serve_engine
from trio_sessions.engine.embedded.chat import EmbeddedEngine
from trio_sessions.engine.embedded.desk import Desk, Stats
from trio_sessions.engine.embedded.faults import FAULT_HEADER, FAULT_KINDS, Fault, parse_fault
from trio_sessions.engine.embedded.pretrained import load_pretrained_engine
from trio_sessions.engine.embedded.reply import EngineReply

__all__ = [
    "FAULT_HEADER",
    "FAULT_KINDS",
    "Desk",
    "EmbeddedEngine",
    "EngineReply",
    "Fault",
    "Stats",
    "create_engine_app",
    "load_pretrained_engine",
    "parse_fault",
    "serve_engine",
]
