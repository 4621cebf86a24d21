"""PyTorch's operations on the memory of a GPU: on the fake driver, with tensors whose addresses are there.

PyTorch without CUDA has no such tensors. So each is a CPU tensor over device memory, which no code of the host may
access, and the functions that ask PyTorch for its device and stream are replaced.
"""

import ctypes

import numpy
import pytest
from device_arrays import HAS_FAKE_GPU, DeviceArray, Stream

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

from hexagram.torch import hooks, streams, work  # noqa: E402

pytestmark = pytest.mark.skipif(not HAS_FAKE_GPU, reason="needs the fake driver (physical/cuda/fake/build)")


class Gpu:
    """Tensors on the fake GPU, and a current stream."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.arrays: dict[int, DeviceArray] = {}
        streams.gpu_of = lambda tensor: 0 if tensor.data_ptr() in self.arrays else None
        streams.current_stream = lambda _: self.stream
        # The futures of PyTorch ask CUDA for streams.
        work.future_at = hooks.future_at = lambda _: torch.futures.Future()

    def tensor(self, values: numpy.ndarray) -> torch.Tensor:
        array = DeviceArray(values.astype("float32"), self.stream)
        memory = (ctypes.c_float * values.size).from_address(array.address.value)
        self.arrays[array.address.value] = array
        return torch.from_numpy(numpy.ctypeslib.as_array(memory)).reshape(values.shape)

    def numbers(self, tensor: torch.Tensor) -> numpy.ndarray:
        """Reads a tensor on the current stream."""
        array = self.arrays[tensor.data_ptr()]
        array.stream = self.stream
        return array.numbers()


def mine(rank: int) -> numpy.ndarray:
    return numpy.arange(1000) + 1000.0 * rank


def collectives(rank: int) -> list[numpy.ndarray]:
    gpu = Gpu()
    pg = dist.group.WORLD
    total = gpu.tensor(mine(rank))
    pg.allreduce([total], dist.AllreduceOptions()).wait()
    copied = gpu.tensor(mine(rank))
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 1, 0
    pg.broadcast([copied], options).wait()
    gathered = gpu.tensor(numpy.zeros((2, 1000)))
    pg.all_gather_single(gathered, gpu.tensor(mine(rank))).wait()
    pending = pg.allreduce([gathered], dist.AllreduceOptions())
    future = pending.get_future()
    # Another stream continues; it waits for the operation, and the host does not.
    gpu.stream = Stream()
    pending.wait()
    message = gpu.tensor(mine(rank))
    (pg.send([message], 1, 5) if rank == 0 else pg.recv([message], 0, 5)).wait()
    numbers = [gpu.numbers(tensor) for tensor in (total, copied, gathered, message)]
    future.wait()
    return numbers


def test_operations_follow_streams():
    for numbers in run("hexagram", 2, collectives):
        total, copied, gathered, message = numbers
        numpy.testing.assert_array_equal(total, mine(0) + mine(1))
        numpy.testing.assert_array_equal(copied, mine(1))
        numpy.testing.assert_array_equal(gathered, [2 * mine(0), 2 * mine(1)])
        numpy.testing.assert_array_equal(message, mine(0))


def hooked(rank: int) -> numpy.ndarray:
    """Communicates two buckets by the hook of DDP, then reads the last on another stream."""

    class Bucket:
        def __init__(self, at: int, gradients: torch.Tensor):
            self.at, self.gradients = at, gradients

        def index(self) -> int:
            return self.at

        def is_last(self) -> bool:
            return self.at == 1

        def buffer(self) -> torch.Tensor:
            return self.gradients

        def parameters(self) -> list[torch.Tensor]:
            return [self.gradients]

    gpu = Gpu()
    state, communicate = hooks.hook("bytegrad")
    for _ in range(3):
        buckets = [Bucket(at, gpu.tensor(mine(rank))) for at in range(2)]
        for bucket in buckets:
            communicate(state, bucket)
    numbers = numpy.stack([gpu.numbers(bucket.gradients) for bucket in buckets])
    state.close()
    return numbers


def test_the_hook_of_ddp():
    first, second = run("hexagram", 2, hooked)
    assert first.tobytes() == second.tobytes()
    numpy.testing.assert_allclose(first[0], (mine(0) + mine(1)) / 2, atol=8)
