"""PyTorch's operations on the memory of a GPU: on the fake driver, with tensors whose addresses are there.

PyTorch without CUDA has no such tensors. So each is a CPU tensor over device memory, and the functions that ask PyTorch for
its device and stream are replaced. No code of the host may access that memory, except that of PyTorch in :class:`InOrder`.
"""

import ctypes
from contextlib import nullcontext

import numpy
import pytest
from device_arrays import CUDA, HAS_FAKE_GPU, DeviceArray, Stream, call, delay_longer, show, tensor_of, wait

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_ranks import run  # noqa: E402

import hexagram  # noqa: E402
from hexagram._native import Engine  # noqa: E402
from hexagram.testing import spawn  # noqa: E402
from hexagram.torch import Algorithm, DataParallel, hooks, streams, sync_batch_norm, views, work  # noqa: E402
from hexagram.torch.options import engine_options  # noqa: E402
from hexagram.torch.sync_batch_norm import add_up  # noqa: E402

pytestmark = pytest.mark.skipif(not HAS_FAKE_GPU, reason="needs the fake driver (physical/cuda/fake/build)")


class Gpu:
    """Tensors on the fake GPU, and a current stream. If it shows its memory, code of the host can compute there."""

    def __init__(self, shows_memory: bool = False) -> None:
        self.shows_memory = shows_memory
        self.stream = Stream()
        self.arrays: dict[int, DeviceArray] = {}
        #: Address and end of all memory.
        self.memory: list[tuple[int, int]] = []
        streams.gpu_of = self.gpu_of
        streams.current_stream = lambda _: self.stream
        views.imported = self.imported
        # The futures of PyTorch ask CUDA for streams.
        work.future_at = hooks.future_at = lambda _: torch.futures.Future()

    def gpu_of(self, tensor: torch.Tensor) -> int | None:
        return 0 if any(start <= tensor.data_ptr() < end for start, end in self.memory) else None

    def tensor(self, values: numpy.ndarray) -> torch.Tensor:
        return self.copied(values.astype("float32")).view(torch.float32).reshape(values.shape)

    def copied(self, values: numpy.ndarray) -> torch.Tensor:
        """Returns a copy on the GPU, as bytes."""
        array = DeviceArray(values, self.stream)
        self.arrays[array.address.value] = array
        return self.over(array.address.value, values.nbytes)

    def over(self, address: int, size: int, owner: object = None) -> torch.Tensor:
        """Returns memory of the GPU as a tensor of bytes, which keeps its owner."""
        self.memory.append((address, address + size))
        if self.shows_memory:
            show(address, size)
        memory = (ctypes.c_uint8 * size).from_address(address)
        memory.owner = owner
        return torch.from_numpy(numpy.ctypeslib.as_array(memory))

    def imported(self, memory: object) -> torch.Tensor:
        """Imports a bucket, as `torch.from_dlpack` does."""
        if memory.__dlpack_device__() != (CUDA, 0):
            return torch.from_dlpack(memory)
        capsule = memory.__dlpack__(stream=self.stream.cuda_stream)
        return self.over(tensor_of(capsule).data, 4 * len(memory), capsule).view(torch.float32)

    def move(self, module: torch.nn.Module) -> None:
        """Moves the parameters and buffers of a module to the GPU, except integers."""
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                numbers = tensor.detach().reshape(-1).view(torch.uint8).numpy()
                tensor.data = self.copied(numbers).view(tensor.dtype).reshape(tensor.shape)

    def numbers(self, tensor: torch.Tensor) -> numpy.ndarray:
        """Reads a tensor on the current stream."""
        array = self.arrays[tensor.data_ptr()]
        array.stream = self.stream
        return array.numbers()


class InOrder(TorchDispatchMode):
    """Makes each operation of PyTorch part of the stream of a GPU: it begins when the work before it is done."""

    def __init__(self, gpu: Gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.gpu.stream.synchronize()
        return function(*args, **(kwargs or {}))


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


Arrays = list[numpy.ndarray]


class Halfway(Algorithm):
    """A mean of parameters in every second step, in Python."""

    def after_step(self, context, state, bucket):
        if context.step % 2 == 1:
            context.mean(bucket.parameters)
            bucket.parameters.mul_(0.5)


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    values = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(6, 5, generator=values), torch.randn(6, 3, generator=values)) for _ in range(6)]


def small_model(world: hexagram.World, synchronized: bool, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(world.rank)
    net = nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    return (sync_batch_norm(net, world) if synchronized else net).to(dtype)


def train(model: DataParallel, rank: int, dtype: torch.dtype) -> None:
    """Trains, with accumulation, a checkpoint and an evaluation of the mean."""
    for at, (x, y) in enumerate(batches(rank)):
        x, y = x.to(dtype), y.to(dtype)
        model.optimizer.zero_grad()
        if at % 3 == 0:
            with model.no_sync():
                nn.functional.mse_loss(model(x), y).backward()
        nn.functional.mse_loss(model(x), y).backward()
        model.optimizer.step()
        if at == 3:
            state = model.checkpoint()
            model.restore(state)
            model.eval()
            with torch.no_grad():
                model.evaluate_mean(lambda x=x: model(x))
            model.train()
    model.average()
    model.close()


def trained(world: hexagram.World, algorithm, optimizer: str, options: dict, gpu: Gpu | None) -> Arrays:
    """Trains a small model on a GPU or on the host; returns its parameters and buffers."""
    options = dict(options)
    dtype = options.pop("dtype", torch.float32)
    net = small_model(world, options.pop("synchronized", False), dtype)
    if gpu is not None:
        gpu.move(net)
    with InOrder(gpu) if gpu is not None else nullcontext():
        own = torch.optim.Adam(net.parameters(), lr=0.01) if optimizer == "torch" else optimizer
        rate = None if optimizer == "torch" else 0.01
        options |= {"bucket_bytes": 2000, "first_bucket_bytes": 300}
        train(DataParallel(net, own, algorithm, process_group=world, learning_rate=rate, **options), world.rank, dtype)
        return [value.detach().clone().float().numpy() for value in net.state_dict().values()]


CASES = [
    ("gradient-allreduce", "torch", {}),
    ("gradient-allreduce", "adamw", {}),
    ("gradient-allreduce", "sgd(momentum=0.9)", {"overlap": "forward"}),
    ("gradient-allreduce", "sgd", {"loss_scale": 8.0, "clip_norm": 0.5, "unused": "zero"}),
    ("bytegrad", "torch", {}),
    ("local-sgd(period=2)", "sgd(momentum=0.9)", {}),
    ("choco-sgd(codec=top-k(20%))", "torch", {}),
    (Halfway(), "torch", {}),
    ("gradient-allreduce", "adamw", {"synchronized": True}),
    ("local-sgd(period=2)", "adamw", {"dtype": torch.bfloat16}),
]


def on_gpu_and_host(world: hexagram.World) -> list[tuple[Arrays, Arrays]]:
    pairs = []
    for case in CASES:
        on_gpu = trained(world, *case, Gpu(shows_memory=True))
        pairs.append((on_gpu, trained(world, *case, None)))
    return pairs


@pytest.fixture(scope="module")
def pairs_of_ranks():
    return spawn(2, on_gpu_and_host)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{name}-{optimizer}" for name, optimizer, _ in CASES])
def test_a_model_on_a_gpu_learns_the_bits_of_one_on_the_host(case, pairs_of_ranks):
    pairs = [pairs[case] for pairs in pairs_of_ranks]
    bits = [[value.tobytes() for value in values] for pair in pairs for values in pair]
    assert all(one == bits[0] for one in bits)


def late_steps(world: hexagram.World, without: str | None) -> Arrays:
    """Trains by the engine alone. Gradients are written late on one stream, and parameters read on another.

    In the calls that `without` names, the current stream is an idle one.
    """
    delay_longer()
    writing, reading, idle = Stream(), Stream(), Stream()
    current = writing
    options = engine_options(
        {"order": "listed", "first_bucket_bytes": 100, "bucket_bytes": 100}, "sgd", "bytegrad", 1.0
    )
    listed = [("first", "f32", [300]), ("second", "f32", [1000])]
    engine = Engine(world.communicator, listed, "gradient-allreduce", options, (0, lambda: current.cuda_stream))
    engine.broadcast_state([])
    engine.prepare()
    _, buckets = engine.bucket_memory()
    found = []
    for step in range(1, 4):
        current = writing
        engine.begin(False, 1.0, None)
        for gradients, _, members in buckets:
            capsule = gradients.__dlpack__(stream=writing.cuda_stream)
            address = ctypes.c_uint64(tensor_of(capsule).data)
            values = DeviceArray(numpy.full(len(gradients), step + world.rank, "float32"), writing)
            call("cuMemcpyDtoDAsync_v2", address, values.address, values.host.nbytes, writing.handle)
            current = idle if without == "ready" else writing
            for index, *_ in members:
                engine.ready(index)
        engine.finish()
        current = idle if without == "step" else reading
        engine.step(1.0)
        current = reading
        for _, parameters, _ in buckets:
            array = DeviceArray(numpy.zeros(len(parameters), "float32"), reading)
            capsule = parameters.__dlpack__(stream=-1)
            address = ctypes.c_uint64(tensor_of(capsule).data)
            call("cuMemcpyDtoDAsync_v2", array.address, address, array.host.nbytes, reading.handle)
            found.append(array.numbers())
    engine.close()
    return found


def late_steps_without_each(world: hexagram.World) -> list[Arrays]:
    return [late_steps(world, without) for without in (None, "ready", "step")]


def test_the_engine_and_the_current_stream_wait_for_each_other():
    expected = [set(numpy.float32([total])) for total in (-1.5, -4.0, -7.5) for _ in range(2)]
    for complete, *incomplete in spawn(2, late_steps_without_each):
        assert [set(numbers) for numbers in complete] == expected
        for found in incomplete:
            assert [set(numbers) for numbers in found] != expected


def late_changes(world: hexagram.World, without: str | None) -> Arrays:
    """Reads parameters late on one stream before the engine replaces them, and writes them late on another before a pass.

    In the calls that `without` names, the current stream is an idle one.
    """
    delay_longer()
    reading, writing, idle = Stream(), Stream(), Stream()
    current = writing
    options = engine_options({"order": "listed"}, "sgd", "bytegrad", 1.0)
    listed = [("only", "f32", [1000])]
    engine = Engine(world.communicator, listed, "d-psgd", options, (0, lambda: current.cuda_stream))
    engine.broadcast_state([])
    engine.prepare()

    def parameters() -> ctypes.c_uint64:
        """Returns the address of the parameters, which a step changes, for the stream that reads."""
        _, [(_, view, _)] = engine.bucket_memory()
        capsule = view.__dlpack__(stream=reading.cuda_stream)
        return ctypes.c_uint64(tensor_of(capsule).data)

    found = []
    for _ in range(3):
        before, after = (DeviceArray(numpy.zeros(1000, "float32"), reading) for _ in range(2))
        current, address = reading, parameters()
        call("cuMemcpyDtoDAsync_v2", before.address, address, before.host.nbytes, reading.handle)
        current = idle if without == "set_parameter" else reading
        engine.set_parameter(0, DeviceArray(numpy.full(1000, 7, "float32")))
        wait(reading.handle, writing.handle)
        values = DeviceArray(numpy.full(1000, 10 + 10 * world.rank, "float32"), writing)
        call("cuMemcpyDtoDAsync_v2", address, values.address, values.host.nbytes, writing.handle)
        current = idle if without == "forward" else writing
        engine.forward(1.0)
        engine.begin(False, 1.0, None)
        current = writing
        engine.ready(0)
        engine.finish()
        current = reading
        engine.step(1.0)
        call("cuMemcpyDtoDAsync_v2", after.address, parameters(), after.host.nbytes, reading.handle)
        found += [before.numbers(), after.numbers()]
    engine.close()
    return found


def late_changes_without_each(world: hexagram.World) -> list[Arrays]:
    return [late_changes(world, without) for without in (None, "set_parameter", "forward")]


def test_the_engine_waits_for_readers_and_writers_of_parameters():
    expected = [{0.0}, {15.0}, {15.0}, {15.0}, {15.0}, {15.0}]
    for complete, *incomplete in spawn(2, late_changes_without_each):
        assert [set(numbers) for numbers in complete] == expected
        for found in incomplete:
            assert [set(numbers) for numbers in found] != expected


def added_up(world: hexagram.World) -> numpy.ndarray:
    gpu = Gpu()
    sums = gpu.tensor(mine(world.rank))
    add_up(world.communicator, sums)
    return gpu.numbers(sums)


def test_the_current_stream_waits_for_the_sums_of_batch_normalization():
    for sums in spawn(2, added_up):
        numpy.testing.assert_array_equal(sums, mine(0) + mine(1))


def on_two_devices(world: hexagram.World) -> str:
    gpu = Gpu()
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    gpu.move(net[0])
    with pytest.raises(hexagram.UsageError) as error:
        DataParallel(net, "sgd", learning_rate=0.1, process_group=world)
    return str(error.value)


def test_a_model_on_two_devices_is_refused():
    (message,) = spawn(1, on_two_devices)
    assert "`1.weight`" in message and "one device" in message
