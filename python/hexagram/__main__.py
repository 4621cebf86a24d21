"""The program ``hexagram``, also as ``python -m hexagram``: ``run``, ``bench``, ``check``, ``sample``, ``step``, ``simulate``
and ``advise``.
"""

from __future__ import annotations

import signal
import sys

from hexagram import _native


def main() -> int:
    """Runs the program with the arguments of this process, and returns its exit code."""
    # The program handles Ctrl-C itself; Python would delay it until the program has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["hexagram", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
