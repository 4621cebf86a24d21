"""Programs of ranks in the tests of unusual loops: each runs as a rank in a separate process, some of them alone."""

from __future__ import annotations

from collections.abc import Callable

import digits
import torch
from refusal_programs import refusal
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import hexagram
from hexagram.testing import alone
from hexagram.torch.data_parallel import DataParallel


def sgd(parameters, rate: float = 0.1) -> torch.optim.SGD:
    """Returns a PyTorch optimizer."""
    return torch.optim.SGD(parameters, rate)


def identical(world: hexagram.World, net: nn.Module) -> bool:
    """Returns whether all ranks have the same parameters, bit for bit."""
    mine = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    first = mine.clone()
    world.communicator.broadcast(first, 0)
    equal = torch.tensor([int(torch.equal(mine, first))], dtype=torch.int32)
    world.communicator.all_reduce(equal, "min")
    return bool(equal.item())


def loss(ours: Callable[[Tensor], Tensor], rank: int = 0, step: int = 0) -> Tensor:
    """Returns the loss of a batch of a rank."""
    images, labels, _, _ = digits.load()
    index = torch.arange(16) * 2 + rank + 50 * step
    return cross_entropy(ours(images[index]), labels[index])


def watched(world) -> tuple[list[int], list[bool]]:
    """Reads the number of steps within each step; returns the numbers, and whether replicas stay identical."""
    net = digits.model()
    ours = DataParallel(net, sgd(net.parameters()), "local-sgd(period=1)", process_group=world)
    numbers, are_one = [], []
    for step in range(3):
        numbers.append(ours.steps)
        loss(ours, world.rank, step).backward()
        numbers.append(ours.steps)
        ours.optimizer.step()
        numbers.append(ours.steps)
        ours.optimizer.zero_grad()
        are_one.append(identical(world, net))
    ours.close()
    return numbers, are_one


def by_turns() -> tuple[list[int], list[bool]]:
    """Trains a model of 16 bits with two optimizers, in the first pass with one of them only, and with its own loop.

    Returns the number of steps when one of two has stepped, and whether the parameters of each step stay.
    """
    with alone() as world:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
        both = [sgd(layer.parameters(), 1.0) for layer in net]
        ours = DataParallel(net, both, "local-sgd(period=1)", process_group=world)
        x = torch.ones(2, 4, dtype=torch.bfloat16)
        numbers, stay = [], []
        for optimizers in (both[:1], both):
            ours(x).sum().backward()
            for at, optimizer in enumerate(optimizers):
                optimizer.step()
                if at == 0:
                    numbers.append(ours.steps)
            stepped = [parameter.detach().clone() for parameter in net.parameters()]
            ours.settle()
            stay.append(all(map(torch.equal, stepped, net.parameters())))
        numbers.append(ours.steps)
        ours.close()

        own = DataParallel(net, None, "local-sgd(period=1)", process_group=world)
        own(x).sum().backward()
        with torch.no_grad():
            stepped = [parameter.sub_(1.0).clone() for parameter in net.parameters()]
        own.settle()
        stay.append(all(map(torch.equal, stepped, net.parameters())))
        own.close()
        return numbers, stay


class Checkpointed(nn.Module):
    """A model whose last layer is recomputed in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 16)
        self.last = nn.Linear(16, 10)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``(batch, 10)`` for x of ``(batch, 64)``."""
        return checkpoint(self.last, self.first(x), use_reentrant=self.use_reentrant)


def checkpointed() -> tuple[str | None, bool]:
    """Recomputes layers in a nested pass, and in the pass itself; returns the error, and if the result is right."""
    with alone() as world:
        net = Checkpointed(use_reentrant=True)
        ours = DataParallel(net, sgd(net.parameters()), process_group=world, unused="zero")
        told = refusal(lambda: loss(ours).backward())
        # The model can be trained nevertheless.
        net.use_reentrant = False
        ours.optimizer.zero_grad()
        loss(ours).backward()
        found = [parameter.grad.clone() for parameter in net.parameters()]
        ours.close()
        net.zero_grad()
        loss(net).backward()
        return told, all(torch.equal(*pair) for pair in zip(found, (one.grad for one in net.parameters()), strict=True))


def fails(world) -> tuple[list[str | None], int | None, str]:
    """An exception leaves the backward pass of rank 0: returns its later errors, and those that rank 1 reports."""
    net = digits.model()
    ours = DataParallel(net, sgd(net.parameters()), process_group=world, first_bucket_bytes=1, bucket_bytes=1)
    loss(ours, world.rank).backward()
    ours.optimizer.step()
    if world.rank == 1:
        try:
            loss(ours, world.rank).backward()
        except hexagram.PeerFailed as error:
            return [], error.rank, error.cause
        return [], None, ""
    net[1].register_full_backward_hook(fail)
    try:
        loss(ours, world.rank).backward()
    except ValueError:
        pass
    told = [refusal(call) for call in (lambda: loss(ours), ours.settle, ours.checkpoint, lambda: ours.switch("sgp"))]
    ours.close()
    return told, None, ""


def fail(*_: object) -> None:
    """Raises an unexpected error in a backward pass."""
    raise ValueError("no gradient")


def wrapped_again() -> dict[str, object]:
    """Trains a model with one DataParallel after another, and with two at the same time; returns the results."""
    told: dict[str, object] = {}
    with alone() as world:
        net = digits.model()
        optimizer = sgd(net.parameters())
        hooks = hooks_of(net, optimizer)
        for overlap, own in (("backward", optimizer), ("forward", "sgd")):
            options = {"overlap": overlap, "learning_rate": 0.1, "process_group": world}
            ours = DataParallel(net, own, **options)
            told[f"hooks, {overlap}"] = hooks_of(net, optimizer) > hooks
            told[f"a second one, {overlap}"] = refusal(lambda options=options: DataParallel(net, "sgd", **options))
            loss(ours).backward()
            ours.optimizer.step()
            ours.close()
            told[f"no hooks, {overlap}"] = hooks_of(net, optimizer) == hooks
            told[f"a closed one, {overlap}"] = refusal(lambda ours=ours: loss(ours))
            ours.eval()
            told[f"evaluates, {overlap}"] = loss(ours).isfinite().item()
            ours.close()
        net.zero_grad()
        loss(net).backward()
        told["goes on alone"] = all(parameter.grad is not None for parameter in net.parameters())
    return told


def hooks_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Returns the number of hooks of a model and its optimizer."""
    of_parameters = [len(parameter._post_accumulate_grad_hooks or ()) for parameter in net.parameters()]
    of_modules = [len(module._forward_pre_hooks) for module in net.modules()]
    return sum(of_parameters) + sum(of_modules) + len(optimizer._optimizer_step_post_hooks)


def untied() -> tuple[list[str | None], bool]:
    """Trains parameters in shared memory; returns the errors if refused, and whether separate memory works."""
    with alone() as world:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        net[1].weight = nn.Parameter(net[0].weight.data)
        told = [
            refusal(lambda: DataParallel(net, sgd(net.parameters()), "local-sgd", process_group=world)),
            refusal(lambda: DataParallel(net, "sgd", learning_rate=0.1, process_group=world)),
        ]
        ours = DataParallel(net, sgd(net.parameters()), process_group=world)
        ours(torch.ones(2, 4)).sum().backward()
        ours.optimizer.step()
        ours.close()
        return told, torch.equal(net[0].weight, net[1].weight)


def one_after_another(world) -> dict:
    """Runs the programs of two ranks; returns the result of each, by name."""
    torch.set_num_threads(1)
    # Ranks cannot continue after the error that the last one provokes.
    return {program.__name__: program(world) for program in (watched, fails)}
