"""Programs of ranks in the tests of copies and of DDP hooks: each runs as a rank in a separate process."""

from __future__ import annotations

import copy
import pickle
import tempfile
from functools import partial

import torch
import torch.distributed as dist
from silent_programs import batch, flat, net, told_by, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.hooks import hook
from hexagram.torch.tensors import span


def copies(world) -> dict:
    """Copies a model in training; returns the properties and results of its copies."""
    told = {}
    for overlap in ("backward", "forward"):
        model = net()
        ours = DataParallel(model, "sgd", learning_rate=0.1, process_group=world, overlap=overlap, bucket_bytes=1 << 20)
        averaged = AveragedModel(ours)
        train(ours, world, 2)
        averaged.update_parameters(ours)
        made = {"deepcopy": copy.deepcopy(ours), "pickle": pickle.loads(pickle.dumps(ours)), "of it": averaged.module}
        bare = {"module": copy.deepcopy(model), "pickled module": pickle.loads(pickle.dumps(model))}
        values = flat(ours)
        x = batch(world.rank, 9)
        with torch.no_grad():
            expected = ours(x)
            alike = [torch.equal(one.eval()(x), expected) for one in (*made.values(), *bare.values())]
        names = [list(one.state_dict()) == list(ours.state_dict()) for one in made.values()]
        one = made["deepcopy"].train()
        refused = [told_by(partial(one, x)), told_by(one.average), told_by(partial(getattr, one, "steps"))]
        one.close()
        train(ours, world, 1)
        apart = all(torch.equal(flat(one), values) for one in (*made.values(), *bare.values()))
        size = len(pickle.dumps(ours))
        ours.close()
        again = DataParallel(made["pickle"].module, "sgd", learning_rate=0.1, process_group=world)
        train(again, world, 1)
        again.close()
        told[overlap] = (alike, names, refused, apart and not torch.equal(flat(ours), values), size)
    return told


class Complex(nn.Module):
    """A layer of complex numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.complex64))

    def forward(self, x):
        """Returns real numbers."""
        return (x.to(torch.complex64) @ self.weight).abs()


def hooked(model: nn.Module, algorithm: str, world, steps: int = 3, **options) -> torch.Tensor:
    """Trains under DDP with a hook, or without one for an empty name; returns the parameters."""
    ddp = DistributedDataParallel(model, **options)
    optimizer = SGD(ddp.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    if algorithm:
        ddp.register_comm_hook(*hook(algorithm, optimizer=optimizer, process_group=world))
    for step in range(steps):
        optimizer.zero_grad()
        ddp(batch(world.rank, step)).pow(2).mean().backward()
        optimizer.step()
    return flat(model)


def overflown(world, algorithm: str) -> tuple:
    """Overflows on one rank under a GradScaler and a hook; returns the steps that moved parameters, and the scale."""
    model = net()
    ddp = DistributedDataParallel(model)
    optimizer = SGD(ddp.parameters(), 0.01)
    ddp.register_comm_hook(*hook(algorithm, optimizer=optimizer, process_group=world))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moved = []
    for step in range(4):
        before = flat(model)
        optimizer.zero_grad()
        loss = ddp(batch(world.rank, step)).pow(2).mean()
        scaler.scale(loss * (float("inf") if step == 1 and world.rank == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(flat(model), before))
    return moved, scaler.get_scale(), bool(flat(model).isfinite().all())


class Sparse(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        """Returns some rows."""
        return self.table(torch.arange(3)) * x.mean()


class Partly(nn.Module):
    """Two layers, of which only one is used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        """Returns the output of one layer."""
        return self.used(x)


def hooks(world) -> dict:
    """Creates hooks that lack something, and trains models that hooks do not support."""
    store = [None, tempfile.mkdtemp()][world.rank == 0]
    told = {}
    for name in ("powersgd(rank=1)", "topk-ef(fraction=5%)", "dgc", "demo"):
        told[name] = told_by(lambda name=name: hook(name, process_group=world))
        told[f"{name} with a rate"] = told_by(
            lambda name=name: hook(name, learning_rate=0.1, process_group=world)[0].close()
        )
        told[f"{name} in the engine"] = told_by(lambda name=name: DataParallel(net(), None, name, process_group=world))
    length = torch.tensor([len(store or "")])
    world.communicator.broadcast(span(length), 0)
    text = torch.zeros(int(length), dtype=torch.uint8)
    if store is not None:
        text = torch.tensor(list(store.encode()), dtype=torch.uint8)
    world.communicator.broadcast(span(text), 0)
    folder = bytes(text.tolist()).decode()
    dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=world.rank, world_size=world.size)
    if gloo_has_complex():
        expected = hooked(Complex(), "", world)
        told["complex"] = [torch.allclose(hooked(Complex(), "gradient-allreduce", world), expected, atol=1e-6)]
        told["complex"] += [bool(hooked(Complex(), "bytegrad", world).abs().isfinite().all())]
    partly = Partly()
    before = flat(partly.unused)
    hooked(partly, "gradient-allreduce", world, find_unused_parameters=True)
    told["unused"] = torch.equal(flat(partly.unused), before)
    for algorithm in ("bytegrad", "topk-ef(fraction=50%)", "powersgd(rank=1, start=0)"):
        told[f"overflow {algorithm}"] = overflown(world, algorithm)
    told["sparse"] = told_by(lambda: hooked(Sparse(), "gradient-allreduce", world))
    dist.destroy_process_group()
    return told


def gloo_has_complex() -> bool:
    """Returns whether Gloo broadcasts complex numbers, as DDP over it requires. In PyTorch 2.8 it does not."""
    try:
        dist.broadcast(torch.zeros(1, dtype=torch.complex64), 0)
    except RuntimeError:
        return False
    return True


def one_after_another(world) -> dict:
    """Runs the programs of two ranks; returns the result of each, by name."""
    torch.set_num_threads(1)
    return {program.__name__: program(world) for program in (copies, hooks)}
