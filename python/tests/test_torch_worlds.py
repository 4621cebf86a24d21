"""Worlds of programs that use PyTorch: how they are joined, how long they wait, and what the others learn as they end."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from torch_ranks import run  # noqa: E402

RAISES = """
import hexagram, torch
from hexagram.torch.data_parallel import DataParallel

world = hexagram.init()
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
options = {"first_bucket_bytes": 1, "bucket_bytes": 1}
ours = DataParallel(net, torch.optim.SGD(net.parameters(), 0.1), **options)
ours(torch.ones(2, 4)).sum().backward()
ours.optimizer.step()

def fail(*_):
    raise ValueError("bad sample")

if world.rank == 1:
    net[1].register_full_backward_hook(fail)
try:
    ours(torch.ones(2, 4)).sum().backward()
except hexagram.PeerFailed as error:
    print(f"rank {error.rank} {error.cause}", flush=True)
"""


def test_an_exception_in_a_backward_pass_is_told_to_the_others(tmp_path):
    program = tmp_path / "raises.py"
    program.write_text(RAISES)
    command = [sys.executable, "-m", "hexagram", "run", "-n", "2", "--grace", "30", "--", sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 1
    assert done.stdout == "[0] rank 1 raised ValueError: bad sample\n", done.stderr


def deadlines(rank: int) -> tuple[float, float]:
    """Joins a world beside a group of another backend; returns its deadline, and that of a group of ours."""
    import torch.distributed as dist

    import hexagram.torch  # noqa: F401
    from hexagram.torch.worlds import world_of

    ours = dist.new_group([0, 1], backend="hexagram")
    return world_of().deadline, ours.world.deadline


def test_the_engine_s_world_beside_another_backend_has_the_usual_deadline():
    assert run("gloo", 2, deadlines, timeout=40) == [(300.0, 40.0)] * 2
