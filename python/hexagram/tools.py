"""Measurements and checks of this machine, as the program ``hexagram`` makes them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hexagram.errors import SetupError


def bench(operation: str, *, ranks: int = 2, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Measures a collective between new processes, and returns a row for each size.

    ``operation`` is ``all_reduce``, ``broadcast`` or another that ``hexagram bench --help`` names, ``options`` are more
    of its options. Raises :class:`hexagram.SetupError` with its last line if it fails.

    Example::

        rows = hexagram.bench("all_reduce", ranks=4, options=("-b", "1M", "-e", "64M", "--dtype", "bf16"))
        print([(row["bytes"], row["time_us"]) for row in rows])
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = ["bench", operation, "--ranks", str(ranks), "--json", str(rows), *options]
        done = _program(command)
        if done.returncode != 0:
            raise SetupError((done.stderr or done.stdout).strip().rsplit("\n", 1)[-1])
        return json.loads(rows.read_text())


def check() -> tuple[bool, str]:
    """Checks what this machine has for hexagram, and runs an all-reduce of two processes over each transport.

    Returns true if nothing has to be mended, and the report.
    """
    done = _program(["check"])
    return done.returncode == 0, done.stdout


def _program(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hexagram", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
