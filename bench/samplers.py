#!/usr/bin/env python3
"""The order of an epoch of a million samples on one rank of eight: PyTorch's DistributedSampler, and Bagua's
load-balancing algorithm on PyTorch, beside ours. One thread, medians of one run.

    python3 bench/samplers.py      # needs torch; builds ours with cargo
"""

import pathlib
import random
import statistics
import subprocess
import time

import torch
from torch.utils.data import DistributedSampler

SAMPLES, RANKS, RUNS = 10**6, 8, 5


def distributed():
    return list(DistributedSampler(range(SAMPLES), num_replicas=RANKS, rank=0, shuffle=True))


def load_balancing(complexity):
    """Bagua's algorithm in plain lists, which are faster than its dictionaries."""
    generator = torch.Generator().manual_seed(0)
    known = sorted(range(SAMPLES), key=complexity.__getitem__)
    bound = int((complexity[known[-1]] - complexity[known[0]]) * 0.1 + 1)
    noise = torch.randint(bound, (SAMPLES,), generator=generator).tolist()
    keys = [cost + random for cost, random in zip(complexity, noise)]
    by_key = sorted(range(SAMPLES), key=keys.__getitem__)
    groups = [by_key[begin : begin + RANKS] for begin in range(0, SAMPLES, RANKS)]
    return [groups[at][0] for at in torch.randperm(len(groups), generator=generator).tolist()]


def median(function):
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def ours():
    root = pathlib.Path(__file__).resolve().parent.parent
    command = ["cargo", "bench", "--quiet", "-p", "hexagram-sampler", "--bench", "order"]
    printed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    lines = (line.split() for line in printed.splitlines() if line.endswith(" ms"))
    return {name: float(milliseconds) for name, milliseconds, _ in lines}


def main():
    torch.set_num_threads(1)
    complexity = [random.randrange(10**4) for _ in range(SAMPLES)]
    theirs = {"DistributedSampler": median(distributed)}
    theirs["LoadBalancingDistributedSampler"] = median(lambda: load_balancing(complexity))
    for name, milliseconds in ours().items():
        if name in theirs:
            ratio = theirs[name] / milliseconds
            print(f"{name:32} Python {theirs[name]:8.1f} ms   ours {milliseconds:6.2f} ms   {ratio:5.1f} times faster")
        else:
            print(f"{name:32}                      ours {milliseconds:6.2f} ms")


if __name__ == "__main__":
    main()
