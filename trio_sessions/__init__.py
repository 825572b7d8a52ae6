"""trio-sessions: a token-exact session gateway for agentic RL."""

from trio_sessions._version import __version__

__all__ = ["__version__"]
