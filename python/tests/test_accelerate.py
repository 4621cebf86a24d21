"""Hugging Face Accelerate over hexagram: its smallest program, unchanged, gives the same weights as over Gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")

PROGRAM = Path(__file__).with_name("accelerate_program.py")
#: A program that selects the backend itself: Accelerate uses the existing process group.
NAMED = """
import runpy, sys
import torch.distributed as dist
import hexagram.torch

dist.init_process_group("hexagram")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def launch(*program: str, **variables: str) -> list[str]:
    """Runs a program as 2 ranks of torchrun; returns the words of the line that rank 0 prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if " ranks " in line).split()


@pytest.fixture(scope="module")
def over_gloo() -> list[str]:
    return launch(str(PROGRAM))


def test_in_the_place_of_gloo(over_gloo):
    over_hexagram = launch("-m", "hexagram.torch", str(PROGRAM), HEXAGRAM_AS="gloo")
    assert over_gloo[0] == "ProcessGroup"
    assert over_hexagram == ["HexagramProcessGroup", *over_gloo[1:]]


def test_under_its_own_name(over_gloo, tmp_path):
    named = tmp_path / "named.py"
    named.write_text(NAMED)
    assert launch(str(named), str(PROGRAM)) == ["HexagramProcessGroup", *over_gloo[1:]]
