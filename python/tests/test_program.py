"""The program `hexagram` of the wheel."""

import subprocess
import sys

import pytest

import hexagram

JOINS = """
import hexagram, numpy
with hexagram.init() as world:
    total = numpy.array([world.rank + 1])
    world.communicator.all_reduce(total)
    print(world.size, world.local_size, total[0])
"""


def test_run_starts_ranks(tmp_path):
    program = tmp_path / "joins.py"
    program.write_text(JOINS)
    command = [sys.executable, "-m", "hexagram", "run", "-n", "3", "--", sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = sorted(done.stdout.splitlines())
    assert (done.returncode, lines) == (0, [f"[{rank}] 3 3 6" for rank in range(3)]), done.stderr


# Rank 1 ends with an error in the first start, after rank 0 has saved.
RESTARTS = """
import hexagram, pathlib, sys
kept = pathlib.Path(sys.argv[1])
with hexagram.init() as world:
    resumed = kept.read_text() if hexagram.restarts() else "nothing"
    world.communicator.barrier()
    if world.rank == 0:
        kept.write_text(f"start {hexagram.restarts()}")
    world.communicator.barrier()
    if world.rank == 1 and not hexagram.restarts():
        raise RuntimeError("this rank fails")
    print(hexagram.restarts(), resumed)
"""


def test_a_restarted_program_knows_it(tmp_path):
    program = tmp_path / "restarts.py"
    program.write_text(RESTARTS)
    command = [sys.executable, "-m", "hexagram", "run", "-n", "2", "--max-restarts", "1", "--"]
    command += [sys.executable, program, tmp_path / "kept"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines())[-1] == "[1] 1 start 0", done.stdout
    assert "[0] 1 start 0\n" in done.stdout


def test_bench_returns_rows():
    rows = hexagram.bench("all_reduce", options=("-b", "8", "-e", "32", "--iters", "3"))
    assert len(rows) == 2


def test_bench_says_why_it_fails():
    with pytest.raises(hexagram.SetupError, match="choose -b at most -e"):
        hexagram.bench("all_reduce", options=("-b", "64", "-e", "8"))
    with pytest.raises(hexagram.SetupError) as caught:
        hexagram.bench("all_reduce", options=("--dtype", "f99"))
    assert "'f99'" in str(caught.value) and "f32" in str(caught.value) and "--help" not in str(caught.value)


def test_bench_has_a_limit_of_time():
    with pytest.raises(hexagram.SetupError, match="did not end within 0.5 s"):
        hexagram.bench("all_reduce", options=("-b", "8M", "-e", "8M", "--iters", "100000000"), timeout=0.5)


def test_check_reports():
    good, report = hexagram.check()
    assert "two processes add numbers" in report
    assert "shm: right" in report and "tcp: right" in report, report
    assert isinstance(good, bool)
