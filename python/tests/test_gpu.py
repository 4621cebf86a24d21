"""Elements in the memory of a GPU: on the fake driver, which works late, so that each missing wait gives wrong numbers."""

import gc
import subprocess
import sys
import time

import numpy
import pytest
from device_arrays import HAS_FAKE_GPU, LENT, DeviceArray, Stream

import hexagram
from hexagram import Span, make_stream_wait
from hexagram.testing import alone, spawn

on_fake_gpu = pytest.mark.skipif(not HAS_FAKE_GPU, reason="needs the fake driver (physical/cuda/fake/build)")


def mine(rank: int, count: int = 1000) -> numpy.ndarray:
    return numpy.arange(count, dtype="float32") + 1000 * rank


def total(ranks: int) -> numpy.ndarray:
    return sum(mine(rank) for rank in range(ranks))


def reduced(world):
    numbers = DeviceArray(mine(world.rank))
    world.communicator.all_reduce(numbers)
    works = [world.communicator.all_reduce(numbers, "mean", async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    return numbers.numbers()


@on_fake_gpu
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sums_of_gpus(transport):
    for numbers in spawn(2, reduced, transport=transport):
        numpy.testing.assert_array_equal(numbers, total(2))


def attached(world):
    communicator, path = world.communicator.on_gpu(0)
    return path, *gathered(world, communicator)


@on_fake_gpu
@pytest.mark.parametrize(("transport", "expected"), [("shm", "ipc"), ("tcp", None)])
def test_ranks_on_one_gpu_read_the_memory_of_each_other(transport, expected):
    for rank, (path, everything, received, own) in enumerate(spawn(2, attached, transport=transport)):
        assert path == expected
        numpy.testing.assert_array_equal(everything, [mine(0), mine(1)])
        numpy.testing.assert_array_equal(received, [mine(rank), mine(rank)])
        numpy.testing.assert_array_equal(own, mine(0))


def on_gpu_or_host(world):
    values = mine(world.rank) / 7
    if world.rank == 0:
        numbers = DeviceArray(values)
        world.communicator.all_reduce_encoded(numbers, hexagram.Encoding("min-max8"))
        return numbers.numbers()
    world.communicator.all_reduce_encoded(values, hexagram.Encoding("min-max8"))
    return values


@on_fake_gpu
def test_a_gpu_and_a_host_have_the_same_bits():
    gpu, host = spawn(2, on_gpu_or_host)
    assert gpu.tobytes() == host.tobytes()


def gathered(world, communicator=None):
    communicator = communicator or world.communicator
    everything = DeviceArray(numpy.zeros((2, 1000), "float32"))
    own = DeviceArray(mine(world.rank))
    communicator.all_gather(own, everything)
    blocks = DeviceArray(everything.numbers())
    received = DeviceArray(numpy.zeros((2, 1000), "float32"))
    communicator.all_to_all(blocks, received)
    if world.rank == 0:
        communicator.send(own, 1)
    else:
        communicator.recv(own, 0)
    communicator.gossip(own, "ring", step=0)
    return everything.numbers(), received.numbers(), own.numbers()


@on_fake_gpu
def test_every_kind_of_operation():
    for rank, (everything, received, own) in enumerate(spawn(2, gathered)):
        numpy.testing.assert_array_equal(everything, [mine(0), mine(1)])
        numpy.testing.assert_array_equal(received, [mine(rank), mine(rank)])
        numpy.testing.assert_array_equal(own, mine(0))


def follows_streams(world):
    """Writes, communicates and reads in the order of streams alone, as PyTorch does."""
    posted, reading = Stream(), Stream()
    numbers = DeviceArray(mine(world.rank), posted)
    span = Span(numbers.address.value, 1000, "f32", numbers, gpu=0, stream=posted.handle.value)
    work = world.communicator.all_reduce(span, async_op=True)
    work.wait()
    make_stream_wait(0, posted.handle.value, reading.handle.value)
    numbers.stream = reading
    return numbers.numbers()


@on_fake_gpu
def test_streams_wait_for_operations_and_operations_for_streams():
    for numbers in spawn(2, follows_streams):
        numpy.testing.assert_array_equal(numbers, total(2))


def forgets(world):
    work = world.communicator.all_reduce(DeviceArray(mine(world.rank)), async_op=True)
    gc.collect()
    work.wait()
    limit = time.monotonic() + 60
    while LENT and time.monotonic() < limit:
        world.communicator.barrier()
    return len(LENT)


@on_fake_gpu
def test_an_operation_keeps_its_array_until_the_gpu_is_done():
    assert spawn(2, forgets) == [0, 0]


class Elsewhere:
    """A tensor of a GPU that this process lacks."""

    def __dlpack_device__(self):
        return 2, 99

    def __dlpack__(self, **_):
        raise AssertionError("the GPU is opened first")


def test_a_missing_gpu_or_driver_is_named():
    with alone() as world, pytest.raises(hexagram.Error, match="cuda:99|libcuda|driver"):
        world.communicator.all_reduce(Elsewhere())
    with alone() as world, pytest.raises(hexagram.Error, match="cuda:99|libcuda|driver"):
        world.communicator.all_reduce(Span(64, 4, "f32", gpu=99))


class OtherGpu(DeviceArray):
    """An array whose capsule names a different GPU than its protocol."""

    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        self.tensor.device = 1
        return capsule


@on_fake_gpu
def test_a_capsule_of_a_different_gpu_is_refused():
    with alone() as world, pytest.raises(hexagram.UsageError, match="unsupported device"):
        world.communicator.all_reduce(OtherGpu(mine(0)))


def test_a_stream_belongs_to_a_gpu():
    with pytest.raises(hexagram.UsageError, match="a stream without a GPU"):
        Span(64, 4, "f32", stream=7)


FORKS = """
import os, numpy, hexagram
from device_arrays import DeviceArray
from hexagram.testing import alone

world = alone()
world.communicator.all_reduce(DeviceArray(numpy.ones(1000)))
child = os.fork()
if child == 0:
    with alone() as own:
        own.communicator.all_reduce(numpy.ones(3))
        try:
            own.communicator.all_reduce(hexagram.Span(64, 4, "f32", gpu=0))
        except hexagram.UsageError as error:
            os._exit(0 if "GPUs of its parent" in str(error) else 2)
    os._exit(3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@on_fake_gpu
def test_a_forked_process_communicates_without_the_gpus_of_its_parent():
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=300, check=False).returncode == 0


def refused(world):
    """Encodes a number that is not finite on the GPU, where it is found late."""
    numbers = DeviceArray(numpy.full(1000, numpy.nan, "float32"))
    with pytest.raises(hexagram.Error, match="NaN"):
        world.communicator.all_reduce_encoded(numbers, hexagram.Encoding("qsgd(levels=7)"))
    return True


@on_fake_gpu
def test_a_refused_input_is_an_error():
    assert spawn(2, refused) == [True, True]
