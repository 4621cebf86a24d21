"""What all tests have: the time after which a test that hangs is killed, with the stacks of all threads."""

import faulthandler

import pytest


@pytest.fixture(autouse=True)
def dump_stacks():
    """Prints all stacks and ends the process if a test takes ten minutes: only what hangs does."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
