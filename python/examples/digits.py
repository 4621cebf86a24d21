"""Trains a small net on handwritten digits with several ranks, and draws how its accuracy grew.

    python python/examples/digits.py                                              # 4 ranks, which this process starts
    python python/examples/digits.py --algorithm "choco-sgd(codec=top-k(5%))"     # any algorithm, in any spelling
    torchrun --nproc-per-node 4 python/examples/digits.py                         # ranks of another launcher

Each rank takes every n-th sample of each epoch; the picture is written to ``digits.svg`` by rank 0.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import hexagram
from hexagram.testing import spawn
from hexagram.torch.data_parallel import DataParallel

DATA = Path(__file__).parents[2] / "lab" / "data" / "digits.csv.gz"


def load(file: Path) -> tuple[Tensor, Tensor]:
    """Returns the images, ``(samples, 64)`` from 0 to 1, and their labels, ``(samples,)``."""
    with gzip.open(file, "rt") as lines:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(lines)])
    return rows[:, :64] / 16, rows[:, 64].long()


def train(world: hexagram.World, options: argparse.Namespace) -> list[float]:
    """Trains on this rank's samples; returns the accuracy on what was held out, after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    images, labels = load(options.data)
    held_out = torch.arange(len(images)) % 5 == 4
    test_images, test_labels = images[held_out], labels[held_out]
    images, labels = images[~held_out], labels[~held_out]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=options.rate, momentum=0.9)
    model = DataParallel(net, optimizer, algorithm=options.algorithm, world=world)
    loss_of = nn.CrossEntropyLoss()
    accuracies = []
    for epoch in range(options.epochs):
        # The same order on all ranks, and as many batches on each.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        own = order[: len(order) // world.size * world.size][world.rank :: world.size]
        for batch in own.split(options.batch):
            optimizer.zero_grad()
            loss_of(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            hits = net(test_images).argmax(1) == test_labels
        accuracies.append(hits.float().mean().item())
        if world.rank == 0:
            print(f"epoch {epoch + 1:2}: {accuracies[-1]:6.1%} of the digits held out are read right", flush=True)
    return accuracies


def draw(accuracies: list[float], title: str, file: Path) -> None:
    """Writes a picture of the accuracy after each epoch, as SVG."""
    width, height, margin = 480, 300, 50
    across = (width - 2 * margin) / max(1, len(accuracies) - 1)
    points = [
        (margin + at * across, height - margin - value * (height - 2 * margin)) for at, value in enumerate(accuracies)
    ]
    lines = [
        f'<line x1="{margin}" x2="{width - margin}" y1="{y}" y2="{y}" stroke="#ddd"/>'
        f'<text x="{margin - 8}" y="{y + 4}" text-anchor="end">{share:.0%}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
        for y in (height - margin - share * (height - 2 * margin),)
    ]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(lines)}'
        f'<text x="{width / 2}" y="24" text-anchor="middle" font-size="14">{name}</text>'
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">epoch, 1 to {len(accuracies)}</text>'
        f'<polyline points="{curve}" fill="none" stroke="#1f77b4" stroke-width="2"/></svg>\n'
    )


def main() -> None:
    """Trains as the command line says, with the ranks of a launcher or with its own."""
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with several ranks")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks, unless a launcher started this one")
    parser.add_argument("--algorithm", default="gradient-allreduce")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="samples of one rank in one step")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("digits.svg"))
    options = parser.parse_args()
    title = f"{options.algorithm}, {options.ranks} ranks"
    if {"HEXAGRAM_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"} & os.environ.keys():
        with hexagram.init() as world:
            accuracies, rank = train(world, options), world.rank
            title = f"{options.algorithm}, {world.size} ranks"
    else:
        accuracies, rank = spawn(options.ranks, train, options, timeout=600.0)[0], 0
    if rank == 0:
        draw(accuracies, title, options.out)
        print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
