"""The example programs, run as in their own documentation, with few epochs: they end, and their models learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"

#: Each program with its arguments, and the minimum final accuracy, in percent.
PROGRAMS = [
    ("my_algorithm.py", (), 85),
    ("from_bagua.py", ("--algorithm", "bytegrad"), 60),
    ("from_bluefog.py", ("--algorithm", "d-psgd(graph=one-peer-exponential)"), 40),
]


def program(*command, cwd=None):
    """Runs a program; returns its exit code and output."""
    texts = [str(part) for part in command]
    done = subprocess.run(texts, capture_output=True, text=True, timeout=500, check=False, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("name", "arguments", "least"), PROGRAMS)
def test_examples_train(name, arguments, least):
    ranks = [sys.executable, "-m", "hexagram", "run", "-n", "2", "--"]
    code, out, error = program(*ranks, sys.executable, EXAMPLES / name, "--epochs", "4", *arguments)
    assert code == 0, error
    last = out.splitlines()[-1]
    assert last.startswith("[0]") and float(re.search(r"([\d.]+)%", last)[1]) > least, out


def test_the_digits_are_trained_and_drawn(tmp_path):
    code, out, error = program(sys.executable, EXAMPLES / "digits.py", "--ranks", "2", "--epochs", "3", cwd=tmp_path)
    assert code == 0, error
    # Plain lines, without a terminal.
    assert re.fullmatch(r"(epoch +\d: +[\d.]+% of the digits held out are read right\n){3}wrote digits.svg\n", out)
    drawn = (tmp_path / "digits.svg").read_text()
    assert drawn.startswith("<svg ") and "gradient-allreduce, 2 ranks" in drawn


def test_the_digits_say_what_is_wrong():
    digits = [sys.executable, EXAMPLES / "digits.py", "--ranks", "2"]
    code, _, error = program(*digits, "--data", "nowhere.csv.gz")
    assert code == 2 and "file nowhere.csv.gz does not exist" in error.splitlines()[-1]
    code, _, error = program(*digits, "--algorithm", "bytegrads")
    assert code == 1 and "bytegrad" in error.splitlines()[-1] and "Traceback" not in error
    code, _, error = program(*digits, "--out", "nowhere/digits.svg")
    assert code == 2 and "folder nowhere" in error.splitlines()[-1]
    code, _, error = program(*digits, "--epochs", "0")
    assert code == 2 and "0 is less than 1" in error.splitlines()[-1]
    # A full disk.
    code, out, error = program(*digits[:-1], "1", "--epochs", "1", "--out", "/dev/full")
    assert code == 1 and "digits held out" in out
    assert error == "digits.py: cannot write /dev/full: No space left on device; give another --out\n"
