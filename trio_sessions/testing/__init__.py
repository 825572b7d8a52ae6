"""Parts for testing code that talks to, extends or embeds a gateway.

``trio_sessions.testing.strategies`` has the Hypothesis strategies of this project's own suite; it needs the extra
``trio-sessions[test]``. The other modules need nothing beyond the package.
"""
