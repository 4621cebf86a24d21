"""Trains the digits by every algorithm from Python and by the Rust program, and compares the accuracies.

    cargo build --release -p hexagram-candle --example candle-train
    python python/bench/algorithms.py --seeds 0 1 2                   # all; replaces the table in bench/results/measurements.md
    python python/bench/algorithms.py --seeds 0 1 2 bytegrad sgp      # some: prints their table
    python python/bench/algorithms.py --only rust --epochs 1 --losses python/tests/digits_losses.json

Both sides start with the same parameters and take the same samples in the same steps, with the learning rates in
`lab/src/learning_rates.rs`. In Python the optimizer is PyTorch's SGD, unless the algorithm names its own; in Rust it is
that of the engine. Every run is a line of `--kept`, and is not repeated: an interrupted series continues where it
ended. `--losses` writes the reference for the first steps in the tests of `python/tests`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, variance
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import hexagram
from hexagram import _native
from hexagram.testing import spawn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))

import digits  # noqa: E402  (of the tests, which are no package)

BEGIN, END = "<!-- python/bench/algorithms: begin -->", "<!-- python/bench/algorithms: end -->"
#: Number of losses of each algorithm in the file for tests.
LOSSES = 5


def main() -> None:
    """Makes the missing runs, and writes the table."""
    options = arguments()
    names = options.algorithms or [name for name, *_ in _native.algorithms()]
    kept = Kept(options.kept, options.epochs)
    wanted = [(name, seed) for seed in options.seeds for name in names]
    if options.only != "python":
        for at, (name, seed) in enumerate(wanted):
            if not kept.has("rust", name, seed):
                kept.add(by_rust(options.train, name, seed, options.epochs))
                print(f"{at + 1} of {len(wanted)}: {kept.line('rust', name, seed)}", flush=True)
    if options.only != "rust":
        left = [(name, seed) for name, seed in wanted if not kept.has("python", name, seed)]
        if left:
            spawn(4, by_python, left, options.epochs, str(options.kept), timeout=36000.0, deadline=600.0)
            kept = Kept(options.kept, options.epochs)
    if options.losses:
        lines = [f'"{name}": {json.dumps(kept.runs["rust", name, 0]["losses"])}' for name in names]
        options.losses.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if options.only is None:
        write(table(kept, names, options.seeds), options)


def arguments() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", help="algorithms, in any spelling (default: all)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of the first parameters and the samples' order"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--only", choices=("rust", "python"), help="make the runs of one side, and no table")
    parser.add_argument(
        "--train", type=Path, default=target / "release" / "examples" / "candle-train", help="the Rust program"
    )
    parser.add_argument(
        "--kept", type=Path, default=target / "python-digits.jsonl", help="file of the runs made so far"
    )
    parser.add_argument("--losses", type=Path, help="file for the first losses of the Rust program, of seed 0")
    options = parser.parse_args()
    if options.only != "python" and not options.train.exists():
        parser.error(
            f"there is no {options.train}; build it: cargo build --release -p hexagram-candle --example candle-train"
        )
    return options


class Kept:
    """The runs made so far, each a line of JSON in a file."""

    def __init__(self, file: Path, epochs: int):
        self.file = file
        self.epochs = epochs
        self.runs: dict[tuple[str, str, int], dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            run = json.loads(line)
            if run["epochs"] == epochs:
                self.runs[run["side"], run["algorithm"], run["seed"]] = run

    def has(self, side: str, name: str, seed: int) -> bool:
        """Returns whether a run exists."""
        return (side, name, seed) in self.runs

    def add(self, run: dict[str, Any]) -> None:
        """Keeps a run."""
        self.runs[run["side"], run["algorithm"], run["seed"]] = run
        with self.file.open("a") as lines:
            lines.write(json.dumps(run) + "\n")

    def line(self, side: str, name: str, seed: int) -> str:
        """Returns a run as a readable line."""
        return f"{side}, {name}, seed {seed}: {self.runs[side, name, seed]['accuracy']:.2%}"

    def accuracies(self, side: str, name: str, seeds: Sequence[int]) -> list[float]:
        """Returns the accuracies of these seeds, in percent."""
        return [100 * self.runs[side, name, seed]["accuracy"] for seed in seeds]


def by_rust(program: Path, name: str, seed: int, epochs: int) -> dict[str, Any]:
    """Runs the Rust program."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--algorithm", name, "--seed", seed, "--epochs", epochs, "--json", "--out", folder]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        report = json.loads(done.stdout.splitlines()[-1])
        events = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    told = {"side": "rust", "algorithm": name, "seed": seed, "epochs": epochs}
    return told | {"accuracy": report["test_accuracy"], "losses": losses[:LOSSES]}


def by_python(world: hexagram.World, wanted: Sequence[tuple[str, int]], epochs: int, file: str) -> None:
    """Makes runs on this rank, one after another; rank 0 keeps them."""
    torch.set_num_threads(1)
    kept = Kept(Path(file), epochs)
    for at, (name, seed) in enumerate(wanted):
        accuracy = trained(world, name, seed, epochs)
        if world.rank == 0:
            told = {"side": "python", "algorithm": name, "seed": seed, "epochs": epochs}
            kept.add(told | {"accuracy": accuracy})
            print(f"{at + 1} of {len(wanted)}: {kept.line('python', name, seed)}", flush=True)


def trained(world: hexagram.World, name: str, seed: int, epochs: int) -> float:
    """Trains with an algorithm, like the example of candle; returns the accuracy of the mean of the replicas."""
    images, labels, test_images, test_labels = digits.load()
    net = digits.net(seed)
    model, optimizer = digits.replica(net, name, world)
    for epoch in range(epochs):
        for index in digits.order(world.rank, world.size, epoch, seed):
            optimizer.zero_grad()
            cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
        model.evaluate_mean(lambda: None)
    model.average()
    accuracy = digits.accuracy(net, test_images, test_labels)
    model.close()
    return accuracy


def table(kept: Kept, names: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns the accuracies of both sides as a table, with a reference for their difference."""
    lines = ["| algorithm | Rust | mean | Python | mean | difference |", "|---|---|---|---|---|---|"]
    differences, spreads = [], []
    for name in names:
        sides = [kept.accuracies(side, name, seeds) for side in ("rust", "python")]
        differences.append(mean(sides[1]) - mean(sides[0]))
        spreads += [variance(side) for side in sides if len(side) > 1]
        cells = [cell for side in sides for cell in (", ".join(f"{one:.2f}" for one in side), f"{mean(side):.2f}")]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {differences[-1]:+.2f} |")
    told = f"Mean of the differences: {mean(differences):+.2f}; largest: {max(differences, key=abs):+.2f}."
    if spreads:
        spread = mean(spreads) ** 0.5
        bound = 2 * spread * (2 / len(seeds)) ** 0.5
        outside = [f"`{name}`" for name, one in zip(names, differences, strict=True) if abs(one) > bound]
        told += (
            f" Standard deviation of a run over the seeds, of all runs: {spread:.2f}; two means of {len(seeds)} then differ "
            f"by at most {bound:.2f} in 95 % of all cases. Outside: {', '.join(outside) or 'none'}."
        )
    return "\n".join([*lines, "", told])


def write(text: str, options: argparse.Namespace) -> None:
    """Prints the table, or replaces the one in the documentation if it has all algorithms."""
    page = ROOT / "bench" / "results" / "measurements.md"
    if options.algorithms:
        print(text)
        return
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    print(f"{page} is up to date")


if __name__ == "__main__":
    main()
