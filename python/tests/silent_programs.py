"""What ranks do in the tests of what was wrong without a word: each program is a rank of its own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import hexagram
from hexagram.torch.algorithm import Algorithm
from hexagram.torch.data_parallel import DataParallel

#: Optimizers of PyTorch by a name, and the spellings of the engine's.
OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": lambda net: SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda net: AdamW(net.parameters(), 0.01),
    "the engine's": lambda net: "adamw",
}


class Averaging(Algorithm):
    """Local SGD in Python."""

    def after_step(self, context, state, bucket):
        """Averages the parameters after every second step."""
        if context.step % 2:
            context.mean(bucket.parameters)


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns a small net, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns this rank's samples of a step."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1 + rank + 10 * step)).to(dtype)


def flat(model: nn.Module) -> Tensor:
    """Returns a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def wrapped(model: nn.Module, kind: str, algorithm: Any, world, **options: Any) -> DataParallel:
    """Returns a model under the engine, with an optimizer of `OPTIMIZERS`."""
    optimizer = OPTIMIZERS[kind](model)
    rate = 0.01 if isinstance(optimizer, str) else None
    return DataParallel(model, optimizer, algorithm, world=world, learning_rate=rate, **options)


def told_by(call: Callable[[], Any]) -> str | None:
    """Returns the error of a call, with its class; None if there is none."""
    try:
        call()
    except hexagram.Error as error:
        return f"{type(error).__name__}: {error}"
    return None


def scaled(world, kind: str, algorithm: Any, overflows: int | None, dtype: torch.dtype) -> tuple:
    """Trains with the option `loss_scale`; rank 1 overflows in one step."""
    ours = wrapped(net(dtype=dtype), kind, algorithm, world, loss_scale=2.0)
    left = []
    for step in range(5):
        is_over = step == overflows
        if step == 2 and overflows is None:
            continue
        before = flat(ours)
        ours.optimizer.zero_grad()
        loss = ours(batch(world.rank, step, dtype)).pow(2).mean()
        ours.scale_loss(loss * (float("inf") if is_over and world.rank == 1 else 1.0)).backward()
        if is_over:
            left = [ours.overflowed, all(one.grad is None for one in ours.parameters())]
        ours.optimizer.step()
        if is_over:
            left.append(torch.equal(before, flat(ours)))
    told = flat(ours), ours.steps, left
    ours.close()
    return told


def overflows(world):
    """Overflows with every kind of optimizer and algorithm: what is left of that step, and is the training one without?"""
    told = {}
    algorithms = ("gradient-allreduce", "bytegrad", "local-sgd(period=2)", "d-psgd", Averaging())
    cases = [(kind, algorithm, torch.float32) for kind in OPTIMIZERS for algorithm in algorithms]
    for kind, algorithm, dtype in [*cases, ("the engine's", "gradient-allreduce", torch.bfloat16)]:
        with_it, steps, left = scaled(world, kind, algorithm, 2, dtype)
        without, as_many, _ = scaled(world, kind, algorithm, None, dtype)
        # The scale is halved by it, which changes no bit.
        told[f"{kind} {algorithm} {dtype}"] = (left, torch.equal(with_it, without), steps == as_many == 4)
    return told


def with_a_gap(world, kind: str, algorithm: Any, gap: str) -> tuple[Tensor, int]:
    """Trains five steps, of which the third overflows under a GradScaler, is left out by the loop, or is not there."""
    ours = wrapped(net(), kind, algorithm, world)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=gap == "scaler")
    for step in range(5):
        if step == 2 and gap == "not there":
            continue
        ours.optimizer.zero_grad()
        loss = ours(batch(world.rank, step)).pow(2).mean() * (float("inf") if step == 2 and gap == "scaler" else 1)
        scaler.scale(loss).backward()
        if step == 2 and gap == "left out":
            continue
        scaler.step(ours.optimizer)
        scaler.update()
    ours(batch(world.rank, 9))
    told = flat(ours), ours.steps
    ours.close()
    return told


def gaps(world):
    """Leaves steps out: is the training one without them, and how many steps does the engine count?"""
    told = {}
    for kind in OPTIMIZERS:
        for algorithm in ("gradient-allreduce", "local-sgd(period=1)"):
            expected, _ = with_a_gap(world, kind, algorithm, "not there")
            for gap in ("scaler", "left out"):
                trained, steps = with_a_gap(world, kind, algorithm, gap)
                told[f"{kind} {algorithm} {gap}"] = (torch.equal(trained, expected), steps)
    return told


def one_after_another(world):
    """Runs the programs of two ranks; returns what each returned, by its name."""
    torch.set_num_threads(1)
    programs = (overflows, gaps)
    return {program.__name__: program(world) for program in programs}
