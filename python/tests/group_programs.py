"""Programs of ranks in the tests of parameter groups: each runs as a rank in a separate process."""

from __future__ import annotations

import torch
from silent_programs import batch, flat, net, told_by, train
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from hexagram.torch.data_parallel import DataParallel

#: Spellings of engine optimizers, each with its PyTorch counterpart.
PAIRS = {
    "sgd(momentum=0.9)": lambda groups: SGD(groups, 0.1, momentum=0.9),
    "adam": lambda groups: Adam(groups, 0.1),
    "adamw(weight_decay=0.2)": lambda groups: AdamW(groups, 0.1, weight_decay=0.2),
}


def grouped(model: nn.Module) -> list[dict]:
    """Returns groups of some parameters."""
    return [
        {"params": model[0].bias, "weight_decay": 0.0, "lr": 0.02},
        {"params": list(model[2].parameters()), "weight_decay": 0.5},
    ]


def as_pytorch(world) -> dict[str, float]:
    """Trains with groups, a schedule and a variable weight decay; returns the difference from PyTorch."""
    apart = {}
    for spelling, optimizer_of in PAIRS.items():
        trained = []
        for kind in ("engine", "torch"):
            model = net()
            if kind == "engine":
                optimizer, groups = spelling, grouped(model)
            else:
                optimizer, groups = optimizer_of([{"params": model[0].weight}, *grouped(model)]), None
            rate = 0.1 if kind == "engine" else None
            ours = DataParallel(model, optimizer, learning_rate=rate, groups=groups, process_group=world)
            # The first rate starts at 0, so no other rate is a multiple of it.
            schedule = LambdaLR(ours.optimizer, [lambda step: step / 4, lambda step: 1.0, lambda step: 0.5**step])
            for step in range(5):
                if step == 3:
                    ours.optimizer.param_groups[2]["weight_decay"] = 0.25
                ours.optimizer.zero_grad()
                ours(batch(world.rank, step)).pow(2).mean().backward()
                ours.optimizer.step()
                schedule.step()
            trained.append(flat(model))
            ours.close()
        apart[spelling] = (trained[0] - trained[1]).abs().max().item()
    return apart


def states(world) -> dict:
    """Saves and loads states of engine optimizers: does training continue without a difference?"""
    told = {}
    for spelling in ("sgd", "sgd(momentum=0.9)", "adamw", "lion", "muon"):
        model = net()
        ours = DataParallel(model, spelling, learning_rate=0.1, groups=grouped(model)[:1], process_group=world)
        train(ours, world, 2)
        saved, values = ours.optimizer.state_dict(), ours.module.state_dict()
        values = {name: value.clone() for name, value in values.items()}
        train(ours, world, 2)
        expected = flat(model)
        ours.close()
        other = net(seed=1)
        again = DataParallel(other, spelling, learning_rate=0.5, groups=grouped(other)[:1], process_group=world)
        again.module.load_state_dict(values)
        again.optimizer.load_state_dict(saved)
        train(again, world, 2)
        steps = {int(of_one["step"]) for of_one in saved["state"].values()}
        told[spelling] = (torch.equal(flat(other), expected), sorted(saved["state"][0]), len(saved["state"]), steps)
        again.close()
    return told


def refused(world) -> dict[str, str | None]:
    """Makes changes that an engine optimizer does not support; returns the errors."""
    model = net()
    ours = DataParallel(model, "adamw", learning_rate=0.1, process_group=world)
    foreign = AdamW(model.parameters())
    told = {
        "added": told_by(lambda: ours.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})),
        "foreign, empty": told_by(lambda: ours.optimizer.load_state_dict(foreign.state_dict())),
        "no state": told_by(lambda: ours.optimizer.load_state_dict({})),
    }
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    foreign.step()
    told["foreign"] = told_by(lambda: ours.optimizer.load_state_dict(foreign.state_dict()))
    ours.optimizer.param_groups[0]["betas"] = (0.8, 0.9)
    told["betas"] = told_by(lambda: train(ours, world, 1))
    told_by(ours.close)
    plain = DataParallel(net(), "sgd", learning_rate=0.1, process_group=world)
    plain.optimizer.param_groups[0]["weight_decay"] = 0.5
    told["decay"] = told_by(lambda: train(plain, world, 1))
    told_by(plain.close)
    groups = {
        "not the model's": [{"params": net()[0].weight}],
        "momentum": [{"params": [], "momentum": 0.5}],
        "negative": [{"params": [], "lr": -0.5}],
        "no group": [5],
    }
    for name, given in groups.items():
        told[name] = told_by(
            lambda given=given: DataParallel(net(), "adamw", learning_rate=0.1, process_group=world, groups=given)
        )
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    told["PyTorch's"] = told_by(lambda: DataParallel(model, optimizer, process_group=world, groups=grouped(model)))
    return told


def of_groups(world, kind: str) -> str | None:
    """Trains with a learning rate of the second group that differs between ranks; returns the error."""
    model = net()
    parts = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    optimizer = SGD(parts, 0.1) if kind == "torch" else "sgd"
    groups = parts[1:] if kind == "engine" else None
    rate = 0.1 if kind == "engine" else None
    ours = DataParallel(model, optimizer, learning_rate=rate, groups=groups, process_group=world)
    train(ours, world, 2)
    ours.optimizer.param_groups[1]["lr"] = [0.5, 0.25][world.rank]
    return told_by(lambda: train(ours, world, 2))


def one_after_another(world) -> dict:
    """Runs the programs of two ranks; returns the result of each, by name."""
    torch.set_num_threads(1)
    return {program.__name__: program(world) for program in (as_pytorch, states, refused)}
