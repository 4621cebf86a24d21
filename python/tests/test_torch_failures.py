"""What a training program must survive, or be told by name: dropped works, dead ranks, exits, forks and many threads."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

pytest.importorskip("torch")

from torch_ranks import run, run_each  # noqa: E402


def drop_works(rank: int) -> float:
    """Begins many operations and drops works and tensors at once; others fill the memory meanwhile."""
    import torch
    import torch.distributed as dist

    rubbish, last = [], torch.ones(1)
    for step in range(400):
        size = 1 + (step * 7919) % 50_000
        dist.all_reduce(torch.ones(size), async_op=True)
        dist.all_gather([torch.empty(size), torch.empty(size)], torch.ones(size), async_op=True)
        future = dist.all_reduce(torch.ones(size), async_op=True).get_future()
        future.then(lambda done: done.value()[0].sum())
        dist.isend(torch.full((size,), float(step)), 1 - rank)
        dist.irecv(torch.empty(size), 1 - rank)
        rubbish = [torch.full((size,), 3.0) for _ in range(3)] if step % 3 else []
    dist.all_reduce(last)
    return last.item() + 0 * len(rubbish)


def test_works_dropped_at_once(monkeypatch):
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    assert run("hexagram", 2, drop_works) == [2.0, 2.0]


def die_in_training(rank: int) -> None:
    """Trains; rank 1 kills itself in the middle of it."""
    import torch

    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
    for step in range(100):
        if rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        net(torch.randn(4, 512)).sum().backward()


def test_a_killed_rank_is_named_on_all_others():
    outcomes = run_each("hexagram", 3, die_in_training)
    assert outcomes[1] == ("died", -signal.SIGKILL)
    for rank in (0, 2):
        kind, text = outcomes[rank]
        assert kind == "raised"
        # DDP's C++ passes the text on, and not the class.
        assert re.search(r"PeerFailed: rank 1 ", text)


def fail_in_a_group(rank: int) -> tuple:
    """Fails in a group of the ranks 1 and 2, of which rank 2 does not come, and goes on in the group of all."""
    import torch
    import torch.distributed as dist

    import hexagram

    group = dist.new_group([1, 2])
    error = None
    if rank == 1:
        try:
            group.set_timeout(timedelta_of(0.5))
            dist.all_reduce(torch.ones(1), group=group)
        except hexagram.DeadlineExceeded as raised:
            error = (raised.rank, " Timed out " in str(raised))
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item(), error


def timedelta_of(seconds: float):
    """Returns a time as PyTorch wants it."""
    from datetime import timedelta

    return timedelta(seconds=seconds)


def test_a_group_that_fails_leaves_the_others():
    outcomes = run("hexagram", 3, fail_in_a_group)
    assert outcomes[0] == outcomes[2] == (3.0, None)
    assert outcomes[1][0] == 3.0
    assert outcomes[1][1] == (2, True)


def exit_in_flight(rank: int) -> None:
    """Leaves operations under way that the other rank never joins."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank == 0:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda _: None)
        dist.irecv(torch.empty(5), 1)


def test_exit_with_works_in_flight():
    assert [kind for kind, _ in run_each("hexagram", 2, exit_in_flight, timeout=5)] == ["returned"] * 2


def fork_a_worker(rank: int) -> str:
    """Touches the group in a forked worker of a DataLoader."""
    import torch
    import torch.distributed as dist

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> str:
            try:
                dist.all_reduce(torch.ones(1))
            except Exception as error:  # noqa: BLE001  (the test looks at it)
                return f"{type(error).__name__}: {error}"
            return "nothing happened"

    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork", batch_size=None)
    text = next(iter(loader))
    total = torch.ones(1)
    dist.all_reduce(total)
    return f"{total.item()} {text}"


def test_a_forked_worker_is_refused():
    for text in run("hexagram", 2, fork_a_worker):
        assert text.startswith("2.0 UsageError: ")
        assert "fork" in text


def use_many_threads(rank: int) -> list[float]:
    """Uses a group on each of many threads, with callbacks that begin operations."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]) for _ in range(6)]
    sums = [0.0] * len(groups)

    def work(number: int) -> None:
        group = groups[number]
        for _ in range(30):
            first, second, third = torch.ones(100), torch.ones(100), torch.ones(100)

            def begin_another(_, second=second):
                dist.all_reduce(second, group=group, async_op=True).wait()

            chained = dist.all_reduce(first, group=group, async_op=True).get_future().then(begin_another)
            chained.wait()
            dist.all_reduce(third, group=group)
            sums[number] += (first + second + third).sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


def test_many_threads_and_callbacks_that_begin_operations():
    assert run("hexagram", 2, use_many_threads) == [[30 * 600.0] * 6] * 2


def refuse(rank: int) -> list[str]:
    """Passes what cannot travel; returns what was said."""
    import torch
    import torch.distributed as dist

    calls = {
        "quantized": lambda: dist.broadcast(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), 0),
        "another device": lambda: dist.all_reduce(torch.ones(2, device="meta")),
        "sparse": lambda: dist.broadcast(torch.ones(2).to_sparse(), 0),
        "rare type": lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)),
        "mean of integers": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.AVG),
        "bits of floats": lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        "sizes": lambda: dist.all_to_all_single(torch.ones(4), torch.ones(3)),
    }
    said = []
    for call in calls.values():
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(type(error).__name__)
    total = torch.ones(1)
    dist.all_reduce(total)
    return [*said, total.item()]


def test_what_cannot_travel_is_refused_and_the_group_goes_on():
    assert run("hexagram", 2, refuse) == [["UsageError"] * 7 + [2.0]] * 2
