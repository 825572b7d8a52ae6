"""Training samples of a session: assembled from its turns, picked, finished and encoded."""

from trio_sessions.core.samples.codec import SamplesReply, decode_samples, encode_samples, encode_samples_in_pieces
from trio_sessions.core.samples.collect import CollectedSamples, EmptyReason, collect_forest, collect_line
from trio_sessions.core.samples.forest import UNDELIVERED, Forest, TreeNode, tree_metadata
from trio_sessions.core.samples.hooks import SampleHooks, run_hooks
from trio_sessions.core.samples.layout import Piece
from trio_sessions.core.samples.leaves import Mismatches, assemble_leaves
from trio_sessions.core.samples.line import AssemblyRules, assemble
from trio_sessions.core.samples.pickers import PICKERS, Picker
from trio_sessions.core.samples.postprocessors import POSTPROCESSORS, Postprocessor, is_reward, train_once
from trio_sessions.core.samples.sample import PrefixCacheInfo, Sample, Status

__all__ = [
    "PICKERS",
    "POSTPROCESSORS",
    "UNDELIVERED",
    "AssemblyRules",
    "CollectedSamples",
    "EmptyReason",
    "Forest",
    "Mismatches",
    "Picker",
    "Piece",
    "Postprocessor",
    "PrefixCacheInfo",
    "Sample",
    "SampleHooks",
    "SamplesReply",
    "Status",
    "TreeNode",
    "assemble",
    "assemble_leaves",
    "collect_forest",
    "collect_line",
    "decode_samples",
    "encode_samples",
    "encode_samples_in_pieces",
    "is_reward",
    "run_hooks",
    "train_once",
    "tree_metadata",
]
