"""Trains a small net on handwritten digits with several ranks, and draws its accuracy over the epochs.

    python python/examples/digits.py                                              # 4 ranks, which this process starts
    python python/examples/digits.py --algorithm "choco-sgd(codec=top-k(5%))"     # any algorithm, in any spelling
    python python/examples/digits.py --algorithm qadam --rate 0.002               # docs/algorithms.md has the rates
    torchrun --nproc-per-node 4 python/examples/digits.py                         # ranks of another launcher

Each rank takes every n-th sample of each epoch; rank 0 writes the picture to ``digits.svg``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from torch import Tensor, nn

import hexagram
from hexagram.testing import RankFailed, spawn
from hexagram.torch.data_parallel import DataParallel

DATA = Path(__file__).parents[2] / "lab" / "data" / "digits.csv.gz"


def load(file: Path) -> tuple[Tensor, Tensor]:
    """Returns the images, ``(samples, 64)`` from 0 to 1, and their labels, ``(samples,)``."""
    with gzip.open(file, "rt") as lines:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(lines)])
    return rows[:, :64] / 16, rows[:, 64].long()


def train(world: hexagram.World, options: argparse.Namespace) -> list[float]:
    """Trains on the samples of this rank; returns the accuracy on held-out samples after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    images, labels = load(options.data)
    held_out = torch.arange(len(images)) % 5 == 0
    test_images, test_labels = images[held_out], labels[held_out]
    images, labels = images[~held_out], labels[~held_out]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    # MuLoCo names an engine optimizer.
    sgd = None if options.algorithm.startswith("muloco") else torch.optim.SGD(net.parameters(), lr=options.rate)
    model = DataParallel(net, sgd, algorithm=options.algorithm, learning_rate=options.rate, process_group=world)
    loss_of = nn.CrossEntropyLoss()
    accuracies = []
    for epoch in range(options.epochs):
        # The same order on all ranks, and the same number of batches on each.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        own = order[: len(order) // world.size * world.size][world.rank :: world.size]
        for batch in own.split(options.batch):
            model.optimizer.zero_grad()
            loss_of(model(images[batch]), labels[batch]).backward()
            model.optimizer.step()
        with torch.no_grad():
            # Of the mean of all replicas, as they may differ.
            accuracy, _ = model.evaluate_mean(lambda: (net(test_images).argmax(1) == test_labels).float().mean().item())
        accuracies.append(accuracy)
        if world.rank == 0:
            print(f"epoch {epoch + 1:2}: {accuracies[-1]:6.1%} of the digits held out are read right", flush=True)
    return accuracies


def draw(accuracies: list[float], title: str, file: Path) -> None:
    """Writes a picture of the accuracy after each epoch, as SVG."""
    width, height, left, top, right, bottom = 560, 340, 60, 44, 64, 52
    least = min(int(10 * value) / 10 for value in accuracies)

    def place(epoch: float, value: float) -> tuple[float, float]:
        """Returns the position of an accuracy after an epoch in the picture."""
        across = (epoch - 1) / max(1, len(accuracies) - 1)
        up = (value - least) / (1 - least) if least < 1 else 1
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{words}</text>'

    drawn = [text(width / 2, 24, escape(title), style='font-size="15"'), text(width / 2, height - 10, "epoch")]
    for tenth in range(round(10 * least), 11):
        y = place(1, tenth / 10)[1]
        drawn.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(text(left - 8, y + 4, f"{10 * tenth} %", "end"))
    stride = max(1, len(accuracies) // 10)
    for epoch in range(stride, len(accuracies) + 1, stride):
        drawn.append(text(place(epoch, 0)[0], height - bottom + 18, str(epoch)))
    points = [place(at + 1, value) for at, value in enumerate(accuracies)]
    drawn.append(
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"'
        ' fill="none" stroke="#1f77b4" stroke-width="2"/>'
    )
    x, y = points[-1]
    drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#1f77b4"/>')
    drawn.append(text(x + 8, y + 4, f"{100 * accuracies[-1]:.1f} %", "start", 'fill="#1f77b4"'))
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def positive(text: str) -> int:
    """Returns a positive integer from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def main() -> None:
    """Trains with the arguments of the command line, with the ranks of a launcher or its own."""
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with several ranks")
    parser.add_argument("--ranks", type=positive, default=4, help="number of ranks, unless a launcher started this one")
    parser.add_argument("--algorithm", default="gradient-allreduce")
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--batch", type=positive, default=16, help="samples of one rank in one step")
    parser.add_argument("--rate", type=float, default=0.15, help="learning rate; docs/algorithms.md has each one's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("digits.svg"))
    options = parser.parse_args()
    if not options.data.is_file():
        parser.error(f"file {options.data} does not exist; run this from a checkout of the repository, or give --data")
    if not options.out.parent.is_dir():
        parser.error(f"folder {options.out.parent} for the picture does not exist; make it, or give another --out")
    title = f"{options.algorithm}, {options.ranks} ranks"
    if {"HEXAGRAM_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"} & os.environ.keys():
        with hexagram.init() as world:
            accuracies, rank = train(world, options), world.rank
            title = f"{options.algorithm}, {world.size} ranks"
    else:
        try:
            accuracies, rank = spawn(options.ranks, train, options, timeout=600.0)[0], 0
        except RankFailed as error:
            # The last line of the traceback has the reason.
            sys.exit(f"digits.py: {str(error).strip().splitlines()[-1]}")
    if rank == 0:
        try:
            draw(accuracies, title, options.out)
        except OSError as error:
            sys.exit(f"digits.py: cannot write {options.out}: {error.strerror}; give another --out")
        print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
