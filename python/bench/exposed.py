"""Exposed communication of training steps with the engine, with DDP hooks and with DDP on Gloo, in one run, in turns.

    python python/bench/exposed.py                                          2 ranks on this host
    bench/hosts 4 1gbit python python/bench/exposed.py                      one of 4 ranks on separate hosts
    python python/bench/exposed.py --steps 16 --rounds 3 --only engine forward

The model has 8 layers of 1024 × 1024 with ReLU, 8.4 M parameters in f32; batches of 32, plain SGD, one thread per rank.
In each round every kind makes the same number of steps, after a few that do not count. The time of a step is that of
the slowest rank, and its processor time that of all threads of the rank that used most. The output has medians over the
rounds, and *exposed*: the time of a step minus that of `local` in the same round, compared with DDP on Gloo.

    local      passes and optimizer, no communication
    adam       the same with Adam of PyTorch, for the computation of `qadam`
    bare       with one all-reduce of all gradients in registered memory in between, without overlap
    ddp ...    DDP of PyTorch: on Gloo, on hexagram, on Gloo with a hook of hexagram
    engine     `DataParallel` with a PyTorch optimizer
    own        the same with the engine optimizer; forward: with overlap="forward"
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hexagram
from hexagram.testing import spawn
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.hooks import hook

WIDTH, DEPTH, BATCH, WARMUP, RATE = 1024, 8, 32, 6, 1e-6

#: Kinds that use the engine: own optimizer or not, algorithm, overlap.
ENGINE = {
    "engine": (False, "gradient-allreduce", None),
    "own": (True, "gradient-allreduce", None),
    "forward": (True, "gradient-allreduce", "forward"),
    "bytegrad": (True, "bytegrad", None),
    "bytegrad forward": (True, "bytegrad", "forward"),
    "qadam": (True, "qadam(warmup=4)", None),
    "qadam forward": (True, "qadam(warmup=4)", "forward"),
    "local-sgd": (True, "local-sgd(period=16)", None),
    "local-sgd forward": (True, "local-sgd(period=16)", "forward"),
    "async-model-average": (True, "async-model-average", None),
}
KINDS = ("local", "adam", "bare", "ddp gloo", "ddp hexagram", "ddp hook", *ENGINE)

Step = Callable[[], None]
#: Time of a step and processor time in it, in milliseconds: one pair per round.
Times = list[tuple[float, float]]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns a net and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    return net, torch.optim.SGD(net.parameters(), RATE)


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, between: Step = lambda: None) -> Step:
    """Returns a training step: passes, the part in between, and the optimizer step."""
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        between()
        optimizer.step()

    return step


@contextmanager
def step_of(kind: str, world: hexagram.World, groups: dict[str, dist.ProcessGroup]) -> Iterator[Step]:
    """Makes a step of a kind, and completes its unfinished work."""
    net, optimizer = made()
    if kind == "local":
        yield trained(net, optimizer)
    elif kind == "adam":
        yield trained(net, torch.optim.Adam(net.parameters(), RATE))
    elif kind == "bare":
        memory = world.communicator.registered("f32", sum(parameter.numel() for parameter in net.parameters()))
        yield trained(net, optimizer, lambda: world.communicator.all_reduce(memory, "mean"))
    elif kind.startswith("ddp"):
        ddp = DistributedDataParallel(net, process_group=groups.get(kind))
        if kind != "ddp hook":
            yield trained(ddp, optimizer)
            return
        state, function = hook("gradient-allreduce", process_group=world)
        ddp.register_comm_hook(state, function)
        yield trained(ddp, optimizer)
        state.close()
    else:
        own, algorithm, overlap = ENGINE[kind]
        ours = DataParallel(
            net, "sgd" if own else optimizer, algorithm, learning_rate=RATE, process_group=world, overlap=overlap
        )
        yield trained(ours, ours.optimizer)
        ours.settle()
        ours.close()


def used() -> float:
    """Returns the processor time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(kind: str, world: hexagram.World, groups: dict[str, dist.ProcessGroup], count: int) -> tuple[float, float]:
    """Returns the mean time of a step and processor time in it, in milliseconds: the longest of all ranks."""
    with step_of(kind, world, groups) as step:
        for _ in range(WARMUP):
            step()
        world.communicator.barrier()
        begun, before = time.perf_counter(), used()
        for _ in range(count):
            step()
        taken = torch.tensor([time.perf_counter() - begun, used() - before]) * 1e3 / count
    world.communicator.all_reduce(taken, "max")
    wall, processors = taken.tolist()
    return wall, processors


def run(world: hexagram.World, kinds: list[str], rounds: int, count: int) -> dict[str, Times]:
    """Returns the times of all kinds, one per round. The default process group must be one of Gloo."""
    torch.set_num_threads(1)
    groups = {"ddp hexagram": dist.new_group(backend="hexagram")} if "ddp hexagram" in kinds else {}
    times: dict[str, Times] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, of in times.items():
            of.append(timed(kind, world, groups, count))
            if world.rank == 0 and "RANK" in os.environ:
                print(f"  {kind}: {of[-1][0]:.1f} ms", flush=True)
    return times


def of_rank(world: hexagram.World, folder: str, kinds: list[str], rounds: int, count: int) -> dict[str, Times]:
    """Runs one rank of this host."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=world.rank, world_size=world.size)
    times = run(world, kinds, rounds, count)
    dist.destroy_process_group()
    return times


def tell(all_times: dict[str, Times]) -> None:
    """Prints the table."""
    times = {name: [wall for wall, _ in of] for name, of in all_times.items()}
    processors = {name: median(own for _, own in of) for name, of in all_times.items()}
    local, ddp = times["local"], times.get("ddp gloo")
    exposed = {name: [a - b for a, b in zip(of, local, strict=True)] for name, of in times.items()}
    head = f"{'':20} {'step':>9} {'processors':>13} {'exposed':>9} {'of the local':>12}"
    print(f"{head} {'of DDP on Gloo, by rounds':>26}")
    for name, of in times.items():
        share = median(exposed[name]) / median(local)
        text = f"{name:20} {median(of):6.1f} ms {processors[name]:10.1f} ms {median(exposed[name]):6.1f} ms"
        text += f" {100 * share:10.1f} %"
        if ddp is not None and name != "local":
            ratios = sorted(a / b for a, b in zip(exposed[name], exposed["ddp gloo"], strict=True))
            text += f" {median(ratios):10.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(text)


def main() -> None:
    """Runs as the rank in the environment, or starts two ranks; rank 0 prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=32, help="of each kind and round; whole periods of 16")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    kinds = ["local", *(kind for kind in options.only if kind != "local")]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        from hexagram.torch.default_world import world_of

        times = run(world_of(), kinds, options.rounds, options.steps)
        if dist.get_rank() == 0:
            tell(times)
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        tell(spawn(2, of_rank, folder, kinds, options.rounds, options.steps, timeout=3600.0)[0])


if __name__ == "__main__":
    main()
