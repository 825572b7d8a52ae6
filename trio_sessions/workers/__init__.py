"""Several processes behind one port: a supervisor, and workers that have sessions of their own.

``ownership``, ``address``, ``exposition`` and ``restarts`` decide, without a network. ``supervisor`` starts and watches
the processes; ``entry`` is what runs in one. ``link`` is what the two say to each other. ``front`` stands before a
worker's application and passes on what is another's, through ``peers``, by what ``membership`` knows of them.
"""
