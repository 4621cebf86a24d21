"""A training under the engine in an elastic job: `python elastic_torch_program.py ALGORITHM OPTIMIZER FOLDER`.

An engine optimizer is a spelling; `torch` is one of PyTorch. The algorithm `python` has the momentum instead of the optimizer.
"""

import sys

import torch
from elastic_job import MOMENTUM, RATE
from elastic_programs import TARGET, joined, say, stops
from torch import nn
from training_programs import Momentum

import hexagram
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.snapshots import Snapshots


class Net(nn.Module):
    """One value, in several parameters, which the loss draws to the target of this rank."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (1, 3, 1000)])
        self.register_buffer("calls", torch.zeros(1))

    def forward(self):
        self.calls += 1
        return sum((part - TARGET).square().sum() / 2 for part in self.parts)


def train(world, net, optimizer, snapshots, algorithm, folder):
    """Trains with the members of this world until the test asks for the end."""
    rate = RATE if isinstance(optimizer, str) else None
    options = {"process_group": world, "bucket_bytes": 1024, "first_bucket_bytes": 1024}
    model = DataParallel(net, optimizer, algorithm, learning_rate=rate, **options)
    kept = snapshots.load(model, {"step": 0, "stops": 0.0})
    assert kept["step"] == model.steps == net.calls.item(), (kept, model.steps, net.calls)
    joined(world)
    while not kept["stops"]:
        model.optimizer.zero_grad()
        model().backward()
        model.optimizer.step()
        values = torch.cat([part.detach() for part in net.parts])
        assert values.eq(values[0]).all()
        flag = torch.tensor([stops(folder)])
        world.communicator.all_reduce(flag, "max")
        kept = {"step": model.steps, "stops": flag.item()}
        snapshots.keep(model, kept)
        say("step", world.generation, model.steps, values[0].item())
    world.communicator.barrier()


def main(algorithm, optimizer, folder):
    """Trains, and continues with the new members after each change."""
    torch.set_num_threads(1)
    net = Net()
    if algorithm == "python":
        algorithm = Momentum(MOMENTUM)
    own = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM) if optimizer == "torch" else optimizer
    hexagram.as_member(hexagram.init(), train, net, own, Snapshots(), algorithm, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
