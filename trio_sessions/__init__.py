"""trio-sessions: a token-exact session gateway for agentic RL.

The three primitives are pure functions. To run a gateway in a program of yours see ``trio_sessions.serve``.
"""

from trio_sessions._version import __version__
from trio_sessions.core.completion import Completion, extract_completion
from trio_sessions.core.prefix import PrefixMatch, assert_pretokenized_prefix
from trio_sessions.core.request import EngineRequest, PreparedRequest, RequestPolicy, prepare_chat_request

__all__ = [
    "Completion",
    "EngineRequest",
    "PrefixMatch",
    "PreparedRequest",
    "RequestPolicy",
    "__version__",
    "assert_pretokenized_prefix",
    "extract_completion",
    "prepare_chat_request",
]
