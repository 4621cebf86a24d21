"""Test setup: a limit for hanging tests, with the stacks of all threads; Ctrl-C as in a terminal; launched ranks."""

import faulthandler
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

# A shell without a terminal makes its background processes ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def dump_stacks():
    """Prints all stacks and ends the process if a test takes ten minutes: only a hang takes this long."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def two_ranks(tmp_path) -> Callable[[str, float], subprocess.CompletedProcess[str]]:
    """Returns a function that runs a program text as two ranks of ``hexagram run``, with a limit in seconds."""

    def run(text: str, timeout: float) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, "-m", "hexagram", "run", "-n", "2", "--grace", "30", "--", sys.executable, program]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    return run
