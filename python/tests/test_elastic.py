"""Elastic jobs: ranks that die, leave and arrive, while the others continue in the same processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from elastic_job import Job, disturb

import hexagram
from hexagram.testing import alone

PROGRAMS = Path(__file__).parent / "elastic_programs.py"


def test_ranks_continue_when_others_die_and_arrive(tmp_path):
    job = Job(tmp_path, PROGRAMS, "quadratic")
    disturb(job)
    job.check(1e-9)


@pytest.mark.parametrize("program", ["old_objects", "turns"])
def test_old_generations_are_refused_and_leave_nothing(tmp_path, program):
    run = [sys.executable, "-m", "hexagram", "run", "--no-prefix", "-n", "3", "--elastic", "3", "--"]
    command = [*run, sys.executable, PROGRAMS, program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, 3 * "done\n"), done.stderr


def test_ctrl_c_ends_the_wait_for_the_next_generation(tmp_path):
    job = Job(tmp_path, PROGRAMS, "interrupted", ranks=2)
    job.wait_for(lambda: "interrupted True 20" in job.said)
    job.process.terminate()
    job.process.wait(60)


def test_a_job_whose_members_stay_has_no_next_generation():
    with alone() as world:
        assert world.generation is None and not world.changed
        with pytest.raises(hexagram.UsageError, match="--elastic"):
            world.next()
        world.communicator.barrier()
        assert hexagram.as_member(world, lambda world, one: (world.size, one), 7) == (1, 7)
        with pytest.raises(ZeroDivisionError):
            hexagram.as_member(world, lambda world: 1 // 0)
    with pytest.raises(hexagram.UsageError, match="closed"):
        world.next()
