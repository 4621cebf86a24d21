"""Measurements and checks of this machine, like those of the program ``hexagram``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hexagram.errors import SetupError


def bench(
    operation: str, *, ranks: int = 2, options: tuple[str, ...] = (), timeout: float = 600.0
) -> list[dict[str, Any]]:
    """Measures a collective between new processes, and returns a row for each size.

    ``operation`` is ``all_reduce``, ``broadcast`` or another in ``hexagram bench --help``, ``options`` are further
    options of that program, and ``timeout`` is the maximum total time, in seconds. Raises :class:`hexagram.SetupError`
    with the reason if it fails or takes longer.

    Example::

        rows = hexagram.bench("all_reduce", ranks=4, options=("-b", "1M", "-e", "64M", "--dtype", "bf16"))
        print([(row["bytes"], row["time_us"]) for row in rows])
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = ["bench", operation, "--ranks", str(ranks), "--json", str(rows), *options]
        done = _program(command, timeout)
        if done.returncode != 0:
            raise SetupError(_reason(done))
        return json.loads(rows.read_text())


def check(*, timeout: float = 120.0) -> tuple[bool, str]:
    """Checks the support for hexagram on this machine, and runs an all-reduce of two processes over each transport.

    Returns true if no problem was found, and the report. Raises :class:`hexagram.SetupError` if it takes longer than
    ``timeout`` seconds.
    """
    done = _program(["check"], timeout)
    return done.returncode == 0, done.stdout


def _program(arguments: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs the program ``hexagram`` to its end."""
    command = [sys.executable, "-m", "hexagram", *arguments]
    try:
        # The program ends its ranks when it is killed.
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        said = f"hexagram {arguments[0]} did not end within {timeout} s, and was killed"
        raise SetupError(f"{said}; measure less, or raise the timeout") from None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Returns why the program failed: its output, without the hint at the help."""
    lines = [line.strip().removeprefix("error: ") for line in done.stderr.splitlines()]
    said = [line for line in lines if line and not line.startswith(("For more information", "Usage:"))]
    if said:
        return "\n".join(said)
    if done.returncode < 0:
        return f"the program hexagram was killed by {signal.Signals(-done.returncode).name}; start it again"
    return f"the program hexagram ended with code {done.returncode}, and said nothing; run it in a terminal"
