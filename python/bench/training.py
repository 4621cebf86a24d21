"""Times a training step with the engine, with a DDP hook and with DDP on Gloo, and a bare all-reduce of the gradients.

    python python/bench/training.py [--width 1448] [--steps 30]

Two ranks train a net of three layers, 8.4 M parameters by default, in rounds of two steps of each kind, so that other
work on the machine affects all alike. The output has medians in milliseconds, of the step and of the processor time of
all threads of rank 0. "bare" makes the passes and the optimizer step, with one all-reduce in between of registered
memory of the size of all gradients: the minimum for a step without overlap. "copied" does the same with the gradients
themselves, each copied there once it is complete, like the engine and DDP. Kinds that begin with "python" are the
engine with an algorithm in Python, next to its twin in Rust; their ratio is printed, too: the median of the ratios of
single rounds.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hexagram
from hexagram.testing import spawn
from hexagram.torch import Algorithm, DataParallel, hook

Step = Callable[[], None]


class Mean(Algorithm):
    """Mean of the gradients."""

    keeps_replicas_identical = True

    def gradients_ready(self, context, state, bucket):
        """Replaces the gradients of a bucket by their mean."""
        context.mean(bucket.gradients)


class LocalSgd(Algorithm):
    """Mean of the parameters after every second step."""

    def after_step(self, context, state, bucket):
        """Replaces the parameters of a bucket by their mean."""
        if context.step % 2:
            context.mean(bucket.parameters)


#: Algorithms in Python, each with its twin in Rust.
TWINS = {"python mean": "engine", "python local": "local-sgd"}


def made(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns a net and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    return net, torch.optim.SGD(net.parameters(), 0.01)


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, between: Step = lambda: None) -> Step:
    """Returns a training step: passes, the part in between, and the optimizer step."""

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        between()
        optimizer.step()

    return step


def copied(net: nn.Module, memory: hexagram.Memory) -> None:
    """Copies every gradient to its part of `memory` once it is complete, and keeps it there."""
    parts = torch.from_dlpack(memory).split([parameter.numel() for parameter in net.parameters()])
    for parameter, part in zip(net.parameters(), parts, strict=True):
        view = part.view_as(parameter)

        def copy(complete: torch.Tensor, view: torch.Tensor = view) -> None:
            view.copy_(complete.grad)
            complete.grad = view

        parameter.register_post_accumulate_grad_hook(copy)


def kinds(world: hexagram.World, width: int) -> dict[str, Step]:
    """Returns a step of each kind, by name."""
    x = torch.randn(32, width)
    comm = world.communicator
    net, optimizer = made(width)
    memory = comm.registered("f32", sum(parameter.numel() for parameter in net.parameters()))
    steps = {
        "local": trained(net, optimizer, x),
        "bare": trained(net, optimizer, x, lambda: comm.all_reduce(memory, "mean")),
    }
    net, optimizer = made(width)
    gradients = comm.registered("f32", len(memory))
    copied(net, gradients)
    steps["copied"] = trained(net, optimizer, x, lambda: comm.all_reduce(gradients, "mean"))
    algorithms = {
        "engine": "gradient-allreduce",
        "python mean": Mean(),
        "local-sgd": "local-sgd(period=2)",
        "python local": LocalSgd(),
        "bytegrad": "bytegrad",
    }
    for name, algorithm in algorithms.items():
        net, optimizer = made(width)
        steps[name] = trained(DataParallel(net, optimizer, algorithm, process_group=world), optimizer, x)
    for name in ("ddp gloo", "ddp hook"):
        net, optimizer = made(width)
        ddp = DistributedDataParallel(net)
        if name == "ddp hook":
            ddp.register_comm_hook(*hook("gradient-allreduce", process_group=world))
        steps[name] = trained(ddp, optimizer, x)
    return steps


def used() -> float:
    """Returns the processor time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(world: hexagram.World, folder: str, width: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """Returns the times of two steps of each kind in every round, and the processor times in them, in seconds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=world.rank, world_size=world.size)
    steps = kinds(world, width)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for at in range(count + 5):
        for name, step in steps.items():
            world.communicator.barrier()
            begun, before = time.perf_counter(), used()
            step()
            step()
            if at >= 5:
                times[name].append((time.perf_counter() - begun, used() - before))
    dist.destroy_process_group()
    return times


def main() -> None:
    """Runs the ranks and prints the medians of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1448)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = spawn(2, timed, folder, options.width, options.steps, timeout=3600.0, deadline=300.0)[0]
    for name, of in times.items():
        wall, processors = (1e3 * median(part) / 2 for part in zip(*of, strict=True))
        print(f"{name:13} {wall:8.2f} ms, {processors:8.2f} ms of processors")
    for name, twin in TWINS.items():
        ratios = [python[0] / rust[0] for python, rust in zip(times[name], times[twin], strict=True)]
        print(f"{name} takes {median(ratios):.2f} times as long as {twin}")


if __name__ == "__main__":
    main()
