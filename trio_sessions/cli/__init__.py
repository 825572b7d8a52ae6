"""The ``trio-sessions`` command.

``options`` says what can be set, ``resolve`` where a value comes from, ``app`` how a command line is read
(the only module that knows the argument parser), and one module a command does the work. Commands import what
they need when they run, so that ``--help`` never waits for a tokenizer library.
"""

from trio_sessions.cli.app import main

__all__ = ["main"]
