"""Events that a training program must survive, or that are reported: dropped works, dead ranks, exits, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run, run_each  # noqa: E402


def drop_works(rank: int, steps: int) -> float:
    """Begins many operations and drops works and tensors immediately; others fill the memory meanwhile.

    The received values of some operations are kept: their inputs, also dropped, must still arrive.
    """
    import torch
    import torch.distributed as dist

    rubbish, last, kept = [], torch.ones(1), []
    for step in range(steps):
        size = 1 + (step * 7919) % 50_000
        gathered, received = [torch.empty(size), torch.empty(size)], torch.empty(size)
        dist.all_reduce(torch.ones(size), async_op=True)
        works = [dist.all_gather(gathered, torch.full((size,), float(step + rank)), async_op=True)]
        future = dist.all_reduce(torch.ones(size), async_op=True).get_future()
        future.then(lambda done: done.value()[0].sum())
        dist.isend(torch.full((size,), float(step)), 1 - rank)
        works.append(dist.irecv(received, 1 - rank))
        if step % 7 == 0:
            kept.append((step, works, [*gathered, received]))
        rubbish = [torch.full((size,), 3.0) for _ in range(3)] if step % 3 else []
        del future, works, gathered, received
    dist.all_reduce(last)
    for step, works, tensors in kept:
        for work in works:
            work.wait()
        for expected, tensor in zip((step, step + 1, step), tensors, strict=True):
            assert tensor.eq(expected).all(), (step, expected, tensor)
    return last.item() + 0 * len(rubbish)


def test_works_dropped_at_once(monkeypatch):
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    assert run("hexagram", 2, drop_works, 400, seconds=500) == [2.0, 2.0]


def sanitizer() -> str | None:
    """Returns the path of the library of the address sanitizer, if the compiler of this machine has it."""
    try:
        command = ["gcc", "-print-file-name=libasan.so"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return path if os.path.isabs(path) else None


@pytest.mark.skipif(sanitizer() is None, reason="there is no libasan.so of gcc")
@pytest.mark.skipif(
    torch.__version__.startswith("2.8."), reason="PyTorch 2.8 throws, which libasan does not survive in a preload"
)
def test_works_dropped_at_once_under_the_address_sanitizer(monkeypatch):
    """Freed memory stays poisoned there, and a copy from or to it aborts the process.

    Stable Rust cannot check each access in its own code; the copies of libc are checked.
    """
    monkeypatch.setenv("LD_PRELOAD", sanitizer())
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:quarantine_size_mb=64")
    assert run("hexagram", 2, drop_works, 100, seconds=500, timeout=300) == [2.0, 2.0]


def die_in_training(rank: int) -> None:
    """Trains; rank 1 kills itself during the training."""
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
        # Through the C++ code of DDP with its class.
        assert text.startswith("hexagram.errors.PeerFailed: rank 1 "), text


def stop_in_training(rank: int, hook: str | None) -> str | None:
    """Trains; rank 1 stops during the training and never continues. Returns the error of the others."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import hexagram
    from hexagram.torch.hooks import hook as ours

    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
    if hook == "bf16_compress_hook":
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook is not None:
        net.register_comm_hook(*ours(hook))
    pids = [None, None]
    torch.distributed.all_gather_object(pids, os.getpid())
    try:
        for step in range(100):
            if rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGSTOP)
            net(torch.randn(4, 512)).sum().backward()
    except hexagram.PeerFailed as error:
        os.kill(pids[1], signal.SIGKILL)
        return f"{error.rank} {error.pid == pids[1]} {error.cause}"
    return None


@pytest.mark.parametrize("hook", [None, "bf16_compress_hook", "bytegrad"])
def test_a_stopped_rank_is_named(hook):
    outcomes = run_each("hexagram", 2, stop_in_training, hook)
    assert outcomes[1] == ("died", -signal.SIGKILL), outcomes
    kind, text = outcomes[0]
    assert kind == "returned" and text.startswith("1 True "), outcomes


def disagree(rank: int) -> tuple[str, int | None]:
    """Reduces a different number of elements on each rank; returns the class of the error, and the rank it names."""
    import torch
    import torch.distributed as dist

    import hexagram

    try:
        dist.all_reduce(torch.ones(5 + rank), async_op=True).wait()
    except hexagram.Error as error:
        assert "ranks disagree" in str(error)
        return type(error).__name__, error.rank
    return "nothing", None


def test_ranks_that_disagree():
    outcomes = run_each("hexagram", 2, disagree)
    for rank, (kind, value) in enumerate(outcomes):
        assert kind == "returned" and value[0] in ("Mismatch", "PeerFailed") and value[1] == 1 - rank, outcomes


EXITS = """
import sys
import torch
import torch.distributed as dist
import hexagram.torch

dist.init_process_group("hexagram", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
dist.all_reduce(torch.ones(1))
if sys.argv[2] == "1":
    sys.exit(0)
for _ in range(3):
    dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda _: None)
try:
    dist.all_reduce(torch.ones(10))
except hexagram.Error as error:
    # `Poisoned` if the operations that nobody waits for have failed before.
    print(f"{type(error).__name__}: {error}", flush=True)
"""


def test_exit_without_destroying_the_group(tmp_path):
    program = tmp_path / "exits.py"
    program.write_text(EXITS)
    commands = [[sys.executable, program, tmp_path / "store", str(rank)] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0].startswith(("PeerFailed: rank 1 ", "Poisoned: ")) and "rank 1 " in said[0], said


def fail_in_a_group(rank: int) -> tuple:
    """Fails in a group of the ranks 1 and 2, because rank 2 is missing, and continues in the group of all."""
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
    """Returns a time in the form for PyTorch."""
    from datetime import timedelta

    return timedelta(seconds=seconds)


def test_a_group_that_fails_leaves_the_others():
    outcomes = run("hexagram", 3, fail_in_a_group)
    assert outcomes[0] == outcomes[2] == (3.0, None)
    assert outcomes[1][0] == 3.0
    assert outcomes[1][1] == (2, True)


def exit_in_flight(rank: int) -> None:
    """Leaves operations in progress that the other rank never joins."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank == 0:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda _: None)
        dist.irecv(torch.empty(5), 1)


def test_exit_with_works_in_flight():
    assert [kind for kind, _ in run_each("hexagram", 2, exit_in_flight, timeout=5)] == ["returned"] * 2


ALIVE = """
import sys
import torch
import torch.distributed as dist
import hexagram.torch

dist.init_process_group("hexagram", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
nets = [torch.nn.Linear(8, 8) for _ in range(2)]
ddp = torch.nn.parallel.DistributedDataParallel(nets[0])
ddp.register_comm_hook(*hexagram.torch.hook("bytegrad"))
engine = hexagram.torch.DataParallel(nets[1], torch.optim.SGD(nets[1].parameters(), 0.1), algorithm="choco-sgd")
for net in (ddp, engine):
    net(torch.randn(4, 8)).sum().backward()
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
works[3].get_future().then(lambda done: done.value()[0].sum())
print("ends", flush=True)
"""


def test_the_interpreter_ends_with_everything_alive(tmp_path):
    program = tmp_path / "alive.py"
    program.write_text(ALIVE)
    commands = [[sys.executable, program, tmp_path / "store", str(rank)] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert ([rank.returncode for rank in ranks], said) == ([0, 0], ["ends\n"] * 2)


def abort(rank: int) -> str:
    """Aborts the group on rank 1; returns the error of the other."""
    import torch
    import torch.distributed as dist

    import hexagram

    if rank == 1:
        dist.group.WORLD.abort()
        return ""
    try:
        dist.all_reduce(torch.ones(1))
    except hexagram.PeerFailed as error:
        return f"rank {error.rank} {error.cause}"
    return "nothing"


def test_an_aborted_group_is_told_to_all():
    outcomes = run_each("hexagram", 2, abort)
    assert outcomes[1] == ("returned", "")
    assert outcomes[0][0] == "returned" and outcomes[0][1].startswith("rank 1 "), outcomes
    assert "aborted the process group" in outcomes[0][1]


def leave_in_another_order(rank: int) -> float:
    """Leaves two groups in the opposite order of the other rank; then two worlds, with a different rank 0 each."""
    import torch
    import torch.distributed as dist

    from hexagram.torch.start import join

    store = dist.group.WORLD.get_group_store()
    group, total = dist.new_group([0, 1]), torch.ones(1)
    if rank == 0:
        dist.destroy_process_group(group)
    dist.all_reduce(total)
    if rank == 1:
        dist.destroy_process_group(group)
    worlds = [join(dist.PrefixStore(f"{turn}", store), (rank + turn) % 2, 2, 30, 30) for turn in range(2)]
    for world in worlds if rank == 0 else reversed(worlds):
        world.close()
    return total.item()


def test_groups_that_are_left_in_another_order():
    # Much less than the 200 s for which rank 0 of a world waits for the others.
    assert run("hexagram", 2, leave_in_another_order, seconds=100, timeout=200) == [2.0, 2.0]


def fork_a_worker(rank: int) -> str:
    """Uses the group in a forked worker of a DataLoader."""
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


def fork_and_drop(rank: int) -> float:
    """Drops all objects of its parent in a forked child, which ends like a program."""
    import torch
    import torch.distributed as dist

    from hexagram.torch.data_parallel import DataParallel
    from hexagram.torch.hooks import hook

    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    state, function = hook("bytegrad")
    net.register_comm_hook(state, function)
    other = torch.nn.Linear(8, 8)
    engine = DataParallel(other, torch.optim.SGD(other.parameters(), 0.1), algorithm="choco-sgd")
    held = {"net": net, "state": state, "function": function, "engine": engine, "group": dist.new_group([0, 1])}
    work = held["work"] = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    del net, state, function, engine, work
    child = os.fork()
    if child == 0:
        child_ends(held)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    for key in ("net", "engine"):
        held[key](torch.randn(2, 8)).sum().backward()
    total = torch.ones(1)
    dist.all_reduce(total, group=held["group"])
    return total.item()


def child_ends(held: dict) -> None:
    """Drops everything, collects the rest, and runs the exit handlers of a program. Does not return."""
    import atexit
    import gc

    import torch.distributed as dist

    code = 1
    try:
        held.clear()
        dist.destroy_process_group()
        gc.collect()
        atexit._run_exitfuncs()
        code = 0
    finally:
        os._exit(code)


def test_a_forked_child_that_drops_everything_disturbs_nobody():
    assert run("hexagram", 2, fork_and_drop) == [2.0, 2.0]


def wait_in_vain(rank: int) -> tuple:
    """Waits for an operation that the other rank begins later, with a shorter timeout; then for its end."""
    import torch
    import torch.distributed as dist

    import hexagram

    mine = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(mine, async_op=True)
        try:
            work.wait(timedelta_of(0.05))
        except hexagram.Error as error:
            said = (type(error).__name__, isinstance(error, TimeoutError), work.is_completed(), work.exception())
        dist.send(torch.ones(1), 1)
        work.wait(timedelta_of(50))
        return mine[0].item(), work.is_success(), *said
    dist.recv(torch.ones(1), 0)
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    return mine[0].item(), work.is_success()


def test_a_wait_has_a_time_of_its_own():
    assert run("hexagram", 2, wait_in_vain) == [(2.0, True, "StillUnderWay", True, False, None), (2.0, True)]


def fail_in_a_future(rank: int) -> tuple[str, int] | None:
    """Waits for the future of an operation that fails, where PyTorch keeps the text of the error."""
    import torch
    import torch.distributed as dist

    from hexagram.torch.errors import original

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    except RuntimeError as error:
        failure = original(error)
        return type(failure).__name__, failure.rank
    return None


def test_the_error_behind_a_future_is_found():
    outcomes = run_each("hexagram", 2, fail_in_a_future)
    assert outcomes[0] == ("returned", ("PeerFailed", 1)), outcomes


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
    """Passes tensors that cannot be sent; returns the errors."""
    import torch
    import torch.distributed as dist

    calls = {
        "quantized": lambda: dist.broadcast(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), 0),
        "another device": lambda: dist.all_reduce(torch.ones(2, device="meta")),
        "sparse": lambda: dist.broadcast(torch.ones(2).to_sparse(), 0),
        "rare type": lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)),
        "mean of flags": lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG),
        "bits of floats": lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        "sizes": lambda: dist.all_to_all_single(torch.ones(4), torch.ones(3)),
        "negative sizes": lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [3, -1], [3, -1]),
        "negative tag": lambda: dist.send(torch.ones(2), 1 - rank, tag=-1),
        "large tag": lambda: dist.recv(torch.ones(2), 1 - rank, tag=2**40),
        "types": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4).double()),
        "sparse by rows": lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
        "several in one place": lambda: dist.all_reduce(torch.ones(1).expand(3)),
        "several in one output": lambda: dist.all_gather([torch.ones(1).expand(3)] * 2, torch.ones(3)),
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
    # Tensors that are only read may have overlapping elements.
    dist.broadcast(torch.ones(1).expand(3) if rank == 0 else torch.zeros(3), 0)
    return [*said, total.item()]


def test_what_cannot_travel_is_refused_and_the_group_goes_on():
    assert run("hexagram", 2, refuse) == [["UsageError"] * 14 + [2.0]] * 2


def test_negative_sizes_and_tags_are_refused_by_name():
    import torch

    from hexagram import UsageError
    from hexagram.torch.process_group import check_tag
    from hexagram.torch.steps import part_counts

    with pytest.raises(UsageError, match=r"the input's split sizes \[3, -1\]"):
        part_counts(torch.ones(2), [3, -1], 2, "input")
    for tag in (-1, 2**32):
        with pytest.raises(UsageError, match=f"no tag {tag};"):
            check_tag(tag)
