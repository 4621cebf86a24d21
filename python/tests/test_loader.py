"""Samplers and the loader: orders, workers, failures, and going on where one stopped."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import namedtuple

import numpy
import pytest

from hexagram import (
    CostBalancedSampler,
    DataLoader,
    DistributedSampler,
    ElasticSampler,
    LoaderError,
    UsageError,
)
from hexagram.loader import stack

WORKERS = [0, 1, 3]


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_come_in_the_order_of_the_sampler(workers):
    sampler = DistributedSampler(range(100), 3, 1, seed=5)
    loader = DataLoader(range(100), 7, sampler=sampler, workers=workers, seed=1, collate=list)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        found = list(loader)
        assert [len(batch) for batch in found] == [7, 7, 7, 7, 6] and len(loader) == 5
        assert [sample for batch in found for sample in batch] == expected


@pytest.mark.parametrize("workers", WORKERS)
def test_shuffled_epochs_differ_and_follow_from_the_seed(workers):
    def epochs():
        loader = DataLoader(lambda index: index, 4, length=20, shuffle=True, seed=9, workers=workers, collate=list)
        return [sum(loader, []) for _ in range(2)]

    first, second = epochs()
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    assert epochs() == [first, second]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loader_goes_on_from_its_state(workers):
    def make(workers):
        batches = ElasticSampler(range(50), 2, 0, global_batch=6, seed=3)
        return DataLoader(range(50), batch_sampler=batches, workers=workers, collate=list)

    whole = make(0)
    expected = list(whole) + list(whole)
    loader = make(workers)
    found = list(loader)
    batches = iter(loader)
    found += [next(batches) for _ in range(3)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert state["epoch"] == 1 and state["position"] == 18 and len(state) == 4
    again = make(2)
    again.load_state_dict(state)
    found += list(again)
    assert found == expected
    with pytest.raises(UsageError, match="seed|sampler"):
        DataLoader(range(50), 3, collate=list).load_state_dict(state)


def test_another_number_of_ranks_goes_on_with_what_was_left():
    def make(ranks, rank):
        batches = ElasticSampler(range(48), ranks, rank, global_batch=6, seed=3)
        return DataLoader(range(48), batch_sampler=batches, collate=list)

    loaders = [make(2, rank) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    seen = [sample for _ in range(3) for batches in iterators for sample in next(batches)]
    rest = []
    for rank in range(3):
        loader = make(3, rank)
        loader.load_state_dict(loaders[0].state_dict())
        rest += [sample for batch in loader for sample in batch]
    assert sorted(seen + rest) == list(range(48))


class Damaged:
    def __init__(self, bad, error):
        self.bad, self.error, self.tries = bad, error, 0

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.bad:
            self.tries += 1
            raise self.error
        return index


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failure_names_the_sample_and_its_cause(workers):
    cause = ValueError("no such file")
    dataset = Damaged(6, cause)
    loader = DataLoader(dataset, 2, workers=workers, collate=list, retries=2, retry_pause=0)
    found = []
    with pytest.raises(LoaderError, match="sample 6.*3 tries.*no such file") as caught:
        for batch in loader:
            found.append(batch)
    assert found == [[0, 1], [2, 3], [4, 5]] and dataset.tries == 3
    raised = caught.value
    assert (raised.sample, raised.epoch, raised.__cause__) == (6, 0, cause)
    assert raised.worker.startswith("worker" if workers else "the caller")
    assert loader.state_dict()["position"] == 6
    skipping = DataLoader(dataset, 2, workers=workers, collate=list, on_failure="skip")
    assert list(skipping) == [[0, 1], [2, 3], [4, 5], [7], [8, 9]] and skipping.skipped == 1


@pytest.mark.parametrize("workers", WORKERS)
def test_what_ends_a_program_is_passed_on(workers):
    with pytest.raises(SystemExit):
        list(DataLoader(Damaged(3, SystemExit(2)), 2, workers=workers, collate=list))

    def broken(samples):
        raise KeyError("shape")

    with pytest.raises(LoaderError, match="samples 0, 1") as caught:
        list(DataLoader(range(4), 2, workers=workers, collate=broken))
    assert isinstance(caught.value.__cause__, KeyError)


def test_workers_load_at_the_same_time():
    together = threading.Barrier(3)
    began = []

    def fetch(index):
        # Nobody comes on unless three threads are here.
        together.wait(60)
        return index

    loader = DataLoader(fetch, 1, length=9, workers=3, worker_init=began.append, collate=list)
    assert list(loader) == [[index] for index in range(9)]
    assert sorted(began) == [0, 1, 2]


def test_persistent_workers_stay():
    threads = set()

    def fetch(index):
        threads.add(threading.get_ident())
        return index

    loader = DataLoader(fetch, 2, length=8, workers=1, persistent_workers=True, collate=list)
    assert [list(loader) for _ in range(3)] == [[[0, 1], [2, 3], [4, 5], [6, 7]]] * 3
    assert len(threads) == 1
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_an_epoch_can_be_left_early():
    loaded = []
    loader = DataLoader(lambda index: loaded.append(index) or index, 1, length=1000, workers=2, collate=list)
    for _ in range(5):
        for _batch in loader:
            break
    assert len(loaded) <= 5 * (2 * 2 + 2)
    first, second = iter(loader), iter(loader)
    assert list(first) == [] and next(second) == [0]
    del loader, first, second
    gc.collect()


def test_a_batch_that_takes_too_long():
    stop = threading.Event()
    loader = DataLoader(lambda index: stop.wait(60), 1, length=2, workers=1, timeout=0.5, collate=list)
    batches = iter(loader)
    with pytest.raises(LoaderError, match="no batch within.*worker 0"):
        next(batches)
    stop.set()


def test_ctrl_c_ends_the_wait_for_a_batch():
    stop = threading.Event()
    entered = threading.Event()

    def fetch(index):
        entered.set()
        return stop.wait(60)

    def interrupt():
        entered.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    loader = DataLoader(fetch, 1, length=2, workers=1, collate=list)
    sender = threading.Thread(target=interrupt)
    sender.start()
    batches = iter(loader)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        stop.set()
        sender.join()


PROGRAM = """
import threading
from hexagram import DataLoader

loader = DataLoader(lambda index: threading.Event().wait(0.01), 1, length=1000, workers=2, {options})
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize("options", ["", "persistent_workers=True"])
def test_a_program_ends_in_the_middle_of_an_epoch(options):
    program = PROGRAM.format(options=options)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_refused():
    loader = DataLoader(range(100), 1, workers=2, collate=list)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except UsageError:
            del batches, loader
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) == 99


def test_cost_balanced_batches():
    costs = [1.0 + index % 7 for index in range(210)]
    ranks = [CostBalancedSampler(range(210), costs, 3, rank, global_batch=30, random_level=0) for rank in range(3)]
    for step in zip(*ranks, strict=True):
        loads = [sum(costs[sample] for sample in batch) for batch in step]
        assert max(loads) <= 1.1 * min(loads)
    by_function = CostBalancedSampler(range(210), lambda sample: costs[sample], 3, 0, global_batch=30, random_level=0)
    assert list(by_function) == list(ranks[0])
    slow = CostBalancedSampler(range(60), [1.0] * 60, 2, 0, global_batch=12, speeds=[1.0, 2.0])
    assert all(len(batch) == 4 for batch in slow)
    assert list(slow.resume(slow.state_dict(2))) == list(slow)[2:]


def test_options_that_cannot_be():
    for made, words in [
        (lambda: ElasticSampler(range(4), 8, 0, global_batch=2), "4|8"),
        (lambda: ElasticSampler(range(4), 1, 0, global_batch=2, tail="cut"), "drop, pad or exact"),
        (lambda: CostBalancedSampler(range(4), [1, 1, 1, 1], 2, 0, global_batch=2, speeds=[1]), "speeds"),
        (lambda: DataLoader(range(4), 0), "batch_size"),
        (lambda: DataLoader(range(4), shuffle=True, sampler=DistributedSampler(range(4), 1, 0)), "shuffle"),
        (lambda: DataLoader(range(4), sampler=[0, 1]), "hexagram.sampler"),
        (lambda: DataLoader(range(4), timeout=1.0), "timeout"),
        (lambda: DataLoader(range(4), on_failure="ignore"), "fail or skip"),
        (lambda: DataLoader(lambda index: index), "length"),
        (lambda: DataLoader([]), "sample"),
    ]:
        with pytest.raises(UsageError, match=words):
            made()


def test_stack():
    Pair = namedtuple("Pair", "image label")
    batch = stack([Pair(numpy.zeros((2, 3), "float32"), index) for index in range(4)])
    assert batch.image.shape == (4, 2, 3) and batch.image.dtype == numpy.float32
    assert batch.label.tolist() == [0, 1, 2, 3]
    assert stack([{"name": "a", "size": 1.5}, {"name": "b", "size": 2.5}])["name"] == ["a", "b"]


def test_stack_of_tensors():
    torch = pytest.importorskip("torch")
    batch, labels = next(iter(DataLoader([(torch.ones(3), 1), (torch.zeros(3), 2)], 2, workers=1)))
    assert batch.shape == (2, 3) and labels.tolist() == [1, 2]
