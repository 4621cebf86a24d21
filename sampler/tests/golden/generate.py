"""Writes more.json beside this file: orders of torch's samplers, and of Bagua's algorithms on torch's random numbers.

    python3 generate.py            # needs torch 2.15

samplers.json has cases of the same form. Complexities and weights come from a linear congruential generator, so that
the files need not hold them; orders of more than 64 indices are given by their first 16 and a hash of all.
"""

import json
import pathlib
import random

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler

MASK = (1 << 64) - 1


def lcg(seed, count, modulo):
    state, numbers = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        numbers.append((state >> 33) % modulo)
    return numbers


def fnv1a64(indices):
    value = 0xCBF29CE484222325
    for index in indices:
        for byte in index.to_bytes(8, "little"):
            value = ((value ^ byte) * 0x100000001B3) & MASK
    return f"{value:016x}"


def order(indices):
    key, shown = ("indices", 64) if len(indices) <= 64 else ("first", 16)
    return {"len": len(indices), "fnv1a64": fnv1a64(indices), key: indices[:shown]}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def balanced(complexity, num_replicas, shuffle, seed, epoch, drop_last, random_level):
    """All ranks' orders, as Bagua's LoadBalancingDistributedSampler gives them."""
    n = len(complexity)
    share = n // num_replicas if drop_last else -(-n // num_replicas)
    groups, keys = list(range(share)), complexity
    if shuffle:
        generator = seeded(seed + epoch)
        bound = int((max(complexity) - min(complexity)) * random_level + 1)
        noise = torch.randint(bound, (n,), generator=generator).tolist()
        keys = [known + random for known, random in zip(complexity, noise)]
        groups = torch.randperm(share, generator=generator).tolist()
    by_key = sorted(range(n), key=keys.__getitem__)
    return [[by_key[(group * num_replicas + rank) % n] for group in groups] for rank in range(num_replicas)]


def batched(indices, complexity, limit):
    batches, tokens = [], 0
    for index in indices:
        if not batches or tokens + complexity[index] > limit:
            batches, tokens = batches + [[]], 0
        batches[-1].append(index)
        tokens += complexity[index]
    return batches


def distributed(draw, cases):
    for _ in range(15):
        arguments = dict(num_replicas=draw.choice([1, 2, 3, 5, 7, 8, 16, 33]), shuffle=draw.random() < 0.8)
        arguments |= dict(seed=draw.choice([0, 1, 2**31, 2**32 - 1, 2**32 + 5, 2**63, 2**64 - 10]), drop_last=draw.random() < 0.5)
        length = draw.choice([1, 2, 3, 10, 40, 200, 3000])
        if arguments["drop_last"] and length < arguments["num_replicas"]:
            continue
        epoch = draw.randrange(5)
        ranks = []
        for rank in range(arguments["num_replicas"]):
            sampler = DistributedSampler(range(length), rank=rank, **arguments)
            sampler.set_epoch(epoch)
            ranks.append(order(list(sampler)))
        cases.append(dict(sampler="distributed", len=length, epoch=epoch, **arguments, ranks=ranks))


def load_balancing(draw, cases):
    # Scales by which noise crosses 2^28, from where torch draws 64 bits, and by which complexities are no integers.
    for scale in [1, 1, 0.37, 1e-3, 2684354, 26843545.6, 2684355 * 10, 10**9, 12345678901]:
        for level in [0.0, 0.1, 0.5, 1.0]:
            case = dict(num_replicas=draw.choice([1, 2, 3, 4, 8]), shuffle=draw.random() < 0.9, seed=draw.randrange(2**40))
            case |= dict(epoch=draw.randrange(4), drop_last=draw.random() < 0.5, random_level=level)
            length, modulo = draw.choice([8, 9, 37, 500, 2001]), draw.choice([1, 2, 101, 9999])
            lcg_seed = draw.randrange(10**6)
            complexity = [number * scale for number in lcg(lcg_seed, length, modulo)]
            ranks = [order(indices) for indices in balanced(complexity, **case)]
            given = dict(lcg_seed=lcg_seed, modulo=modulo, scale=scale)
            cases.append(dict(sampler="load_balancing", len=length, complexity=given, **case, ranks=ranks))


def load_balancing_batches(draw, cases):
    for _ in range(12):
        length, replicas, modulo = draw.choice([20, 100, 777]), draw.choice([1, 2, 3, 4]), draw.choice([5, 100])
        case = dict(shuffle=draw.random() < 0.8, seed=draw.randrange(2**32), epoch=draw.randrange(3), random_level=draw.choice([0.0, 0.3, 1.0]))
        lcg_seed, limit = draw.randrange(10**6), modulo * draw.choice([1, 3, 10])
        complexity = lcg(lcg_seed, length, modulo)
        ranks = [batched(indices, complexity, limit) for indices in balanced(complexity, replicas, drop_last=False, **case)]
        most = max(map(len, ranks))
        ranks = [batches + batches[: most - len(batches)] for batches in ranks]
        flat = [dict(batches=len(batches), **order(sum(batches, []))) for batches in ranks]
        given = dict(lcg_seed=lcg_seed, modulo=modulo)
        cases.append(dict(sampler="load_balancing_batches", len=length, complexity=given, num_replicas=replicas, max_tokens=limit, **case, ranks=flat))


def one_rank(draw, cases):
    for _ in range(14):
        length, seed, replacement = draw.choice([1, 2, 7, 50, 1000]), draw.randrange(2**34), draw.random() < 0.6
        samples = draw.choice([None, 1, 5, 31, 32, 33, 64, 2500])
        sampler = RandomSampler(range(length), replacement, samples, generator=seeded(seed))
        cases.append(dict(sampler="random", len=length, seed=seed, replacement=replacement, num_samples=samples, flat=order(list(sampler))))
    # Ranges around 2^28, which draw 32 and 64 bits.
    for length in [2**28 - 1, 2**28, 2**32, 2**40 + 1]:
        sampler = RandomSampler(range(length), True, 20, generator=seeded(6))
        cases.append(dict(sampler="random", len=length, seed=6, replacement=True, num_samples=20, flat=order(list(sampler))))
    for _ in range(4):
        lcg_seed, length, seed = draw.randrange(10**6), draw.choice([1, 9, 300]), draw.randrange(2**34)
        indices = lcg(lcg_seed, length, 10**6)
        sampler = SubsetRandomSampler(indices, generator=seeded(seed))
        cases.append(dict(sampler="subset", lcg_seed=lcg_seed, len=length, seed=seed, flat=order(list(sampler))))
    for number in range(16):
        lcg_seed, length, seed = draw.randrange(10**6), draw.choice([1, 2, 30, 400]), draw.randrange(2**34)
        modulo, replacement = draw.choice([3, 1000]), number % 2 == 0
        weights = [weight / 7 for weight in lcg(lcg_seed, length, modulo)]
        positive = sum(weight > 0 for weight in weights)
        samples = draw.choice([1, 20, 300] if replacement else [1, max(1, positive // 2), max(1, positive)])
        if positive == 0:
            continue
        sampler = WeightedRandomSampler(weights, samples, replacement, generator=seeded(seed))
        case = dict(sampler="weighted", lcg_seed=lcg_seed, modulo=modulo, len=length, seed=seed, replacement=replacement)
        cases.append(dict(case, num_samples=samples, flat=order(list(sampler))))
    for length, size, drop_last in [(10, 3, False), (10, 3, True), (9, 3, False), (9, 3, True), (2, 3, False)]:
        batches = list(BatchSampler(SequentialSampler(range(length)), size, drop_last))
        cases.append(dict(sampler="batch", len=length, batch_size=size, drop_last=drop_last, batches=batches))


def main():
    draw, cases = random.Random(7), []
    for make in [distributed, load_balancing, load_balancing_batches, one_rank]:
        make(draw, cases)
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n'
    pathlib.Path(__file__).with_name("more.json").write_text(text)


if __name__ == "__main__":
    main()
