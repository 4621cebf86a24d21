"""What all tests have: an end of those that hang, with the stacks of all threads, and Ctrl-C as a terminal has it."""

import faulthandler
import signal

import pytest

# A shell without a terminal lets what it starts beside itself ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def dump_stacks():
    """Prints all stacks and ends the process if a test takes ten minutes: only what hangs does."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
