"""Windows, pair exchanges, clocks, servers and background means: several ranks, each at its own pace."""

import os
import pickle
import time

import numpy
import pytest

import hexagram
from hexagram.testing import RankFailed, outcomes_of, spawn


def windows(world):
    comm = world.communicator
    rank, size = comm.rank, comm.size
    after, before = (rank + 1) % size, (rank - 1) % size
    with world.service() as service:
        window = service.window(numpy.array([float(rank), 1.0]), [before])
        assert window.destinations == [after] and window.sources == [before]
        assert window.mass == 1 and window.version(rank) is None
        window.put({after: 2.0})
        comm.barrier()
        theirs = numpy.zeros(2)
        window.load_neighbour(before, theirs)
        assert theirs.tolist() == [2.0 * before, 2] and window.version(before) == 1
        window.get([before], async_op=True).wait()
        window.load_neighbour(before, theirs)
        assert theirs.tolist() == [before, 1]
        comm.barrier()
        window.update()
        mine = numpy.zeros(2)
        window.load(mine)
        assert mine.tolist() == [(rank + before) / 2, 1]
        window.store(numpy.array([float(rank), 0.0]))
        window.add(numpy.array([0.0, 2.0]), 3.0)
        window.load(mine)
        assert mine.tolist() == [rank, 6]
        comm.barrier()
        window.update({before: 1.0}, 1.0, reset=True)
        with pytest.raises(hexagram.UsageError, match="out-neighbour"):
            window.put([before])
        with pytest.raises(hexagram.UsageError, match="weighted"):
            service.window(numpy.zeros(3, "int32"))
    with pytest.raises(hexagram.UsageError, match="closed"):
        window.collect()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_windows(transport):
    spawn(3, windows, transport=transport)


def push_sum(world):
    comm = world.communicator
    service = world.service()
    window = service.window(numpy.array([float(comm.rank)]), [(comm.rank - 1) % comm.size])
    for _ in range(60):
        window.accumulate()
        comm.barrier()
        window.collect()
    estimate = numpy.zeros(1)
    window.estimate(estimate)
    # The world closes the service.
    return estimate[0].item()


def test_push_sum_over_windows():
    assert all(abs(value - 1.5) < 1e-2 for value in spawn(4, push_sum))


def saved_window(world):
    comm = world.communicator
    other = 1 - comm.rank
    with world.service() as service:

        def make():
            start = numpy.full(50, float(comm.rank), "float32")
            return service.window(start, codec="top-k(10%)", feedback="error")

        first, second = make(), make()
        first.put({other: 1.0})
        comm.barrier()
        state = pickle.loads(pickle.dumps(first.state_dict()))
        second.load_state_dict(state)
        comm.barrier()
        found = []
        for window in (first, second):
            window.put({other: 1.0})
            comm.barrier()
            theirs = numpy.zeros(50, "float32")
            window.load_neighbour(other, theirs)
            found.append(theirs.tolist())
    return found[0] == found[1]


def test_a_window_goes_on_from_its_state():
    assert spawn(2, saved_window) == [True, True]


def pairs(world, locked):
    comm = world.communicator
    with world.service() as service:
        pair = service.pair_exchange(numpy.array([float(comm.rank)]), locked=locked)
        for turn in range(30):
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            pair.exchange(others[turn % len(others)])
        comm.barrier()
        pair.add(numpy.array([float(comm.rank == 0)]), 4.0)
        comm.barrier()
        value = numpy.zeros(1)
        pair.load(value)
        comm.barrier()
        state = pickle.loads(pickle.dumps(pair.state_dict()))
        again = service.pair_exchange(numpy.zeros(1), locked=locked)
        again.load_state_dict(state)
        assert again.exchanges == pair.exchanges >= 30
        with pytest.raises(hexagram.UsageError, match="a different rank"):
            pair.exchange(comm.rank)
    return value[0].item()


@pytest.mark.parametrize("locked", [False, True])
def test_pair_exchanges(locked):
    values = spawn(4, pairs, locked)
    assert abs(sum(values) - 10) < 1e-6
    # Locked, all exchanges together are pairwise averages in some order; otherwise they may overlap.
    assert not locked or all(abs(value - (5.5 if rank == 0 else 1.5)) < 1 for rank, value in enumerate(values))


def one_exchange(world):
    comm = world.communicator
    with world.service() as service:
        pair = service.pair_exchange(numpy.array([float(comm.rank)]))
        if comm.rank == 0:
            assert pair.exchange(1) == (1, 1)
    return comm.rank


def test_one_exchange():
    assert spawn(2, one_exchange) == [0, 1]


def serve(world, push_codec):
    comm = world.communicator
    with world.service() as service:
        clock = service.clock(staleness=0)
        options = {"push_codec": push_codec, "push_feedback": "error"} if push_codec else {}
        server = service.server(clock, numpy.full(100, 10.0, "float32"), rate=0.5, **options)
        assert len(server) == 100
        for step in range(3):
            parameters = numpy.zeros(100, "float32")
            assert server.pull(parameters, cached=step == 1) == (step, [step * comm.size] * comm.size)
            server.push(numpy.full(100, float(comm.rank), "float32"))
            assert clock.tick() == step + 1
        server.pull(parameters)
        middle = numpy.zeros(10, "float32")
        server.pull(middle, start=45)
        clock.settle()
        assert clock.now == 3 and clock.slowest == 3 and clock.staleness == 0
        assert server.shard_range == (25 * comm.rank, 25 * comm.rank + 25)
        shard = numpy.zeros(25, "float32")
        assert server.shard(shard) == 25 * comm.rank
        assert abs(shard - parameters[:25]).max() == 0
        state = pickle.loads(pickle.dumps(server.state_dict()))
        assert bool(state) == bool(push_codec)
        server.load_state_dict(state)
        with pytest.raises(hexagram.UsageError, match="do not match"):
            server.pull(parameters, start=1)
    return parameters[99].item(), middle[0].item()


@pytest.mark.parametrize("push_codec", [None, "min-max8"])
def test_server(push_codec):
    # 10 - 3 * 0.5 * (0 + 1 + 2 + 3)
    for last, middle in spawn(4, serve, push_codec):
        assert abs(last - 1) < 0.01 and abs(middle - 1) < 0.01


def stale(world):
    with world.service() as service:
        clock = service.clock(staleness=2)
        free = service.clock(staleness=None)
        assert free.staleness is None
        furthest = 0
        for _ in range(10):
            slowest = clock.wait()
            furthest = max(furthest, clock.now - slowest)
            clock.tick()
            free.tick()
            free.wait()
        waiting = clock.wait(async_op=True)
        clock.finish()
        waiting.result()
    return furthest <= 2


def test_staleness():
    assert spawn(3, stale) == [True] * 3


def overlapping_pulls(world):
    comm = world.communicator
    service = world.service()
    clock = service.clock()
    server = service.server(clock, numpy.zeros(8, "float32"))
    works, found = [], []
    for _ in range(5):
        into = numpy.zeros(8, "float32")
        found.append(into)
        works.append(server.pull(into, async_op=True))
        works.append(server.push(numpy.ones(8, "float32"), async_op=True))
        for work in works:
            work.wait()
        clock.tick()
    return [into[0].item() for into in found] == [comm.size * step for step in range(5)]


def test_calls_of_a_server_keep_their_order():
    assert spawn(3, overlapping_pulls) == [True] * 3


def background(world, kind):
    comm = world.communicator
    parameters = numpy.full(1000, float(comm.rank), kind)
    means = world.background()
    average = means.mean(parameters)
    parameters += 1
    assert average.apply() and average.is_done()
    assert parameters[7] == 2
    with pytest.raises(hexagram.UsageError, match="applied before"):
        average.apply()
    encoding = hexagram.Encoding("min-max8", "difference")
    parameters[:] = comm.rank
    if kind == "float32":
        average = means.mean(parameters, encoding)
        assert average.wait() and average.apply()
        assert abs(parameters[0] - 1) < 0.02
    with pytest.raises(hexagram.UsageError, match="float"):
        means.mean(numpy.zeros(3, "int32"))
    # This one is never applied.
    means.mean(parameters)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_background_means(kind):
    spawn(3, background, kind)


def aborted(world):
    comm = world.communicator
    means = world.background()
    elements = numpy.array([float(comm.rank)])
    averages = [means.mean(elements) for _ in range(comm.rank + 1)]
    means.abort()
    outcomes = [average.apply() for average in averages]
    assert means.mean(numpy.zeros(1)).apply()
    means.close()
    with pytest.raises(hexagram.UsageError, match="closed"):
        means.mean(elements)
    return sum(outcomes)


def test_aborted_means():
    # All ranks complete the same averages: at most one, as rank 0 has begun only one.
    done = spawn(3, aborted)
    assert done in ([0, 0, 0], [1, 1, 1])


def dies(world):
    service = world.service()
    window = service.window(numpy.zeros(3))
    world.communicator.barrier()
    if world.rank == 1:
        os._exit(3)
    while True:
        window.get([1])


def test_a_rank_that_dies_is_named_by_a_window():
    outcomes = outcomes_of(3, dies, timeout=60)
    assert outcomes[1].exitcode == 3
    for rank in (0, 2):
        assert "PeerFailed" in outcomes[rank].error and "rank 1" in outcomes[rank].error


def raises(world):
    service = world.service()
    means = world.background()
    clock = service.clock()
    if world.rank == 0:
        raise ValueError("by itself")
    means.mean(numpy.zeros(1))
    clock.tick()
    clock.wait()


def test_a_rank_that_raises_ends_the_waits_of_the_others():
    began = time.monotonic()
    with pytest.raises(RankFailed, match="by itself"):
        spawn(2, raises, timeout=60, deadline=300)
    assert time.monotonic() - began < 60


def forks(world):
    service = world.service()
    window = service.window(numpy.zeros(3))
    background = world.background()
    child = os.fork()
    if child == 0:
        try:
            window.collect()
        except hexagram.UsageError:
            del window, service, background
            os._exit(7)
        os._exit(8)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    window.put()
    world.communicator.barrier()
    return code


def test_a_forked_child_is_refused_and_leaves_the_service_alone():
    assert spawn(2, forks) == [7, 7]
