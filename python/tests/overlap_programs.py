"""Programs of ranks in the tests of communication during the next forward pass: each runs in a separate process."""

from __future__ import annotations

import copy
import io
import os
import signal
import warnings
from collections.abc import Callable, Iterator

import digits
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

import hexagram
from hexagram.torch.algorithm import Algorithm
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.overlap import Arriving, ArrivingParameter

STEPS = 5
#: A bucket for each parameter.
SMALL = {"first_bucket_bytes": 1, "bucket_bytes": 1}
#: By name: the algorithms under test that allow it, with the optimizer.
ALGORITHMS = {
    "gradient-allreduce": "adamw",
    "bytegrad": "sgd(momentum=0.9)",
    "topk-ef(fraction=5%)": "sgd",
    "local-sgd(period=2)": "sgd(momentum=0.9)",
    "choco-sgd": "sgd",
    "slowmo(period=2)": "sgd",
    "qadam(warmup=2)": "sgd",
    "muloco(period=2)": None,
}


class Tangled(nn.Module):
    """A model whose weights are used in all unusual ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 16)
        self.twice = nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.uncalled = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.twice.weight
        self.last = nn.Linear(16, 10)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``(batch, 10)`` for x of ``(batch, 64)``."""
        x = relu(self.twice(relu(self.twice(self.first(x)))))
        x = self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        x = linear(self.norm(x) * self.scale, self.uncalled.weight, self.uncalled.bias)
        return self.last(relu(self.tied(x)))


class Halves(nn.Module):
    """A model in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = digits.model().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``(batch, 10)`` for x of ``(batch, 64)``."""
        return self.net(x.bfloat16())


def pairs(world: hexagram.World, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields `count` batches of this rank."""
    images, labels, _, _ = digits.load()
    batches = iter(digits.batches(world.rank, world.size, 1000))
    for _ in range(count):
        index = next(batches)
        yield images[index], labels[index]


def values(net: nn.Module) -> list[Tensor]:
    """Returns copies of all parameters and buffers."""
    return [value.detach().clone() for value in net.state_dict().values()]


def equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    """Returns whether tensors are equal, bit for bit."""
    return len(ones) == len(others) and all(torch.equal(*pair) for pair in zip(ones, others, strict=True))


def made(world, net, overlap, algorithm="gradient-allreduce", optimizer="sgd(momentum=0.9)", **options):
    """Returns a model under the engine."""
    rate = 0.002 if algorithm.startswith("qadam") else 0.05
    options = SMALL | options
    return DataParallel(net, optimizer, algorithm, learning_rate=rate, process_group=world, overlap=overlap, **options)


def plain(ours: DataParallel, batches: list) -> None:
    """Makes a step on each batch."""
    for x, y in batches:
        ours.optimizer.zero_grad()
        cross_entropy(ours(x), y).backward()
        ours.optimizer.step()


def accumulating(ours: DataParallel, batches: list) -> None:
    """Makes a step on every two batches, and keeps the memory of the gradients."""
    for at, (x, y) in enumerate(batches):
        if at % 2 == 0:
            ours.optimizer.zero_grad(set_to_none=False)
            with ours.no_sync():
                cross_entropy(ours(x), y).backward()
        else:
            cross_entropy(ours(x), y).backward()
            ours.optimizer.step()


def clipping(ours: DataParallel, batches: list) -> None:
    """Clips gradients between the backward pass and the step, and evaluates after each step."""
    for x, y in batches:
        ours.zero_grad()
        cross_entropy(ours(x), y).backward()
        clip_grad_norm_(ours.parameters(), 0.1)
        ours.optimizer.step()
        ours.eval()
        with torch.no_grad():
            # Would give another loss with parameters of another step.
            x = x + ours(x).mean()
        ours.train()


def trained(world, overlap: str, model: Callable, loop: Callable = plain, **options) -> list[Tensor]:
    """Trains a model; returns its final state."""
    net = model()
    ours = made(world, net, overlap, **options)
    loop(ours, list(pairs(world, STEPS + 1)))
    ours.settle()
    found = values(net)
    ours.close()
    return found


def same(world) -> dict[str, bool]:
    """Trains in many ways, with communication during the forward pass and without: equal, bit for bit?"""
    torch.set_num_threads(1)
    cases = {f"{name}": {"model": Tangled, "algorithm": name, "optimizer": own} for name, own in ALGORITHMS.items()}
    cases["one bucket"] = {"model": Tangled, "bucket_bytes": 1 << 20, "first_bucket_bytes": 1 << 20}
    cases["accumulating"] = {"model": Tangled, "loop": accumulating}
    cases["clipping"] = {"model": Tangled, "loop": clipping}
    cases["16 bits"] = {"model": Halves}
    cases["16 bits, clipping"] = {"model": Halves, "loop": clipping}
    cases["16 bits, local-sgd"] = {"model": Halves, "algorithm": "local-sgd(period=2)"}
    cases["loss scale"] = {"model": digits.model, "loss_scale": 1.0}
    cases["listed order"] = {"model": Tangled, "order": "listed"}
    told = {}
    for name, case in cases.items():
        told[name] = equal(trained(world, "forward", **case), trained(world, "backward", **case))
    return told


def compiled(world) -> dict[str, bool]:
    """Trains models that are compiled in several ways, or scripted: equal to the training without?"""
    torch.set_num_threads(1)

    def part() -> nn.Module:
        net = digits.model()
        net[0] = torch.compile(net[0], backend="eager")
        return net

    def in_place() -> nn.Module:
        net = digits.model()
        net[0].compile(backend="eager")
        return net

    def outside(ours: DataParallel, batches: list) -> None:
        own = torch.compile(ours, backend="eager")
        for x, y in batches:
            ours.optimizer.zero_grad()
            cross_entropy(own(x), y).backward()
            ours.optimizer.step()

    def functional(ours: DataParallel, batches: list) -> None:
        first, last = ours.module[0], ours.module[2]

        @torch.compile(backend="eager")
        def whole(x: Tensor) -> Tensor:
            return linear(relu(linear(x, first.weight, first.bias)), last.weight, last.bias)

        for x, y in batches:
            ours.optimizer.zero_grad()
            cross_entropy(whole(x), y).backward()
            ours.optimizer.step()

    def step(ours: DataParallel, batches: list) -> None:
        @torch.compile(backend="eager")
        def whole(x: Tensor, y: Tensor) -> None:
            ours.optimizer.zero_grad()
            cross_entropy(ours(x), y).backward()
            ours.optimizer.step()

        for batch in batches:
            whole(*batch)

    ways: dict[str, dict] = {
        "all": {"model": lambda: torch.compile(digits.model(), backend="eager")},
        "a part": {"model": part},
        "in place": {"model": in_place},
        "scripted": {"model": lambda: torch.jit.script(digits.model())},
        "outside": {"model": digits.model, "loop": outside},
        "a function": {"model": digits.model, "loop": functional},
    }
    expected = trained(world, "backward", digits.model)
    told = {name: equal(trained(world, "forward", **way), expected) for name, way in ways.items()}
    # The compiler skips the engine, and gives no warning about it.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        told["a step"] = equal(trained(world, "backward", digits.model, loop=step), expected)
    told["without a warning"] = not any("Dynamo" in str(warning.message) for warning in said)
    return told


def waits(world) -> dict[str, bool]:
    """Reads unfinished work after a step, and checks which accesses wait for it."""
    torch.set_num_threads(1)
    net = digits.model()
    ours = made(world, net, "forward")
    batches = list(pairs(world, 8))
    plain(ours, batches[:2])
    first, last = net[0].weight, net[2].weight
    told = {}

    def arriving(*tensors: Tensor) -> bool:
        return all(isinstance(tensor, (Arriving, ArrivingParameter)) for tensor in tensors)

    def here(*tensors: Tensor) -> bool:
        return not any(isinstance(tensor, (Arriving, ArrivingParameter)) for tensor in tensors)

    told["a step leaves all"] = arriving(*net.parameters(), first.grad, last.grad)
    told["what needs no values"] = first.shape == (64, 64) and first.requires_grad and first.grad.numel() == 4096
    told["is a parameter"] = isinstance(first, nn.Parameter) and arriving(first)
    ours.optimizer.zero_grad()
    told["zero_grad"] = first.grad is None and arriving(first, last)
    net[0](batches[0][0])
    told["the first module"] = here(*net[0].parameters()) and arriving(*net[2].parameters())
    net[2](torch.ones(1, 64))
    told["the last module"] = here(*net.parameters()) and type(first) is nn.Parameter
    plain(ours, batches[2:3])
    told["the backward pass"] = arriving(*net.parameters())
    cross_entropy(ours(batches[3][0]), batches[3][1]).backward()
    told["gradients before the step"] = arriving(first.grad, last.grad) and arriving(first)
    ours.optimizer.step()
    with torch.no_grad():
        net[0](batches[0][0])
    told["evaluation"] = here(*net.parameters())
    plain(ours, batches[4:5])
    return told


def readers(world) -> dict[str, bool]:
    """Reads parameters after a step in many ways: are they those of the training without overlap?"""
    torch.set_num_threads(1)

    def unpickled(net: nn.Module) -> list[Tensor]:
        file = io.BytesIO()
        torch.save(list(net.parameters()), file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    ways: dict[str, Callable[[nn.Module], list[Tensor]]] = {
        "state_dict": lambda net: list(net.state_dict().values()),
        "vector": lambda net: [parameters_to_vector(net.parameters())],
        "data": lambda net: [parameter.data for parameter in net.parameters()],
        "detach": lambda net: [parameter.detach() for parameter in net.parameters()],
        "numpy": lambda net: [torch.from_numpy(parameter.detach().numpy()) for parameter in net.parameters()],
        "dlpack": lambda net: [torch.from_dlpack(parameter.detach()) for parameter in net.parameters()],
        "copy": lambda net: list(copy.deepcopy(net).parameters()),
        "list": lambda net: [torch.tensor(parameter.tolist()) for parameter in net.parameters()],
        "item": lambda net: [torch.tensor([float(parameter.detach().flatten()[0]) for parameter in net.parameters()])],
        "pickle": unpickled,
        "foreach": lambda net: list(torch._foreach_mul(list(net.parameters()), 2.0)),
        "gradients": lambda net: [parameter.grad * 1 for parameter in net.parameters()],
        "gradient bytes": lambda net: [torch.from_numpy(parameter.grad.numpy()) for parameter in net.parameters()],
        "in place": lambda net: [parameter.data.mul_(2.0) for parameter in net.parameters()],
    }
    told = {}
    for name, read in ways.items():
        seen = []
        for overlap in ("forward", "backward"):
            net = digits.model()
            ours = made(world, net, overlap)
            plain(ours, list(pairs(world, 3)))
            seen.append([tensor.detach().clone() for tensor in read(net)])
            # Training continues from there after any read.
            plain(ours, list(pairs(world, 2)))
            seen[-1] += values(net)
            ours.close()
        told[name] = equal(*seen)
    return told


class Nothing(Algorithm):
    """An algorithm in Python."""


def refused(world) -> list[str]:
    """Makes unsupported requests; returns the errors."""
    said = []
    net = digits.model()
    cases = [
        (torch.optim.SGD(net.parameters(), 0.1), "gradient-allreduce"),
        ("sgd", Nothing()),
        ("sgd", "decentralized"),
        ("sgd", "async-model-average"),
    ]
    for optimizer, algorithm in cases:
        try:
            DataParallel(net, optimizer, algorithm, learning_rate=0.1, process_group=world, overlap="forward")
        except hexagram.UsageError as error:
            said.append(str(error))
    return said


def resumed(world) -> bool:
    """Continues from a checkpoint: equal to the uninterrupted training?"""
    torch.set_num_threads(1)
    batches = list(pairs(world, 8))
    net = digits.model()
    ours = made(world, net, "forward", optimizer="adamw")
    plain(ours, batches[:4])
    state = ours.checkpoint()
    plain(ours, batches[4:])
    expected = values(net)
    net = digits.model(1)
    again = made(world, net, "forward", optimizer="adamw")
    again.restore(state)
    plain(again, batches[4:])
    return equal(values(net), expected)


def switched(world) -> bool:
    """Changes the algorithm, evaluates the mean and averages during the training: as without?"""
    found = []
    for overlap in ("forward", "backward"):
        net = digits.model()
        ours = made(world, net, overlap)
        batches = list(pairs(world, 8))
        plain(ours, batches[:3])
        ours.switch("local-sgd(period=3)")
        plain(ours, batches[3:5])
        mean, _ = ours.evaluate_mean(lambda net=net: values(net))
        plain(ours, batches[5:])
        ours.average()
        found.append(mean + values(net))
    return equal(*found)


def tuned(world) -> dict[str, bool]:
    """Trains while the engine recreates its buckets: equal to the training in whole buckets?"""
    torch.set_num_threads(1)
    told = {}
    for name, model in {"32 bits": digits.model, "16 bits": Halves}.items():
        found, generations = [], []
        # 20 steps warm up, and 11 use the present buckets; autotune then tries others, and may keep the present ones.
        batches = list(pairs(world, 45))
        for overlap, autotune in (("forward", True), ("backward", False)):
            net = model()
            ours = made(world, net, overlap, autotune=autotune)
            plain(ours, batches)
            ours.settle()
            found.append(values(net))
            generations.append(ours._views.generation)
            ours.close()
        told[name] = equal(*found)
        told[f"{name} are cut anew"] = generations[0] > generations[1]
    return told


def killed(world) -> int | None:
    """Rank 1 dies with a step in progress; returns the rank that the others report."""
    net = digits.model()
    ours = made(world, net, "forward")
    batches = list(pairs(world, 200))
    plain(ours, batches[:3])
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        plain(ours, batches[3:])
    except hexagram.PeerFailed as error:
        return error.rank
    return None


def one_after_another(world) -> dict:
    """Runs all programs; returns the result of each, by name."""
    programs = (same, waits, readers, resumed, switched)
    return {program.__name__: program(world) for program in programs}
