"""Programs of ranks in the tests of former silent errors: each runs as a rank in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

import hexagram
from hexagram.torch.algorithm import Algorithm
from hexagram.torch.data_parallel import DataParallel

#: PyTorch optimizers by a name, and the spellings of engine optimizers.
OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": lambda net: SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda net: AdamW(net.parameters(), 0.01),
    "the engine's": lambda net: "adamw",
}


class Averaging(Algorithm):
    """Local SGD in Python."""

    def after_step(self, context, state, bucket):
        """Averages the parameters."""
        context.mean(bucket.parameters)


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns a small net, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the samples of this rank in a step."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1 + rank + 10 * step)).to(dtype)


def flat(model: nn.Module) -> Tensor:
    """Returns a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def wrapped(model: nn.Module, kind: str, algorithm: Any, world, **options: Any) -> DataParallel:
    """Returns a model under the engine, with an optimizer of `OPTIMIZERS`."""
    optimizer = OPTIMIZERS[kind](model)
    rate = 0.01 if isinstance(optimizer, str) else None
    return DataParallel(model, optimizer, algorithm, process_group=world, learning_rate=rate, **options)


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
    """Overflows with every kind of optimizer and algorithm: gradients after it, and is training as without it?"""
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
    """Trains five steps; the third overflows under a GradScaler, is skipped by the loop, or is missing."""
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
    """Skips steps: is the training the same as without them, and how many steps does the engine count?"""
    told = {}
    for kind in OPTIMIZERS:
        for algorithm in ("gradient-allreduce", "local-sgd(period=1)"):
            expected, _ = with_a_gap(world, kind, algorithm, "not there")
            for gap in ("scaler", "left out"):
                trained, steps = with_a_gap(world, kind, algorithm, gap)
                told[f"{kind} {algorithm} {gap}"] = (torch.equal(trained, expected), steps)
    return told


def moved_by_vector(model, optimizer):
    """Gives all parameters one new memory."""
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.5, model.parameters())


def moved_by_data(model, optimizer):
    """Gives one parameter new memory."""
    model[0].weight.data = model[0].weight.data * 0.5


def moved_by_sharing(model, optimizer):
    """Moves all storages to shared memory, as for a model that is passed to another process."""
    model.share_memory()


def moved_there_and_back(model, optimizer):
    """Converts the model twice."""
    model.double().float()


def changed_in_place(model, optimizer):
    """Loads other values into the existing parameters."""
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


#: Changes that can be adopted exactly: the training must not differ from one with PyTorch alone.
MOVES = (moved_by_vector, moved_by_data, moved_by_sharing, moved_there_and_back, changed_in_place)


def assigned(model):
    """Replaces all parameters by others."""
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def appended(model):
    """Adds a layer."""
    model.append(nn.Linear(1, 1))


def replaced(model):
    """Replaces a layer."""
    model[2] = nn.Linear(8, 1)


def unfrozen(model):
    """Trains a parameter that was frozen."""
    model[2].bias.requires_grad_()


#: Changes that cannot be adopted, each with the parameter named in the error.
REFUSED = {
    "assigned": (assigned, "`0.weight`"),
    "double": (lambda model: model.double(), "`0.weight` is float64"),
    "bfloat16": (lambda model: model.bfloat16(), "`0.weight` is bfloat16"),
    "appended": (appended, "`3.weight`"),
    "replaced": (replaced, "`2.weight`"),
    "unfrozen": (unfrozen, "`2.bias`"),
}

#: Optimizers and algorithms that leave the parameters to the loop, or have them in the engine buckets.
TRAINED = (
    ("the engine's", "gradient-allreduce"),
    ("sgd", "local-sgd(period=1)"),
    ("sgd", "d-psgd"),
    ("sgd", "bytegrad"),
)


def trained_with(world, kind: str, algorithm: str, move: Callable | None, when: str, dtype: torch.dtype) -> Tensor:
    """Trains four steps; the second changes the model before its pass or its step."""
    model = net(dtype=dtype)
    ours = wrapped(model, kind, algorithm, world)
    for step in range(4):
        if step == 1 and when == "before":
            move(model, ours.optimizer)
        ours.optimizer.zero_grad()
        ours(batch(0, step, dtype)).pow(2).mean().backward()
        if step == 1 and when == "step":
            move(model, ours.optimizer)
        ours.optimizer.step()
    ours.average()
    ours.close()
    return flat(model)


def moves(world):
    """Moves parameters: is the training the same as with the same values in place? All ranks have the same data."""
    told = {}
    for dtype in (torch.float32, torch.bfloat16):
        for kind, algorithm in TRAINED[:3] if dtype is torch.float32 else TRAINED[:2]:
            for move in MOVES:
                halved = changed_in_place if move in MOVES[:2] + MOVES[4:] else lambda *_: None
                if move is moved_by_data:
                    halved = halve_the_first
                expected = trained_with(world, kind, algorithm, halved, "before", dtype)
                if move is moved_there_and_back and dtype is torch.bfloat16:
                    continue
                found = trained_with(world, kind, algorithm, move, "before", dtype)
                told[f"{move.__name__} {kind} {algorithm} {dtype}"] = torch.equal(found, expected)
    expected = trained_with(world, "the engine's", "gradient-allreduce", changed_in_place, "step", torch.float32)
    found = trained_with(world, "the engine's", "gradient-allreduce", moved_by_vector, "step", torch.float32)
    told["between backward pass and step"] = torch.equal(found, expected)
    return told


def converted(model):
    """Converts a model, and its gradients with it, and back."""
    model.half().float()


#: Changes that move gradients as well as parameters.
CONVERSIONS = {
    "half": converted,
    "layout": lambda model: model.to(memory_format=torch.channels_last),
    "sharing": lambda model: model.share_memory(),
}


def conversions(world):
    """Moves the gradients that a step has left; returns the errors of replicas that were trained on different data."""
    told = {}
    for kind, algorithm in (("sgd", "gradient-allreduce"), ("sgd", "bytegrad"), ("the engine's", "gradient-allreduce")):
        for name, convert in CONVERSIONS.items():
            torch.manual_seed(3)
            model = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(4, 1))
            ours = wrapped(model, kind, algorithm, world)
            for step in range(4):
                if step == 2:
                    convert(model)
                ours(torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + world.rank))).pow(
                    2
                ).mean().backward()
                ours.optimizer.step()
                if step != 1:
                    # The gradients of this step exist when the model is converted.
                    ours.optimizer.zero_grad(set_to_none=step == 3)
            told[f"{name} {kind} {algorithm}"] = told_by(ours.check_replicas)
            ours.close()
    return told


def halve_the_first(model, optimizer):
    """Does in place what `moved_by_data` does with new memory."""
    with torch.no_grad():
        model[0].weight.mul_(0.5)


def refusals(world):
    """Changes a model in ways that cannot be adopted; returns the errors, by change and algorithm."""
    told = {}
    for name, (change, _) in REFUSED.items():
        for kind, algorithm in TRAINED:
            model = net()
            model[2].bias.requires_grad_(name != "unfrozen")
            ours = wrapped(model, kind, algorithm, world)
            train(ours, world, 2)
            change(model)
            sent = world.traffic[1]
            text = told_by(lambda ours=ours: train(ours, world, 1))
            told[f"{name} {kind} {algorithm}"] = (text, world.traffic[1] - sent)
            told_by(ours.close)
    return told


def train(ours: DataParallel, world, steps: int) -> None:
    """Makes steps, each rank on its own samples."""
    dtype = next(ours.parameters()).dtype
    for step in range(steps):
        ours.optimizer.zero_grad()
        ours(batch(world.rank, step, dtype)).pow(2).mean().backward()
        ours.optimizer.step()


def gradients(world):
    """Changes gradients before the step of the engine optimizer: does it step with the new values?"""
    told = {}
    for dtype in (torch.float32, torch.bfloat16):
        for overlap in ("backward", "forward"):
            trained = []
            for how in ("in place", "anew"):
                model = net(dtype=dtype)
                ours = DataParallel(model, "sgd", process_group=world, learning_rate=0.5, overlap=overlap)
                for step in range(3):
                    ours.optimizer.zero_grad()
                    ours(batch(world.rank, step, dtype)).pow(2).mean().backward()
                    kept = flat(model[2])
                    for parameter in model[0].parameters():
                        if how == "in place":
                            parameter.grad.mul_(0.25)
                        else:
                            parameter.grad = parameter.grad * 0.25
                    for parameter in model[2].parameters():
                        parameter.grad = None
                    before = flat(model[0])
                    ours.optimizer.step()
                    assert torch.equal(flat(model[2]), kept) and not torch.equal(flat(model[0]), before)
                trained.append(flat(model))
                ours.close()
            plain = net(dtype=dtype)
            told[f"{dtype} {overlap}"] = torch.equal(*trained) and not torch.equal(trained[0], flat(plain))
    return told


class Branches(nn.Module):
    """Three layers, some of which are used in a pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.all, self.some, self.none = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, with_some):
        """Returns the sum of the layers in use."""
        return self.all(x) + self.some(x) if with_some else self.all(x)


def unused(world):
    """Leaves layers unused, as `unused="zero"` allows; returns them, as they would be with DDP over Gloo."""
    told = {}
    for kind in OPTIMIZERS:
        for algorithm in ("gradient-allreduce", "bytegrad", "local-sgd(period=1)", Averaging()):
            model = Branches()
            ours = wrapped(model, kind, algorithm, world, unused="zero", clip_norm=100.0)
            seen = []
            for step in range(4):
                ours.optimizer.zero_grad()
                # Both layers are used in the first step, so that momentum would move them later.
                x = batch(world.rank, step)
                loss = ours(x, world.rank == 0).sum() + (model.none(x).sum() if step == 0 else 0)
                loss.backward()
                before = flat(model.some), flat(model.none)
                is_none = model.none.weight.grad is None
                ours.optimizer.step()
                moved = not torch.equal(flat(model.some), before[0]), not torch.equal(flat(model.none), before[1])
                seen.append((is_none, *moved))
            told[f"{kind} {algorithm}"] = seen
            ours.close()
    return told


class Buffered(nn.Module):
    """A layer with buffers of many types."""

    def __init__(self, rank: int):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
        buffers = {
            "in_float": torch.tensor([1.0 + rank]),
            "in_half": torch.tensor([1.0 + rank], dtype=torch.bfloat16),
            "in_double": torch.tensor([1.0 + rank], dtype=torch.float64),
            "complex": torch.tensor([1.0 + rank + 2j]),
            "float8": torch.tensor([1.0 + rank]).to(torch.float8_e4m3fn),
            "integer": torch.tensor([1 + rank]),
            "unsigned": torch.tensor([1 + rank], dtype=torch.uint16),
            "gaps": torch.arange(4.0)[::2] + rank,
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x):
        """Returns the outputs of the layer for normalized inputs."""
        return self.layer(self.norm(x))

    def told(self) -> dict[str, Any]:
        """Returns the values of the buffers by name."""
        return {name: buffer.tolist() for name, buffer in self.named_buffers()}


def buffers(world):
    """Averages buffers; returns them while the mean is evaluated, after that, and after :meth:`average`."""
    told = {}
    for kind, algorithm in TRAINED:
        model = Buffered(world.rank)
        ours = wrapped(model, kind, algorithm, world, buffers="off")
        frozen = model.frozen.tolist()
        for name, buffer in Buffered(world.rank).named_buffers():
            model.get_buffer(name).copy_(buffer)
        train(ours, world, 1)
        own = model.told()
        seen, _ = ours.evaluate_mean(lambda model=model: model.told())
        is_put_back = model.told() == own
        means = {name: torch.zeros(world.size, 4) for name in ("running_mean", "running_var")}
        for name, mean in means.items():
            world.communicator.all_gather(model.norm.get_buffer(name), mean)
        parted = told_by(ours.check_replicas)
        ours.average()
        is_mean = all(torch.allclose(model.norm.get_buffer(name), mean.mean(0)) for name, mean in means.items())
        told[f"{kind} {algorithm}"] = (seen, is_put_back, model.told() == seen, is_mean, frozen, parted)
        ours.close()
    return told


def parted(world):
    """Makes replicas different; returns the errors of `average` and `check_replicas`."""
    told = {}
    for kind in OPTIMIZERS:
        ours = wrapped(net(), kind, "gradient-allreduce", world)
        train(ours, world, 1)
        ours.check_replicas()
        with torch.no_grad():
            ours.module[2].weight.add_(world.rank)
        told[kind] = [told_by(ours.average), told_by(ours.check_replicas)]
        ours.close()
    return told


def rates(world, kind, algorithm):
    """Trains with learning rates that differ between ranks; returns the error."""
    torch.set_num_threads(1)
    ours = wrapped(net(), kind, algorithm, world)
    train(ours, world, 1)
    for group in ours.optimizer.param_groups:
        group["lr"] = [0.5, 0.25][world.rank]
    return told_by(lambda: train(ours, world, 2))


#: Algorithms whose codecs refuse values that are not finite.
ENCODED = ("bytegrad", "topk-ef(fraction=50%)", "powersgd(rank=1, start=0)", "qadam(warmup=1)", "dgc")


def encoded(world):
    """Overflows under a GradScaler on one rank, where gradients are encoded; returns the result of the step."""
    told = {}
    for algorithm in ENCODED:
        for kind in ("sgd", "the engine's"):
            model = net()
            if kind == "sgd":
                optimizer, rate = SGD(model.parameters(), 0.01), None
            else:
                optimizer, rate = "sgd", 0.01
            ours = DataParallel(model, optimizer, algorithm, learning_rate=rate, process_group=world)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            moved = []
            for step in range(4):
                before = flat(model)
                ours.optimizer.zero_grad()
                loss = ours(batch(world.rank, step)).pow(2).mean()
                scaler.scale(loss * (float("inf") if step == 1 and world.rank == 1 else 1.0)).backward()
                scaler.step(ours.optimizer)
                scaler.update()
                moved.append(not torch.equal(flat(model), before))
            ours.check_replicas()
            steps, scale = ours.steps, scaler.get_scale()
            ours.optimizer.zero_grad()
            (ours(batch(world.rank, 5)).pow(2).mean() * float("nan")).backward()
            refused = told_by(ours.optimizer.step)
            told[f"{algorithm} {kind}"] = (moved, steps, scale, bool(flat(model).isfinite().all()), refused)
            told_by(ours.close)
    return told


def one_after_another(world):
    """Runs the programs of two ranks; returns the result of each, by name."""
    torch.set_num_threads(1)
    programs = (overflows, gaps, moves, conversions, refusals, gradients, unused, buffers, parted, encoded)
    return {program.__name__: program(world) for program in programs}
