"""Models trained by some of the ranks: process groups of PyTorch over any backend, and communicators of hexagram."""

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run  # noqa: E402


def trained(group: object, algorithm: str = "gradient-allreduce") -> list[float]:
    """Trains a layer on the ranks of a group, each with its own data, and returns its parameters."""
    import torch.distributed as dist

    from hexagram.torch import DataParallel

    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model = DataParallel(net, torch.optim.SGD(net.parameters(), 0.1), algorithm, process_group=group)
    for _ in range(3):
        model.optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        model.optimizer.step()
    return [float(x) for parameter in net.parameters() for x in parameter.flatten()]


def in_halves(rank: int) -> list[list[float]]:
    """Trains in one half of the ranks: of a PyTorch group, of a communicator, and with the hook of DDP."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hexagram.torch import hook
    from hexagram.torch.default_world import world_of

    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    replicas = [trained(group), trained(group, "bytegrad"), trained(world_of().communicator.split(rank // 2))]
    net = torch.nn.Linear(3, 2)
    ddp = DistributedDataParallel(net, process_group=group)
    ddp.register_comm_hook(*hook("bytegrad", process_group=group))
    ddp(torch.randn(5, 3)).square().mean().backward()
    return [*replicas, net.weight.grad.flatten().tolist()]


@pytest.mark.parametrize("backend", ["gloo", "hexagram"])
def test_each_half_of_the_ranks_trains_a_model_of_its_own(backend):
    of_ranks = run(backend, 4, in_halves)
    for trainings in zip(*of_ranks, strict=True):
        assert trainings[0] == trainings[1] != trainings[2] == trainings[3]


def in_pairs(rank: int) -> list[list[float]]:
    """Trains in each pair of neighbours that contains this rank."""
    import torch.distributed as dist

    groups = [dist.new_group([low, low + 1]) for low in range(2)]
    return [trained(group) for low, group in enumerate(groups) if rank in (low, low + 1)]


def test_a_rank_trains_in_several_groups():
    [[first], [left, right], [last]] = run("hexagram", 3, in_pairs)
    assert first == left != right == last


def outside(rank: int) -> str:
    """Returns the error of the rank outside a group."""
    import torch.distributed as dist

    from hexagram import UsageError

    group = dist.new_group([0])
    try:
        trained(group)
    except UsageError as error:
        return str(error)
    return ""


def test_a_rank_outside_of_the_group_is_refused():
    [inside, outside_] = run("hexagram", 2, outside)
    assert inside == "" and "create the model only on ranks of its group" in outside_
