"""Every collective, on every kind of memory and every element type."""

import array

import numpy
import pytest

import hexagram
from hexagram.testing import spawn

TYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def reduce_all(world):
    comm = world.communicator
    for name in TYPES:
        mine = numpy.full(5, comm.rank + 1, name)
        comm.all_reduce(mine)
        assert mine.tolist() == [6] * 5, name
        for op, expected in [("min", 1), ("max", 3), ("product", 6)]:
            mine = numpy.full((2, 2), comm.rank + 1, name)
            comm.all_reduce(mine, op)
            assert mine.tolist() == [[expected] * 2] * 2, (name, op)
    mean = numpy.array([float(comm.rank)])
    comm.all_reduce(mean, "mean")
    flags = numpy.array([comm.rank == 0, False, True])
    comm.all_reduce(flags, "max")
    bits = numpy.array([1 << comm.rank], "int32")
    comm.all_reduce(bits, "bor")
    return mean[0], flags.tolist(), bits[0].item()


def test_all_reduce():
    assert spawn(3, reduce_all) == [(1.0, [True, False, True], 7)] * 3


def all_others(world):
    comm = world.communicator
    rank, size = comm.rank, comm.size
    shared = numpy.full(3, rank, "float32")
    comm.broadcast(shared, root=1)
    assert shared.tolist() == [1, 1, 1]

    total = numpy.array([rank], "int64")
    comm.reduce(total, root=2)
    if rank == 2:
        assert total.tolist() == [3]

    every = numpy.zeros((size, 2), "int32")
    comm.all_gather(numpy.array([rank, 10 * rank], "int32"), every)
    assert every.tolist() == [[r, 10 * r] for r in range(size)]

    gathered = numpy.zeros(size) if rank == 0 else None
    comm.gather(numpy.array([float(rank)]), gathered, root=0)
    assert rank != 0 or gathered.tolist() == [0, 1, 2]

    part = numpy.zeros(1)
    comm.scatter(numpy.arange(3.0) if rank == 1 else None, part, root=1)
    assert part.tolist() == [rank]

    share = numpy.zeros(2, "float32")
    comm.reduce_scatter(numpy.arange(6, dtype="float32"), share, "mean")
    assert share.tolist() == [2 * rank, 2 * rank + 1]

    received = numpy.zeros(size, "int64")
    comm.all_to_all(10 * rank + numpy.arange(size), received)
    assert received.tolist() == [10 * r + rank for r in range(size)]

    counts = [(rank + to) % 2 + 1 for to in range(size)]
    theirs = [(rank + source) % 2 + 1 for source in range(size)]
    mixed = numpy.zeros(sum(theirs), "uint8")
    comm.all_to_all_v(numpy.full(sum(counts), rank, "uint8"), counts, mixed, theirs)
    assert mixed.tolist() == [r for r in range(size) for _ in range(theirs[r])]
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_other_collectives(transport):
    spawn(3, all_others, transport=transport)


def in_one_memory(world):
    """Receives into memory that overlaps the memory to send."""
    comm = world.communicator
    rank, size = comm.rank, comm.size

    def counted() -> numpy.ndarray:
        return numpy.arange(2.0 * size, dtype="float32") + 10 * rank

    def own(everything: numpy.ndarray) -> numpy.ndarray:
        return everything[2 * rank : 2 * rank + 2]

    gathered, reduced, exchanged = counted(), counted(), counted()
    comm.all_gather(own(gathered), gathered)
    comm.reduce_scatter(reduced, own(reduced))
    comm.all_to_all(exchanged, exchanged)
    unequal, shifted, rooted, spread = counted(), counted(), counted(), counted()
    comm.all_gather_v(own(unequal), unequal, [2] * size)
    comm.reduce_scatter_v(shifted, [2] * size, shifted[1:3])
    comm.gather(own(rooted), rooted if rank == 0 else None, root=0)
    comm.scatter(spread if rank == 0 else None, spread[1:3], root=0)
    results = (gathered, own(reduced), exchanged, unequal, shifted[1:3], spread[1:3], own(rooted) if rank else rooted)
    return [result.tolist() for result in results]


def test_what_is_received_may_lie_over_what_is_sent():
    for rank, results in enumerate(spawn(2, in_one_memory)):
        both, part = [0.0, 1.0, 12.0, 13.0], [10.0 + 4 * rank, 12.0 + 4 * rank]
        exchanged = [[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]][rank]
        spread, rooted = [2.0 * rank, 2.0 * rank + 1], both if rank == 0 else [12.0, 13.0]
        assert results == [both, part, exchanged, both, part, spread, rooted]


def kinds_of_memory(world):
    comm = world.communicator
    for memory in (array.array("f", [1, 2]), bytearray([1, 2]), memoryview(bytearray([1, 2])), numpy.array([1.0, 2.0])):
        comm.all_reduce(memory)
        assert list(memory) == [2, 4], type(memory)
    registered = comm.registered("f32", 2)
    view = numpy.from_dlpack(registered)
    view[:] = [1, 2]
    comm.all_reduce(registered)
    assert view.tolist() == [2, 4]
    view[:] = [1, 2]
    comm.all_reduce(numpy.asarray(registered))
    assert view.tolist() == [2, 4]
    owner = numpy.array([1, 2], "int32")
    comm.all_reduce(hexagram.Span(owner.ctypes.data, 2, "int32", owner))
    assert owner.tolist() == [2, 4]
    comm.all_reduce(numpy.zeros(0, "float32"))
    comm.broadcast(b"ab" if comm.rank == 0 else (received := bytearray(2)), root=0)
    return comm.rank == 0 or bytes(received)


def test_kinds_of_memory():
    assert spawn(2, kinds_of_memory) == [True, b"ab"]


def tensors(world):
    import torch

    comm = world.communicator
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int64, torch.bool, torch.uint8):
        tensor = torch.ones(2, 2, dtype=dtype)
        comm.all_reduce(tensor, "max" if dtype == torch.bool else "sum")
        assert tensor.tolist() == [[True, True] if dtype == torch.bool else [2, 2]] * 2, dtype
    registered = comm.registered("bf16", 3)
    tensor = torch.from_dlpack(registered)
    tensor.fill_(1.5)
    comm.all_reduce(registered, "sum")
    assert tensor.tolist() == [3, 3, 3]


def test_tensors_of_torch():
    pytest.importorskip("torch")
    spawn(2, tensors)


def asynchronous(world):
    comm = world.communicator
    arrays = [numpy.full(1000, float(i)) for i in range(20)]
    works = [comm.lane(i % 3).all_reduce(mine, async_op=True) for i, mine in enumerate(arrays)]
    ended = []
    for work in works:
        work.on_done(ended.append)
    for i, (work, mine) in enumerate(zip(works, arrays, strict=True)):
        assert work.wait() and work.is_done() and work.exception() is None
        assert mine[0] == 2 * i
    # The program keeps no reference to these.
    for _ in range(50):
        comm.all_reduce(numpy.ones(10_000), async_op=True)
    comm.barrier()
    return [work.result() for work in works] == [None] * 20


def test_asynchronous_calls():
    assert spawn(2, asynchronous) == [True, True]


def messages(world):
    comm = world.communicator
    mine = numpy.array([comm.rank], "int32")
    theirs = numpy.zeros(1, "int32")
    receive = comm.recv(theirs, (comm.rank + 1) % 3, async_op=True)
    comm.send(mine, (comm.rank + 2) % 3)
    return receive.result(), receive.source(), theirs[0].item()


def test_messages():
    assert spawn(3, messages) == [(1, 1, 1), (2, 2, 2), (0, 0, 0)]


def groups(world):
    comm = world.communicator
    half = comm.split(comm.rank % 2)
    total = numpy.array([comm.rank])
    half.all_reduce(total)
    pair = comm.subgroup([3, 1])
    place = None if pair is None else (pair.rank, pair.size, pair.world_ranks)
    return total[0].item(), half.world_ranks, place


def test_groups():
    assert spawn(4, groups) == [
        (2, [0, 2], None),
        (4, [1, 3], (1, 2, [3, 1])),
        (2, [0, 2], None),
        (4, [1, 3], (0, 2, [3, 1])),
    ]


def low_precision(world):
    comm = world.communicator
    encoding = hexagram.Encoding("min-max8", "error")
    mine = numpy.full(100, float(comm.rank), "float32")
    comm.all_reduce_encoded(mine, encoding)
    assert abs(mine[0] - 0.5) < 0.01
    sparse = numpy.zeros(100, "float32")
    sparse[comm.rank] = 1
    comm.all_reduce_sparse(sparse, hexagram.Encoding("top-k(1%)", "error"), "sum")
    assert sparse[:3].tolist() == [1, 1, 0]
    votes = numpy.full(3, -1.0, "float32")
    comm.majority_vote(votes)
    assert votes.tolist() == [-1, -1, -1]
    mixed = numpy.full(4, float(comm.rank), "float32")
    for step in range(4):
        comm.gossip_encoded(mixed, hexagram.Encoding("f16"), "ring", step)
    return mixed[0].item()


def test_low_precision():
    first, second = spawn(2, low_precision)
    assert abs(first - 0.5) < 0.01 and abs(second - 0.5) < 0.01


def neighbours(world):
    comm = world.communicator
    mine = numpy.array([float(comm.rank)])
    for step in range(2):
        comm.gossip(mine, "one-peer-exponential", step)
    weight, pushed = 1.0, numpy.array([float(comm.rank)])
    for step in range(2):
        weight = comm.push_sum(pushed, weight, "one-peer-exponential", step)
    heard = [numpy.zeros(1), numpy.zeros(1)]
    around = [(comm.rank + 1) % 4, (comm.rank + 3) % 4]
    comm.neighbour_exchange(around, [numpy.array([float(comm.rank)])] * 2, heard)
    return mine[0].item(), pushed[0].item() / weight, [value[0].item() for value in heard] == around


def test_neighbours():
    assert spawn(4, neighbours) == [(1.5, 1.5, True)] * 4
