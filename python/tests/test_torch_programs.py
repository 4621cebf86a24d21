"""Libraries on torch.distributed give the same results over hexagram as over Gloo: DDP, FSDP, DTensor, checkpoints…"""

from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_programs import ALL, BEYOND_GLOO, HAS_DEVICES, OURS, run_all  # noqa: E402
from torch_ranks import run  # noqa: E402

import hexagram.torch  # noqa: E402


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict]:
    """Returns, for each of two ranks, the results of every program over each backend."""
    return run(None, 2, run_all, str(tmp_path_factory.mktemp("stores")), seconds=300)


def close(left, right) -> bool:
    """Returns whether two nested lists are equal, numbers up to rounding."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(close(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-4, abs=1e-6)
    return left == right


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("program", [program.__name__ for program in ALL])
def test_equals_gloo(program, backend, results):
    # Over Gloo, FSDP2 of PyTorch 2.8 does not divide by the number of ranks; the result must equal that of DDP.
    expected = "ddp" if program == "fsdp2" else program
    for rank in results:
        assert close(rank[backend][program], rank["gloo"][expected])
        assert rank[backend][program] == results[0][backend][program]


@pytest.mark.parametrize("backend", OURS)
def test_what_gloo_refuses(backend, results):
    for rank in results:
        assert rank[backend]["beyond_gloo"] == BEYOND_GLOO


def split(rank: int) -> list:
    """Splits the group of 3 ranks in [2, 0] and the rest, which PyTorch leaves out; then that group again."""
    parent = dist.split_group(split_ranks=[[2, 0]], timeout=timedelta(seconds=20))
    if rank == 1:
        return [parent is dist.GroupMember.NON_GROUP_MEMBER]
    total, root = torch.tensor([float(rank)]), torch.tensor([float(rank)])
    dist.all_reduce(total, group=parent)
    dist.broadcast(root, 2, group=parent)
    child = dist.split_group(parent, [[0], [1]])
    alone = torch.tensor([float(rank)])
    dist.all_reduce(alone, group=child)
    return [dist.get_group_rank(parent, rank), total.item(), root.item(), alone.item(), dist.get_world_size(child)]


@pytest.mark.skipif(not HAS_DEVICES, reason="before PyTorch 2.14, groups of NCCL only are split")
def test_split_group():
    assert run("hexagram", 3, split) == [[1, 2.0, 2.0, 0.0, 1], [True], [0, 2.0, 2.0, 2.0, 1]]


@pytest.mark.skipif(HAS_DEVICES, reason="this PyTorch has groups of several devices")
def test_an_old_pytorch_has_no_groups_of_devices(tmp_path):
    with pytest.raises(hexagram.UsageError, match="2.14"):
        dist.init_process_group("cpu:hexagram_device", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
