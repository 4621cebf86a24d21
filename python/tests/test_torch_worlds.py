"""Worlds of programs that use PyTorch: joining, deadlines, and the errors of the others when one ends."""

import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from torch_ranks import run  # noqa: E402

from hexagram.torch.backend import is_replaceable  # noqa: E402

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


def test_an_exception_in_a_backward_pass_is_told_to_the_others(two_ranks):
    done = two_ranks(RAISES, 500)
    assert done.returncode == 1
    assert done.stdout == "[0] rank 1 raised ValueError: bad sample\n", done.stderr


def deadlines(rank: int) -> tuple[float, float]:
    """Joins a world in addition to a group of another backend; returns its deadline, and that of a group of ours."""
    import torch.distributed as dist

    import hexagram.torch  # noqa: F401
    from hexagram.torch.default_world import world_of

    beside = world_of()
    ours = dist.new_group([0, 1], backend="hexagram", timeout=timedelta(seconds=40))
    return beside.deadline, ours.world.deadline


def test_the_engine_s_world_beside_another_backend_has_the_usual_deadline():
    assert run("gloo", 2, deadlines) == [(300.0, 40.0)] * 2


def numbered_otherwise(rank: int) -> str:
    """Creates a group that the other rank creates under another name, as it has created one more before."""
    import torch.distributed as dist

    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    try:
        dist.new_group([0, 1], use_local_synchronization=True, timeout=timedelta(seconds=3))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_group_whose_members_number_it_otherwise_says_so():
    for text in run("hexagram", 2, numbered_otherwise):
        assert text.startswith("SystemFailure: ") and "ranks 0, 1 of the job" in text and "new_group" in text, text


WITHOUT_STORE = """
import torch
import torch.distributed as dist
import hexagram.torch

dist.init_process_group("mpi")
rank = dist.get_rank()
totals = []
for group in (dist.group.WORLD, dist.new_group([0, 2]), dist.new_group([1, 2])):
    total = torch.tensor([float(rank + 1)])
    if dist.get_rank(group) >= 0:
        dist.all_reduce(total, group=group)
    totals.append(int(total))
dist.destroy_process_group()
# Another default group, which meets at the same place.
dist.init_process_group("mpi")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
print(rank, *totals, int(total))
"""


@pytest.mark.skipif(not is_replaceable("mpi"), reason="this PyTorch does not allow a replacement of mpi")
def test_ranks_that_go_by_the_name_of_mpi_meet_without_a_store(tmp_path):
    program = tmp_path / "without_store.py"
    program.write_text(WITHOUT_STORE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "HEXAGRAM_AS": "mpi"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program], env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 3
    assert said == ["0 6 4 1 3\n", "1 6 2 5 3\n", "2 6 4 5 3\n"]
