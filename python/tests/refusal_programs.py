"""Programs of ranks in the tests of refusals by training: each runs as a rank in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import digits
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hexagram
from hexagram.testing import alone
from hexagram.torch.algorithm import Algorithm, Context
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.tensors import span


class Mean(Algorithm):
    """The mean of the gradients; records the learning rates that it received."""

    keeps_replicas_identical = True

    def __init__(self) -> None:
        self.decay = 0.5

    def state(self, context, bucket):
        """Returns a count of steps."""
        return torch.zeros(1)

    def gradients_ready(self, context, state, bucket):
        """Replaces gradients by their mean."""
        TOLD.append(context.learning_rate)
        context.mean(bucket.gradients)


#: Learning rates that `Mean` received in this process.
TOLD: list[float | None] = []


def flat(net: nn.Module) -> Tensor:
    """Returns a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def refusal(call: Callable[[], Any]) -> str | None:
    """Returns the error of a refused call; None if it succeeds."""
    try:
        call()
    except hexagram.UsageError as error:
        return str(error)
    return None


def sgd(net: nn.Module) -> torch.optim.SGD:
    """Returns a PyTorch optimizer for a net."""
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def train(ours: DataParallel, rank: int, steps: int) -> None:
    """Makes steps on the samples of a rank."""
    images, labels, _, _ = digits.load()
    for step in range(steps):
        index = torch.arange(16) * 2 + rank + 50 * step
        ours.optimizer.zero_grad()
        cross_entropy(ours(images[index]), labels[index]).backward()
        ours.optimizer.step()


def of_kinds(world):
    """Passes values of wrong kinds; returns the error of each."""
    net = digits.model()
    wrong = {
        "bucket_bytes": [0, -1, 1.5, "1M", True],
        "first_bucket_bytes": [0],
        "streams": [0, 99_999, "all"],
        "order": ["random", 1],
        "unused": ["maybe"],
        "buffers": [True],
        "hierarchical": ["no", 1],
        "clip_norm": [0, -1.0, float("nan"), "1"],
        "loss_scale": [0.0],
        "uneven": ["yes"],
        "seed": [-1, 1 << 64, 0.5],
        "autotune": [1],
        "overlap": ["none"],
        "learning_rate": [-0.1, float("inf"), "fast", torch.ones(2)],
        "algorithm": [3, Mean, None],
        "optimizer": [3, [], [3], torch.optim.SGD],
    }
    told = []
    for name, values in wrong.items():
        for value in values:
            given = {"optimizer": sgd(net), "process_group": world} | {name: value}
            told.append((name, refusal(lambda given=given: DataParallel(net, **given))))
    # Valid values succeed.
    ours = DataParallel(net, sgd(net), process_group=world, bucket_bytes=1, streams=65_535, seed=None, clip_norm=1)
    train(ours, world.rank, 1)
    ours.close()
    return told


def by_rates(world):
    """Ranks pass different learning rates; then a single rank passes one, without an optimizer."""
    net = digits.model()
    rate = 0.25 * (1 + world.rank)
    told = [refusal(lambda: DataParallel(net, "sgd", learning_rate=rate, process_group=world))]
    for algorithm in (Mean(), "demo"):
        ours = DataParallel(digits.model(), None, algorithm, learning_rate=0.25, process_group=world)
        images, labels, _, _ = digits.load()
        cross_entropy(ours(images[:8]), labels[:8]).backward()
        ours.close()
    return told, list(TOLD)


def of_models(world):
    """Trains models that cannot be trained; returns the error of each."""
    frozen = nn.Linear(2, 2).requires_grad_(False)
    sparse = nn.Linear(2, 2)
    sparse.weight = nn.Parameter(torch.eye(2).to_sparse_csr())
    buffered = nn.Linear(2, 2)
    buffered.register_buffer("mask", torch.eye(2).to_sparse())
    elsewhere = nn.Linear(2, 2)
    elsewhere.register_buffer("mask", torch.ones(2, 2, device="meta"))
    nets = frozen, sparse, buffered, elsewhere
    told = [refusal(lambda net=net: DataParallel(net, None, process_group=world)) for net in nets]
    return [*told, refusal(lambda: span(torch.ones(2, device="meta")))]


def in_place(world):
    """Averages tensors with gaps, or elements without a mean; returns the error of each, and a mean that is right."""
    context = Context(world.communicator)
    wide = torch.ones(4, 6)
    tensors = [
        wide.t(),
        wide[:, ::2],
        torch.ones(1).expand(3),
        torch.ones(3, dtype=torch.complex64),
        wide.to_sparse(),
        wide.to_sparse_csr(),
        torch.ones(3, dtype=torch.uint16),
    ]
    told = [refusal(lambda one=one, call=call: call(one)) for one in tensors for call in (context.mean, context.sum)]
    right = torch.full((3,), float(world.rank))
    context.mean(right)
    return told, right.tolist()


def of_traces(world):
    """Collects a trace that was not begun, and one that was, twice."""
    net = digits.model()
    ours = DataParallel(net, sgd(net), process_group=world)
    told = [refusal(ours.collect_trace)]
    ours.begin_trace()
    train(ours, world.rank, 1)
    report = ours.collect_trace()
    told.append(refusal(ours.collect_trace))
    ours.close()
    return told, report is not None


def without(name: str) -> Callable[[dict], dict]:
    """Returns a function that removes a part from a checkpoint."""
    return lambda state: {key: value for key, value in state.items() if key != name}


def changed(part: str, change: Callable[[Any], Any]) -> Callable[[dict], dict]:
    """Returns a function that replaces a part of a checkpoint."""
    return lambda state: state | {part: change(state[part])}


def cut(tensors: dict) -> dict:
    """Returns the tensors of an engine, the last of which lacks its second half."""
    *_, name = tensors
    kind, shape, data = tensors[name]
    return tensors | {name: (kind, shape, data[: len(data) // 2])}


def fewer(parts: dict) -> dict:
    """Returns a dictionary without its last entry."""
    *kept, _ = parts.items()
    return dict(kept)


def bent(tensors: dict) -> dict:
    """Returns the tensors of an engine, one of which has another bit."""
    name = next(iter(tensors))
    kind, shape, data = tensors[name]
    data = data.clone()
    data[0] ^= 1
    return tensors | {name: (kind, shape, data)}


BROKEN: dict[str, Callable[[dict], Any]] = {
    "no checkpoint": lambda state: None,
    "no engine": without("tensors"),
    "no model": without("model"),
    "no optimizers": without("optimizers"),
    "facts of a list": changed("facts", lambda facts: list(facts)),
    "fewer facts": changed("facts", fewer),
    "numbers for facts": changed("facts", lambda facts: facts | {"step": 7}),
    "fewer tensors": changed("tensors", fewer),
    "half a tensor": changed("tensors", cut),
    "another bit": changed("tensors", bent),
    "no tensors": changed("tensors", lambda tensors: dict.fromkeys(tensors)),
    "half a model": changed("model", fewer),
    "another model": changed("model", lambda _: digits.model(width=32).state_dict()),
    "no optimizer": changed("optimizers", lambda _: []),
    "another optimizer": changed("optimizers", lambda own: [{"state": {}, "param_groups": []}]),
    "texts for optimizers": changed("optimizers", lambda own: ["sgd"]),
    "an algorithm in Python": changed("python", lambda _: {"step": 0, "states": []}),
}


def checkpoints(world):
    """Restores broken checkpoints, on one rank or on all; returns the errors, and whether the state is unchanged."""
    told = {}
    net = digits.model()
    ours = DataParallel(net, sgd(net), "choco-sgd", process_group=world)
    train(ours, world.rank, 3)
    good = ours.checkpoint()
    others = {}
    for name, other, algorithm in (
        ("of another model", digits.model(width=32), "choco-sgd"),
        ("of another algorithm", digits.model(), "local-sgd"),
        ("of other options", digits.model(), "choco-sgd(codec=top-k(7%))"),
        ("of one in Python", digits.model(), Mean()),
    ):
        theirs = DataParallel(other, sgd(other), algorithm, process_group=world)
        train(theirs, world.rank, 2)
        others[name] = theirs.checkpoint()
        theirs.close()
    before = flat(net)
    for name, spoil in BROKEN.items():
        # That of rank 1 is broken, and rank 0 must receive an error.
        state = spoil(good) if world.rank == 1 else good
        told[name] = refusal(lambda state=state: ours.restore(state)), torch.equal(flat(net), before)
    for name, state in others.items():
        told[name] = refusal(lambda state=state: ours.restore(state)), torch.equal(flat(net), before)
    train(ours, world.rank, 2)
    expected = flat(net)
    ours.restore(good)
    train(ours, world.rank, 2)
    ours.close()
    return told, torch.equal(flat(net), expected)


def rates_resume(world):
    """Saves after a schedule has changed the learning rate of the engine; returns the rate after it was restored."""
    rates = []
    for kind in ("torch", "engine"):
        net = digits.model()
        optimizer = torch.optim.SGD(net.parameters(), 0.25) if kind == "torch" else "sgd"
        ours = DataParallel(net, optimizer, learning_rate=0.25, process_group=world)
        schedule = torch.optim.lr_scheduler.ExponentialLR(ours.optimizer, 0.5)
        train(ours, world.rank, 1)
        schedule.step()
        saved = ours.checkpoint()
        train(ours, world.rank, 1)
        schedule.step()
        ours.restore(saved)
        rates.append(ours.optimizer.param_groups[0]["lr"])
        ours.close()
    return rates


def without_world(world):
    """Trains in the world that this process has joined: are the replicas identical?"""
    found = hexagram.joined() is world
    net = digits.model(world.rank)
    ours = DataParallel(net, sgd(net))
    train(ours, world.rank, 2)
    ours.close()
    first = flat(net)
    world.communicator.broadcast(first, 0)
    return found, torch.equal(first, flat(net))


def closed_within_an_evaluation():
    """Closes an engine whose thread cannot end; returns the error."""
    with alone(deadline=0.2) as world:
        net = digits.model()
        ours = DataParallel(net, sgd(net), "local-sgd", process_group=world)
        train(ours, 0, 1)
        told = []

        def evaluate() -> None:
            try:
                ours.close()
            except hexagram.DeadlineExceeded as error:
                told.append((str(error), error.seconds))

        refusal(lambda: ours.evaluate_mean(evaluate))
        return told


def one_after_another(world):
    """Runs the programs of two ranks; returns the result of each, by name."""
    torch.set_num_threads(1)
    programs = (of_kinds, by_rates, of_models, in_place, of_traces, checkpoints, rates_resume, without_world)
    return {program.__name__: program(world) for program in programs}
