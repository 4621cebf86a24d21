"""The handwritten digits of this repository, and small models for them, for tests and figures.

`Net`, `net` and `order` are those of the Rust program `candle-train`: the same initial parameters, and the same samples
in the same steps, so that its losses and accuracies can be compared with those of Python.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.optim import Optimizer

from hexagram import World
from hexagram.sampler import DistributedSampler
from hexagram.torch.data_parallel import DataParallel

FILE = Path(__file__).parents[2] / "lab" / "data" / "digits.csv.gz"

#: Learning rates other than 0.15, as in `lab/src/learning_rates.rs` for candle.
RATES = {
    "qadam": 0.002,
    "qadam-8bit": 0.002,
    "slowmo": 0.1,
    "diloco": 0.05,
    "muloco": 0.005,
    "qg-dsgdm": 0.015,
    "dion": 0.005,
    "dgc": 0.015,
    "signsgd-vote": 0.0005,
    "zero-one-adam": 0.001,
    "demo": 0.001,
}


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns images ``(samples, 64)`` from 0 to 1 and labels for training, and every fifth of them, held out."""
    with gzip.open(FILE, "rt") as lines:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(lines)])
    images, labels = rows[:, :64] / 16, rows[:, 64].long()
    held_out = torch.arange(len(rows)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def model(seed: int = 0, width: int = 64) -> nn.Sequential:
    """Returns an untrained net of two layers, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def batches(rank: int, size: int, epochs: int, batch: int = 16, samples: int = 1437):
    """Yields the indices of the batches of a rank: a new order in every epoch, the same number on all ranks."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(epochs):
        order = torch.randperm(samples, generator=generator)
        order = order[: samples // (batch * size) * batch * size]
        yield from order[rank::size].split(batch)


class Pool(torch.autograd.Function):
    """Maxima of windows of 2 × 2, with the gradient of candle 0.11, which differs from that of PyTorch.

    If k of the four elements of a window are its maximum, each of these gets k/4 of the gradient; in PyTorch, one of
    them gets all of it.
    """

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        """Returns the maxima, of half the rows and columns."""
        windows = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        most = windows.amax((3, 5), keepdim=True)
        context.save_for_backward(windows == most)
        return most.squeeze((3, 5))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Returns the gradient of the elements."""
        (mask,) = context.saved_tensors
        share = gradient * mask.to(gradient.dtype).mean((3, 5))
        return (share[:, :, :, None, :, None] * mask).flatten(4, 5).flatten(2, 3)


class Net(nn.Module):
    """Two convolutions with pooling, two linear layers: like `adapters/candle/examples/common/net.rs`. Takes images
    ``(samples, 64)``."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 2 * 2, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits ``(samples, 10)``."""
        x = images.view(-1, 1, 8, 8)
        for convolution in (self.conv1, self.conv2):
            x = Pool.apply(relu(convolution(x)))
        return self.out(relu(self.hidden(x.flatten(1))))


def net(seed: int = 0) -> Net:
    """Returns an untrained net with the initial parameters of `candle-train --seed`."""
    made = Net()
    generator = numpy.random.RandomState(seed)
    parameters = dict(made.named_parameters())
    with torch.no_grad():
        for name in sorted(parameters):
            parameter = parameters[name]
            fan_in = parameters[name.replace("bias", "weight")][0].numel()
            bound = 1 / math.sqrt(fan_in) if name.endswith("bias") else math.sqrt(6 / fan_in)
            words = generator.randint(2**32, size=parameter.shape, dtype=numpy.uint32)
            parameter.copy_(torch.from_numpy((words / (2**32 - 1) * 2 - 1) * bound))
    return made


def order(rank: int, size: int, epoch: int, seed: int = 0, batch: int = 16, samples: int = 1437) -> Iterator[Tensor]:
    """Yields the indices of the batches of a rank in an epoch, from 0, like `candle-train --seed`."""
    sampler = DistributedSampler(range(samples), size, rank, seed=seed, drop_last=True)
    sampler.set_epoch(epoch)
    indices = torch.tensor(list(sampler))
    yield from indices[: len(indices) // batch * batch].split(batch)


def replica(net: nn.Module, algorithm: str, world: World) -> tuple[DataParallel, Optimizer]:
    """Returns the engine of a net on all ranks, and the optimizer, with the learning rate of the algorithm."""
    rate = RATES.get(algorithm.split("(")[0], 0.15)
    # This algorithm names its engine optimizer.
    optimizer = None if algorithm == "muloco" else torch.optim.SGD(net.parameters(), rate)
    # The order in which candle completes gradients, which determines their places for codecs.
    model = DataParallel(net, optimizer, algorithm, learning_rate=rate, process_group=world, order="listed")
    return model, model.optimizer


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Returns the share of images that a net classifies correctly."""
    with torch.no_grad():
        return (net(images).argmax(1) == labels).float().mean().item()
