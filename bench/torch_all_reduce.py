"""All-reduces and DDP steps from Python, over hexagram beside Gloo: both groups in the same processes, by turns.

    python3 bench/torch_all_reduce.py            # all-reduce of f32, medians of rank 0, 2 ranks on this host
    python3 bench/torch_all_reduce.py --busy     # with two busy loops beside
    python3 bench/torch_all_reduce.py --ddp      # the whole step of DDP, of the model of bench/ddp_step.py
"""
import argparse
import datetime
import multiprocessing
import statistics
import tempfile
import time

WIDTH, DEPTH, BATCH = 1024, 8, 32
SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20]


def interleave(calls, times, block):
    """Times the calls in turn, `block` of each at a time; returns the median of each, in seconds."""
    took = [[] for _ in calls]
    for turn in range(1 + times // block):
        for call, mine in zip(calls, took, strict=True):
            for _ in range(block):
                start = time.perf_counter()
                call()
                if turn > 0:  # The first block warms up.
                    mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in took]


def all_reduces(groups):
    """Returns a row for each size: bytes, and the time over each group."""
    import torch
    import torch.distributed as dist

    for size in SIZES:
        x = torch.zeros(size // 4)
        calls = [lambda group=group, x=x: dist.all_reduce(x, group=group) for group in groups]
        yield f"{size} B", interleave(calls, *((1000, 50) if size <= 64 << 10 else (100, 10) if size <= 8 << 20 else (20, 4)))


def ddp_steps(groups):
    """Returns one row: the time of a training step over each group."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def step_over(group):
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(DEPTH)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

        def step():
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()

        return step

    yield "DDP step", interleave([step_over(group) for group in groups], 60, 5)


def rank(number, size, store, rows):
    """Measures on one rank, and prints on rank 0."""
    import torch
    import torch.distributed as dist

    import hexagram.torch  # noqa: F401

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=100)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=size, timeout=timeout)
    groups = [dist.group.WORLD, dist.new_group(backend="hexagram", timeout=timeout)]
    for what, (gloo, ours) in rows(groups):
        if number == 0:
            print(f"{what}: Gloo {gloo * 1e6:.1f} us, hexagram {ours * 1e6:.1f} us, {gloo / ours:.2f} times", flush=True)
    dist.destroy_process_group()


def loop():
    """Keeps one core busy."""
    while True:
        pass


def main():
    """Starts the ranks, and the busy loops."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="start two busy loops beside")
    parser.add_argument("--ddp", action="store_true", help="time training steps rather than all-reduces")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=loop, daemon=True) for _ in range(2 if options.busy else 0)]
    rows = ddp_steps if options.ddp else all_reduces
    store = tempfile.mktemp()
    ranks = [
        context.Process(target=rank, args=(number, options.ranks, store, rows)) for number in range(options.ranks)
    ]
    for process in [*loops, *ranks]:
        process.start()
    for process in ranks:
        process.join()
    for process in loops:
        process.kill()


if __name__ == "__main__":
    main()
