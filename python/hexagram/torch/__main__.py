"""Runs a program that does not import hexagram over it, instead of a backend that the program names.

HEXAGRAM_AS=gloo python -m hexagram.torch train.py --epochs 3
HEXAGRAM_AS=gloo torchrun --nproc-per-node 4 -m hexagram.torch train.py --epochs 3
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import hexagram.torch  # noqa: F401  (registers the backends)


def main() -> None:
    """Runs the program whose path and arguments follow, like Python itself."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: HEXAGRAM_AS=BACKEND python -m hexagram.torch PROGRAM [ARGUMENT ...]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
