"""The program ``hexagram``, also as ``python -m hexagram``: ``run``, ``bench``, ``check``, ``sample``, ``step``, ``simulate``
and ``advise``.
"""

from __future__ import annotations

import signal
import sys

from hexagram import _native


def main() -> int:
    """Runs the program with this process's arguments, and returns the code with which to exit."""
    # The program has its own answer to Ctrl-C; Python's would wait until it has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["hexagram", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
