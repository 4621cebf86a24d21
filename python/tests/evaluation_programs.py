"""Programs of ranks in the tests of the evaluation of the mean: each runs as a rank in a separate process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import digits
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hexagram
from hexagram.testing import alone
from hexagram.torch.data_parallel import DataParallel


def replicas(world: hexagram.World) -> tuple[nn.Module, DataParallel]:
    """Returns a net with batch normalization, and the net under the engine, after two different steps on each rank."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    ours = DataParallel(net, optimizer, "local-sgd(period=100)", process_group=world)
    for step in range(2):
        train(ours, world.rank, step)
    return net, ours


def train(ours: DataParallel, rank: int, step: int) -> None:
    """Makes one step on the samples of a rank."""
    ours.optimizer.zero_grad()
    loss(ours, rank, step).backward()
    ours.optimizer.step()


def loss(ours: Callable[[Tensor], Tensor], rank: int, step: int) -> Tensor:
    """Returns the loss of a batch of a rank."""
    images, labels, _, _ = digits.load()
    index = torch.arange(16) * 2 + rank + 50 * step
    return cross_entropy(ours(images[index]), labels[index])


def first(net: nn.Module) -> Tensor:
    """Returns a copy of the first parameter."""
    return next(net.parameters()).detach().clone()


def asked_meanwhile() -> tuple[dict[str, str | None], bool, bool]:
    """Makes many calls while the mean is evaluated; returns the error of each, and whether the rest is correct."""
    with alone() as world:
        net, ours = replicas(world)
        before = first(net)
        asked: dict[str, Callable[[], object]] = {
            "metrics": lambda: ours.metrics,
            "steps": lambda: ours.steps,
            "blocked": lambda: ours.blocked,
            "overflowed": lambda: ours.overflowed,
            "algorithm": lambda: ours.algorithm,
            "forward": lambda: loss(ours, 0, 2),
            "backward": lambda: loss(ours.module, 0, 2).backward(),
            "mean": lambda: ours.evaluate_mean(lambda: None),
            "checkpoint": ours.checkpoint,
        }
        told: dict[str, str | None] = {}

        def evaluate() -> bool:
            for name, ask in asked.items():
                told[name] = None
                try:
                    ask()
                except hexagram.UsageError as error:
                    told[name] = str(error)
            with torch.no_grad():
                return bool(loss(ours, 0, 2).isfinite())

        is_evaluated, _ = ours.evaluate_mean(evaluate)
        is_put_back = torch.equal(first(net), before)
        train(ours, 0, 2)
        return told, is_evaluated, is_put_back and ours.steps == 3


def interrupted(world: hexagram.World) -> tuple[bool, bool]:
    """Rank 0 is interrupted while it waits for the mean; then all evaluate it: right, and replicas restored?"""
    net, ours = replicas(world)
    ours.module.eval()
    before = first(net)
    signalled = torch.zeros(1)
    if world.rank == 0:
        sent = world.traffic[1]

        def interrupt() -> None:
            # Once it has sent its part, it waits for that of rank 1.
            while world.traffic[1] == sent:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            ours.evaluate_mean(lambda: None)
        except KeyboardInterrupt:
            signalled += 1
        world.communicator.send(signalled, 1)
    else:
        world.communicator.recv(signalled, 0)
        ours.evaluate_mean(lambda: None)
    is_put_back = torch.equal(first(net), before)
    mean, _ = ours.evaluate_mean(lambda: first(net))
    expected = before.clone()
    world.communicator.all_reduce(expected, "mean")
    return bool(signalled.item()), is_put_back and torch.allclose(mean, expected)
