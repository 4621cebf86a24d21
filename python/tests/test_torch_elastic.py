"""Trainings under the engine in elastic jobs: the numbers of one that knows the members of each step."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from elastic_job import MOMENTUM, Job, disturb  # noqa: E402

PROGRAM = Path(__file__).parent / "elastic_torch_program.py"


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [("gradient-allreduce", "torch"), ("gradient-allreduce", f"sgd(momentum={MOMENTUM})"), ("python", "sgd")],
)
def test_training_continues_when_ranks_die_and_arrive(tmp_path, algorithm, optimizer):
    job = Job(tmp_path, PROGRAM, algorithm, optimizer)
    disturb(job)
    job.check(1e-3)


def test_replicas_that_differ_continue_from_a_common_step(tmp_path):
    job = Job(tmp_path, PROGRAM, "d-psgd", "torch")
    disturb(job)
