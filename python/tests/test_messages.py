"""Messages with tags, from any rank, and groups that only their members create: between ranks that are processes."""

import numpy
import pytest

import hexagram
from hexagram.testing import spawn


def tagged(world):
    comm, rank = world.communicator, world.rank
    if rank == 0:
        got = [numpy.zeros(4, "int32") for _ in range(2)]
        late = comm.recv(got[0], 1, tag=8, async_op=True)
        comm.recv(got[1], 1, tag=7)
        late.wait()
        return [int(one[0]) for one in got]
    if rank == 1:
        for tag in (7, 8):
            comm.send(numpy.full(4, tag, "int32"), 0, tag=tag)
    return None


def test_tags_are_told_apart():
    assert spawn(2, tagged)[0] == [8, 7]


def from_any(world):
    comm, rank = world.communicator, world.rank
    if rank > 0:
        comm.send(numpy.array([rank], "int64"), 0, tag=3)
        return None
    got = numpy.zeros(1, "int64")
    sources = []
    for _ in range(1, world.size):
        source = comm.recv(got, tag=3)
        assert got[0] == source
        sources.append(source)
    return sorted(sources)


def test_whoever_sends_first_is_named():
    assert spawn(3, from_any)[0] == [1, 2]


def members_only(world):
    if world.rank == 1:
        return None
    pair = world.communicator.group_of([2, 0])
    mine = numpy.array([float(world.rank)])
    pair.all_reduce(mine)
    return pair.rank, pair.size, mine[0]


def test_a_group_is_made_by_its_members():
    assert spawn(3, members_only) == [(1, 2, 2.0), None, (0, 2, 2.0)]


def a_stranger(world):
    with pytest.raises(hexagram.UsageError, match="not in the group"):
        world.communicator.group_of([1 - world.rank])
    with pytest.raises((OverflowError, hexagram.UsageError)):
        world.communicator.send(numpy.zeros(1), 0, tag=-1)


def test_what_cannot_be_is_refused_before_anybody_waits():
    spawn(2, a_stranger)
