"""``python -m trio_sessions.cli``: the command without an installed script."""

import sys

from trio_sessions.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
