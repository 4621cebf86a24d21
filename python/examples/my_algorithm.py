"""An own algorithm in Python: local SGD that pulls replicas towards their mean instead of setting them to it.

    hexagram run -n 4 -- python python/examples/my_algorithm.py

Implement the hooks that the algorithm needs, on flat tensors of each bucket; `context` has the step and the other
ranks. The model trains with the tensors that the hooks change in place.
"""

import argparse
import csv
import gzip
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import hexagram
from hexagram.torch.algorithm import Algorithm
from hexagram.torch.data_parallel import DataParallel


class Pull(Algorithm):
    """After every `period`-th step: x ← x + strength · (mean of all x − x)."""

    centralized = True
    keeps_replicas_identical = False

    def __init__(self, period: int = 4, strength: float = 0.5):
        self.period = period
        self.strength = strength

    def after_step(self, context, state, bucket):
        """Pulls the parameters of a bucket towards their mean over all ranks."""
        if (context.step + 1) % self.period == 0:
            mean = bucket.parameters.clone()
            context.mean(mean)
            bucket.parameters.lerp_(mean, self.strength)


def load():
    """Returns images ``(samples, 64)`` from 0 to 1 and labels for training, and every fifth of them, held out."""
    with gzip.open(Path(__file__).parents[2] / "lab" / "data" / "digits.csv.gz", "rt") as lines:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(lines)])
    held_out = torch.arange(len(rows)) % 5 == 0
    images, labels = rows[:, :64] / 16, rows[:, 64].long()
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def batches(world, epoch: int, size: int, samples: int = 1437):
    """Returns the indices of the batches of this rank in an epoch; all ranks have the same number."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    order = order[: samples // (size * world.size) * size * world.size]
    return order[world.rank :: world.size].split(size)


def main():
    """Trains on the digits, and prints the accuracy of the mean of all replicas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    with hexagram.init() as world:
        torch.set_num_threads(1)
        images, labels, test_images, test_labels = load()
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.15)
        model = DataParallel(net, optimizer, algorithm=Pull(), process_group=world)
        for epoch in range(args.epochs):
            for index in batches(world, epoch, 16):
                optimizer.zero_grad()
                F.cross_entropy(model(images[index]), labels[index]).backward()
                optimizer.step()
        with torch.no_grad():
            hits, apart = model.evaluate_mean(lambda: (net(test_images).argmax(1) == test_labels).float().mean().item())
        if world.rank == 0:
            print(f"accuracy of the mean {hits:.1%}, replicas {apart:.2g} apart")


if __name__ == "__main__":
    main()
