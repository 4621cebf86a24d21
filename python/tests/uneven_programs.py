"""Programs of ranks in the tests of data that runs out at different times: each runs in a separate process."""

from __future__ import annotations

from collections.abc import Callable

import digits
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR
from training_programs import Momentum

import hexagram
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.sync_batch_norm import sync_batch_norm


def with_statistics() -> nn.Module:
    """Returns an untrained net with batch normalization."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def grouped(net: nn.Module) -> torch.optim.Optimizer:
    """Returns an optimizer whose groups have different learning rates."""
    first, *others = net.parameters()
    return torch.optim.SGD([{"params": [first], "lr": 0.01}, {"params": others}], 0.2, momentum=0.9)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """Returns a PyTorch optimizer for a net."""
    return torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    """Returns a PyTorch optimizer for a net."""
    return torch.optim.Adam(net.parameters(), 0.01)


def plain(ours: DataParallel, loss: Tensor) -> None:
    """Makes the backward pass and the step."""
    loss.backward()
    ours.optimizer.step()


def clipped(ours: DataParallel, loss: Tensor) -> None:
    """Makes the step with clipped gradients."""
    loss.backward()
    nn.utils.clip_grad_norm_(ours.parameters(), 0.01)
    ours.optimizer.step()


def scaled() -> Callable[[DataParallel, Tensor], None]:
    """Returns a function that makes the step with a scaled loss."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(ours: DataParallel, loss: Tensor) -> None:
        scaler.scale(loss).backward()
        scaler.step(ours.optimizer)
        scaler.update()

    return step


def ends_alike(world, optimizer, algorithm="gradient-allreduce", step=plain, model=digits.model) -> bool:
    """Rank r makes 3 · (r + 1) steps, each with another learning rate, then one more: are replicas identical?"""
    net = model()
    own = optimizer if isinstance(optimizer, str) else optimizer(net)
    rate = 0.2 if isinstance(optimizer, str) else None
    ours = DataParallel(net, own, algorithm, learning_rate=rate, process_group=world, uneven=True)
    schedule = ExponentialLR(ours.optimizer, 0.5)
    images, labels, _, _ = digits.load()
    batches = iter(digits.batches(world.rank, world.size, 1))

    def train(steps: int) -> None:
        for _ in range(steps):
            index = next(batches)
            ours.optimizer.zero_grad()
            step(ours, cross_entropy(ours(images[index]), labels[index]))
            schedule.step()

    with ours.join():
        train(3 * (world.rank + 1))
    are_one = same(world, net)
    # With equal optimizer states, and learning rates.
    for group in ours.optimizer.param_groups:
        group["lr"] = 0.1
    train(1)
    are_one = are_one and same(world, net, buffers=False) and ours.steps == 3 * world.size + 1
    ours.close()
    return are_one


def same(world: hexagram.World, net: nn.Module, buffers: bool = True) -> bool:
    """Returns whether all ranks have the same model, bit for bit."""
    values = list(net.state_dict().values()) if buffers else [value.detach() for value in net.parameters()]
    mine = torch.cat([value.double().reshape(-1) for value in values])
    first = mine.clone()
    world.communicator.broadcast(first, 0)
    equal = torch.tensor([int(torch.equal(mine, first))], dtype=torch.int32)
    world.communicator.all_reduce(equal, "min")
    return bool(equal.item())


def in_many_ways(world) -> dict[str, bool]:
    """Runs out of data in many kinds of loops: are the replicas identical in the end?"""
    torch.set_num_threads(1)
    return {
        "pytorch's optimizer": ends_alike(world, sgd),
        "one with a state": ends_alike(world, adam),
        "groups": ends_alike(world, grouped),
        "the engine's optimizer": ends_alike(world, "sgd(momentum=0.9)"),
        "an algorithm in Python": ends_alike(world, sgd, Momentum()),
        "clipping": ends_alike(world, sgd, step=clipped),
        "a scaled loss": ends_alike(world, sgd, step=scaled()),
        "buffers": ends_alike(world, sgd, model=with_statistics),
        "16 bits": ends_alike(world, "sgd", model=lambda: Halves(digits.model().bfloat16())),
    }


class Halves(nn.Module):
    """A model in 16 bits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``(batch, 10)`` for x of ``(batch, 64)``."""
        return self.net(x.bfloat16())


def refused(world) -> str | None:
    """Normalizes over all ranks, one of which may have no data; returns the error."""
    net = sync_batch_norm(with_statistics(), world)
    try:
        DataParallel(net, sgd(net), process_group=world, uneven=True)
    except hexagram.UsageError as error:
        return str(error)
    return None
