"""Beyond the usual collectives: unequal counts, linear codecs, states of encodings, hosts."""

import pickle

import numpy
import pytest

import hexagram
from hexagram.testing import spawn


def unequal(world):
    comm = world.communicator
    counts = [3, 0, 2]
    every = numpy.zeros(5, "int32")
    comm.all_gather_v(numpy.full(counts[comm.rank], comm.rank + 1, "int32"), every, counts)
    assert every.tolist() == [1, 1, 1, 3, 3]
    mine = numpy.zeros(counts[comm.rank])
    comm.reduce_scatter_v(numpy.arange(5.0), counts, mine, "mean", async_op=True).wait()
    assert mine.tolist() == [[0, 1, 2], [], [3, 4]][comm.rank]
    with pytest.raises(hexagram.UsageError, match="counts|elements"):
        comm.all_gather_v(mine, every, [1])


def test_unequal_counts():
    spawn(3, unequal)


def linear(world):
    comm = world.communicator
    encoding = hexagram.LinearEncoding.power_sgd([(8, 4)], rank=1)
    gradient = numpy.full(32, float(comm.rank), "float32")
    comm.all_reduce_linear(gradient, encoding)
    assert numpy.allclose(gradient, 1)
    kept = numpy.zeros(100, "float32")
    sparse = hexagram.LinearEncoding.random_k("random-k(10%)", seed=3)
    # Unsent values are kept: in the end all of them have arrived.
    for _ in range(120):
        given = numpy.ones(100, "float32")
        comm.all_reduce_linear(given, sparse, "sum")
        kept += given
    assert (kept > 0).all() and abs(kept.mean() / 360 - 1) < 0.2
    with pytest.raises(hexagram.UsageError, match="32"):
        comm.all_reduce_linear(numpy.zeros(31, "float32"), encoding)


def test_linear_codecs():
    spawn(3, linear)


def restored(world, how):
    comm = world.communicator
    make = {"encoded": lambda: hexagram.Encoding("qsgd(levels=3)", "error", 5)}.get(
        how, lambda: hexagram.LinearEncoding.power_sgd([(6, 5)], seed=5)
    )

    def step(encoding, number):
        elements = numpy.sin(numpy.arange(30, dtype="float32") + number + comm.rank)
        if how == "encoded":
            comm.all_reduce_encoded(elements, encoding)
        else:
            comm.all_reduce_linear(elements, encoding)
        return elements

    through = make()
    whole = [step(through, number) for number in range(4)]
    first = make()
    parts = [step(first, number) for number in range(2)]
    saved = pickle.loads(pickle.dumps(first.state_dict()))
    assert saved["operations"] == 2 and saved["entries"]
    second = make()
    second.load_state_dict(saved)
    parts += [step(second, number) for number in (2, 3)]
    assert all((one == other).all() for one, other in zip(whole, parts, strict=True))
    fresh = make()
    assert not (step(fresh, 2) == whole[2]).all()
    with pytest.raises(hexagram.UsageError, match="a different encoding"):
        hexagram.Encoding("sign", "error").load_state_dict(saved)


@pytest.mark.parametrize("how", ["encoded", "linear"])
def test_an_encoding_goes_on_from_its_state(how):
    spawn(2, restored, how)


def gossip_far_from_zero(world):
    comm = world.communicator
    encoding = hexagram.Encoding("min-max8", "difference")
    mine = numpy.full(100, 1000.0 + comm.rank, "float32")
    comm.gossip_synchronize(mine, encoding, "ring", 0)
    comm.gossip_encoded(mine, encoding, "ring", 0)
    return float(mine[0])


def test_gossip_synchronize():
    assert all(abs(value - 1001.5) < 1 for value in spawn(4, gossip_far_from_zero))


def mean_kept(world):
    comm = world.communicator
    mine = numpy.array([float(comm.rank), 3.0], "float32")
    value, mean = mine.copy(), numpy.zeros(2, "float32")
    comm.mean_kept_encoded(value, mean, hexagram.Encoding("min-max8", "difference"))
    mine += mean - value
    return mine.tolist()


def test_mean_kept_encoded():
    (first, three), (second, _) = spawn(2, mean_kept)
    assert abs(first - 0.5) < 0.02 and abs(three - 3) < 0.02 and abs(first + second - 1) < 1e-6


HOSTS = [0, 0, 1]


def by_host(world):
    comm = world.communicator
    rank, size = comm.rank, comm.size
    hierarchy = comm.hierarchy(timeout=20)
    assert world.hosts == HOSTS and hierarchy.hosts == [[0, 1], [2]]
    assert hierarchy.is_leader == (rank != 1)
    total = numpy.array([float(rank), 1.0])
    hierarchy.all_reduce(total)
    assert total.tolist() == [3, 3]
    works = [hierarchy.lane(lane).all_reduce(numpy.ones(1000), async_op=True) for lane in (0, 1, 0, 2)]
    assert all(work.wait() for work in works)
    on_two = numpy.array([rank])
    hierarchy.reduce(on_two, root=2)
    assert rank != 2 or on_two.tolist() == [3]
    from_one = numpy.array([rank])
    hierarchy.broadcast(from_one, root=1)
    assert from_one.tolist() == [1]
    every = numpy.zeros(size, "int64")
    hierarchy.all_gather(numpy.array([rank]), every)
    assert every.tolist() == [0, 1, 2]
    share = numpy.zeros(1)
    hierarchy.reduce_scatter(numpy.arange(3.0), share)
    assert share.tolist() == [3.0 * rank]

    def mean(call, encoding):
        elements = numpy.full(64, float(rank), "float32")
        call(elements, encoding)
        assert abs(elements - 1).max() < 0.02, call

    mean(hierarchy.all_reduce_encoded, hexagram.Encoding("min-max8"))
    mean(hierarchy.all_reduce_sparse, hexagram.Encoding("top-k(100%)"))
    mean(hierarchy.all_reduce_linear, hexagram.LinearEncoding.power_sgd([(8, 8)]))

    mixed = numpy.full(4, float(rank), "float32")
    encoding = hexagram.Encoding("min-max8", "difference")
    hierarchy.gossip_synchronize(mixed, encoding, "complete", 0)
    for step in range(30):
        hierarchy.gossip_encoded(mixed, encoding, "complete", step, consensus=0.5)
    assert abs(mixed - 1).max() < 0.02
    mixed = numpy.array([float(rank)])
    for step in range(30):
        hierarchy.gossip(mixed, "complete", step)
    assert abs(mixed[0] - 1) < 1e-3
    weight, pushed = 1.0, numpy.array([float(rank)])
    for step in range(4):
        weight = hierarchy.push_sum(pushed, weight, "complete", step)
    assert abs(pushed[0] / weight - 1) < 1e-3
    comm.all_reduce(total)


def test_hierarchy():
    spawn(3, by_host, hosts=HOSTS)


def views(world):
    comm = world.communicator
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"):
        memory = comm.registered(name, 3)
        array = numpy.frombuffer(memory, name)
        array[:] = 1
        comm.all_reduce(memory, "max")
        view = memoryview(memory)
        assert array.tolist() == [1, 1, 1] and not view.readonly and view.format == array.dtype.char.replace("l", "q")
        assert (view.shape, view.strides, view.nbytes) == ((3,), (array.itemsize,), 3 * array.itemsize)
        array[1] = 0
        assert numpy.asarray(memory).tolist() == [1, 0, 1] and bytes(memory) == array.tobytes()
        # A view keeps the memory alive.
        del memory, array
        assert numpy.asarray(view).tolist() == [1, 0, 1]
    incoming = [comm.registered("bf16", 2)]
    comm.neighbour_exchange([1 - comm.rank], [comm.registered("bf16", 2)], incoming)
    with pytest.raises(BufferError, match="DLPack"):
        memoryview(incoming[0])


def test_registered_memory_is_a_buffer():
    spawn(2, views)
