"""The handwritten digits of this repository, and a small model of them: what tests and figures train."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = Path(__file__).parents[2] / "lab" / "data" / "digits.csv.gz"

#: Learning rates other than 0.15, as `examples/src/defaults.rs` has them.
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
    """Returns images ``(samples, 64)`` from 0 to 1 and labels to train on, and those of every fifth, held out."""
    with gzip.open(FILE, "rt") as lines:
        rows = torch.tensor([[float(field) for field in row] for row in csv.reader(lines)])
    images, labels = rows[:, :64] / 16, rows[:, 64].long()
    held_out = torch.arange(len(rows)) % 5 == 4
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def model(seed: int = 0, width: int = 64) -> nn.Sequential:
    """Returns an untrained net of two layers, the same for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def batches(rank: int, size: int, epochs: int, batch: int = 16, samples: int = 1438):
    """Yields the indices of a rank's batches: every epoch another order, the same number on all ranks."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(epochs):
        order = torch.randperm(samples, generator=generator)
        order = order[: samples // (batch * size) * batch * size]
        yield from order[rank::size].split(batch)


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Returns the share of images that a net knows."""
    with torch.no_grad():
        return (net(images).argmax(1) == labels).float().mean().item()
