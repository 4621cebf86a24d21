"""The part of hexagram that is written in Rust. Import its names from the package ``hexagram``.

``Elements`` is any object with contiguous elements in host memory: a NumPy array, a tensor of torch or jax, an
``array``, a ``bytearray``, a ``memoryview``, a :class:`Span` or a :class:`Memory`. Shapes are ignored, only the number
of elements counts. Nothing is copied. An operation keeps its elements alive, and no other code may use them until it
has ended.

Calls release the interpreter lock while they wait, and Ctrl-C ends the wait (the operation continues). With
``async_op=True`` they return a :class:`Work` immediately. ``timeout`` is the maximum time without progress of the
operation, in seconds. Failures are the classes of ``hexagram.errors``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, Self, TypeAlias, overload

class _DLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...

Elements: TypeAlias = _DLPack | Span | Memory | bytearray | memoryview | bytes | Any
Reduction: TypeAlias = Literal["sum", "mean", "min", "max", "product", "band", "bor", "bxor"]

__version__: str

class Store(Protocol):
    """A key-value store that all ranks can reach, for the rendezvous."""

    def put(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, seconds: float) -> bytes: ...
    def remove(self, key: str) -> None: ...

class Span:
    """Elements at an address: the cheapest argument. ``keep`` is kept until an operation on them has ended.

    ``gpu`` is the number of the GPU that has the elements in its memory. ``stream`` is the ``CUstream`` handle of the
    stream that writes and reads them, as ``torch.cuda.Stream.cuda_stream``. An operation begins after all work that is on
    the stream by then. Pass both to :func:`make_stream_wait` before you enqueue work after the operation.
    """

    def __init__(
        self,
        address: int,
        elements: int,
        dtype: str,
        keep: object = None,
        *,
        gpu: int | None = None,
        stream: int | None = None,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def __len__(self) -> int: ...

class Memory:
    """Elements in memory that the other ranks of this host can read directly, so that collectives need no copies.

    Pass it to a collective on all ranks, and view it with ``numpy.asarray``, ``memoryview`` or ``torch.from_dlpack``.
    """

    @property
    def address(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class Work:
    """An operation in progress. Dropping it does not end the operation."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def result(self) -> Any: ...
    def source(self) -> int | None: ...
    def is_done(self) -> bool: ...
    def exception(self) -> Exception | None: ...
    def on_done(self, callback: Callable[[Work], object]) -> None: ...

class Encoding:
    """A codec (``"top-k(1%)"``), the feedback of its error (``"error"``), and their state for one bucket."""

    def __init__(self, codec: str, feedback: str = "none", seed: int = 0) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class LinearEncoding:
    """A codec whose messages add up, the feedback of its error, and their state for one bucket."""

    @staticmethod
    def power_sgd(
        shapes: Sequence[tuple[int, int]],
        rank: int = 1,
        *,
        saving: float = 1.0,
        feedback: str = "error",
        seed: int = 0,
    ) -> LinearEncoding: ...
    @staticmethod
    def random_k(codec: str = "random-k(1%)", *, feedback: str = "error", seed: int = 0) -> LinearEncoding: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class World:
    """All ranks of one job, as seen by this process. Leave it by ``with``, :meth:`close`, or the end of the program."""

    @classmethod
    def join(
        cls,
        *,
        transport: str | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        configuration: str | None = None,
    ) -> Self: ...
    @staticmethod
    def join_through(
        store: Store,
        rank: int,
        size: int,
        *,
        transport: str | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        configuration: str | None = None,
    ) -> World: ...
    @property
    def communicator(self) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def hosts(self) -> list[int]: ...
    @property
    def transport(self) -> str: ...
    @property
    def traffic(self) -> tuple[int, int, int]: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def generation(self) -> int | None:
        """Number of this generation of an elastic job, from 1; None in a job whose members stay."""

    @property
    def changed(self) -> bool:
        """True once this generation ends: always after an operation has failed because of that, and soon on every member.

        Continue with :meth:`next` then. Always False in a job whose members stay.
        """

    def next(self) -> World:
        """Leaves this generation of an elastic job, and returns the world of the next one, with the same options.

        It begins once all processes that are left have called this. This world is closed, with its communicators,
        services and models: their operations that have not ended fail with `MembershipChanged`.

        Raises `UsageError` in a job whose members stay, `SetupError` if the job ends or another process is late.
        """

    deadline: float
    def service(self) -> Service: ...
    def background(self) -> Background: ...
    def close(self) -> None: ...
    def abort(self, because: str = "gave up") -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class _Collectives:
    """The calls that a group and its hierarchy share."""

    @overload
    def all_reduce(
        self,
        elements: Elements,
        op: Reduction = "sum",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_reduce(
        self, elements: Elements, op: Reduction = "sum", *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def reduce(
        self,
        elements: Elements,
        op: Reduction = "sum",
        *,
        root: int,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reduce(
        self,
        elements: Elements,
        op: Reduction = "sum",
        *,
        root: int,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def broadcast(
        self, elements: Elements, root: int, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def broadcast(
        self, elements: Elements, root: int, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def all_gather(
        self, mine: Elements, all: Elements, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def all_gather(
        self, mine: Elements, all: Elements, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        all: Elements,
        mine: Elements,
        op: Reduction = "sum",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        all: Elements,
        mine: Elements,
        op: Reduction = "sum",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def gossip(
        self,
        elements: Elements,
        graph: str,
        step: int,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def gossip(
        self, elements: Elements, graph: str, step: int, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def push_sum(
        self,
        elements: Elements,
        weight: float,
        graph: str,
        step: int,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> float: ...
    @overload
    def push_sum(
        self,
        elements: Elements,
        weight: float,
        graph: str,
        step: int,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def all_reduce_encoded(
        self,
        elements: Elements,
        encoding: Encoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_reduce_encoded(
        self,
        elements: Elements,
        encoding: Encoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def all_reduce_sparse(
        self,
        elements: Elements,
        encoding: Encoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_reduce_sparse(
        self,
        elements: Elements,
        encoding: Encoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def gossip_encoded(
        self,
        elements: Elements,
        encoding: Encoding,
        graph: str,
        step: int,
        *,
        consensus: float = 1.0,
        difference: Literal["before-mixing", "after-mixing"] = "before-mixing",
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def gossip_encoded(
        self,
        elements: Elements,
        encoding: Encoding,
        graph: str,
        step: int,
        *,
        consensus: float = 1.0,
        difference: Literal["before-mixing", "after-mixing"] = "before-mixing",
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def all_reduce_linear(
        self,
        elements: Elements,
        encoding: LinearEncoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_reduce_linear(
        self,
        elements: Elements,
        encoding: LinearEncoding,
        op: Literal["sum", "mean"] = "mean",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def gossip_synchronize(
        self,
        elements: Elements,
        encoding: Encoding,
        graph: str,
        step: int,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def gossip_synchronize(
        self,
        elements: Elements,
        encoding: Encoding,
        graph: str,
        step: int,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...

class Communicator(_Collectives):
    """Membership of this process in a group of ranks, with every primitive as a method.

    Operations run one after another on each lane, in the same order on all ranks; those of different lanes and groups,
    and messages between two ranks, run concurrently. After a failed operation, no communicator of the world can be
    used.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def world_ranks(self) -> list[int]: ...
    def lane(self, number: int) -> Communicator: ...
    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None: ...
    def subgroup(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | None: ...
    def group_of(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | None: ...
    def hierarchy(self, *, timeout: float | None = None) -> Hierarchy: ...
    def registered(self, dtype: str, elements: int) -> Memory: ...
    def on_gpu(self, gpu: int) -> tuple[Communicator, str | None]:
        """Returns a communicator of all ranks for memory of GPUs, and the path of this memory.

        The path is ``"nccl"``, ``"ipc"`` within a host, or None if the memory travels through the host, as over all other
        communicators. Each rank passes the number of its GPU; the first call counts. A collective call of all ranks of the
        world. Raises ``SetupError`` if ``HEXAGRAM_DEVICE_PATH`` names an impossible path.
        """

    @overload
    def gather(
        self,
        mine: Elements,
        all: Elements | None = None,
        *,
        root: int,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def gather(
        self,
        mine: Elements,
        all: Elements | None = None,
        *,
        root: int,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def scatter(
        self,
        all: Elements | None,
        mine: Elements,
        *,
        root: int,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def scatter(
        self, all: Elements | None, mine: Elements, *, root: int, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def all_to_all(
        self, sent: Elements, received: Elements, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def all_to_all(
        self, sent: Elements, received: Elements, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def all_to_all_v(
        self,
        sent: Elements,
        send_counts: Sequence[int],
        received: Elements,
        recv_counts: Sequence[int],
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_to_all_v(
        self,
        sent: Elements,
        send_counts: Sequence[int],
        received: Elements,
        recv_counts: Sequence[int],
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def barrier(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], timeout: float | None = None) -> Work: ...
    @overload
    def send(
        self,
        elements: Elements,
        to: int,
        *,
        tag: int | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def send(
        self,
        elements: Elements,
        to: int,
        *,
        tag: int | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def recv(
        self,
        elements: Elements,
        source: int | None = None,
        *,
        tag: int | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> int: ...
    @overload
    def recv(
        self,
        elements: Elements,
        source: int | None = None,
        *,
        tag: int | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def neighbour_exchange(
        self,
        neighbours: Sequence[int],
        outgoing: Sequence[Elements],
        incoming: Sequence[Elements],
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def neighbour_exchange(
        self,
        neighbours: Sequence[int],
        outgoing: Sequence[Elements],
        incoming: Sequence[Elements],
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def majority_vote(
        self, elements: Elements, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def majority_vote(self, elements: Elements, *, async_op: Literal[True], timeout: float | None = None) -> Work: ...
    @overload
    def all_gather_v(
        self,
        mine: Elements,
        all: Elements,
        counts: Sequence[int],
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def all_gather_v(
        self,
        mine: Elements,
        all: Elements,
        counts: Sequence[int],
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def reduce_scatter_v(
        self,
        all: Elements,
        counts: Sequence[int],
        mine: Elements,
        op: Reduction = "sum",
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def reduce_scatter_v(
        self,
        all: Elements,
        counts: Sequence[int],
        mine: Elements,
        op: Reduction = "sum",
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def mean_kept_encoded(
        self,
        value: Elements,
        mean: Elements,
        encoding: Encoding,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def mean_kept_encoded(
        self,
        value: Elements,
        mean: Elements,
        encoding: Encoding,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...

class Hierarchy(_Collectives):
    """The ranks of a group, by host: its calls run within each host first, then among one leader of each.

    Messages between hosts are those of the leaders alone, and results are those of :class:`Communicator`. Its gossip
    mixes the means of hosts.
    """

    @property
    def hosts(self) -> list[list[int]]: ...
    @property
    def is_leader(self) -> bool: ...
    def lane(self, number: int) -> Hierarchy: ...

class Service:
    """A thread of this rank that answers the requests of other ranks to objects created from it, the same on all ranks.

    See ``hexagram.asynchronous``. It ends with :meth:`close`, ``with``, or its world.
    """

    def window(
        self,
        value: Elements,
        sources: Sequence[int] | None = None,
        *,
        codec: str | None = None,
        feedback: str = "none",
        seed: int = 0,
    ) -> Window: ...
    def pair_exchange(
        self,
        value: Elements,
        *,
        locked: bool = False,
        codec: str | None = None,
        feedback: str = "none",
        seed: int = 0,
    ) -> PairExchange: ...
    def clock(self, staleness: int | None = 0) -> Clock: ...
    def server(
        self,
        clock: Clock,
        initial: Elements,
        *,
        rate: float | None = None,
        push_codec: str | None = None,
        push_feedback: str = "none",
        pull_codec: str | None = None,
        seed: int = 0,
    ) -> Server: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

Peers: TypeAlias = dict[int, float] | Sequence[int]

class Window:
    """The value x of one rank, and a buffer y for each rank that may put into it. See :meth:`Service.window`."""

    @property
    def destinations(self) -> list[int]: ...
    @property
    def sources(self) -> list[int]: ...
    @property
    def mass(self) -> float: ...
    def version(self, source: int) -> int | None: ...
    @overload
    def put(self, to: Peers | None = None, self_weight: float = 1.0, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def put(self, to: Peers | None = None, self_weight: float = 1.0, *, async_op: Literal[True]) -> Work: ...
    @overload
    def accumulate(
        self, to: Peers | None = None, self_weight: float | None = None, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def accumulate(
        self, to: Peers | None = None, self_weight: float | None = None, *, async_op: Literal[True]
    ) -> Work: ...
    @overload
    def get(self, sources: Peers | None = None, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def get(self, sources: Peers | None = None, *, async_op: Literal[True]) -> Work: ...
    def update(
        self, sources: Peers | None = None, self_weight: float | None = None, *, reset: bool = False
    ) -> None: ...
    def collect(self) -> None: ...
    def load(self, into: Elements) -> None: ...
    def estimate(self, into: Elements) -> None: ...
    def load_neighbour(self, source: int, into: Elements) -> None: ...
    def store(self, value: Elements) -> None: ...
    def add(self, elements: Elements, weight: float = 1.0) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class PairExchange:
    """The value of one rank, which it averages with that of one other rank at a time. See
    :meth:`Service.pair_exchange`."""

    @property
    def exchanges(self) -> int: ...
    @overload
    def exchange(self, peer: int, *, async_op: Literal[False] = False) -> tuple[int, int]: ...
    @overload
    def exchange(self, peer: int, *, async_op: Literal[True]) -> Work: ...
    def load(self, into: Elements) -> None: ...
    def add(self, elements: Elements, weight: float = 1.0) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class Clock:
    """The clock of stale synchronous parallelism. See :meth:`Service.clock`."""

    @property
    def now(self) -> int: ...
    @property
    def slowest(self) -> int: ...
    @property
    def staleness(self) -> int | None: ...
    def tick(self) -> int: ...
    @overload
    def wait(self, *, async_op: Literal[False] = False) -> int: ...
    @overload
    def wait(self, *, async_op: Literal[True]) -> Work: ...
    @overload
    def settle(self, *, async_op: Literal[False] = False) -> int: ...
    @overload
    def settle(self, *, async_op: Literal[True]) -> Work: ...
    def finish(self) -> None: ...

class Server:
    """A vector of f32 that is distributed over all ranks, and updated there by pushes from any rank."""

    def __len__(self) -> int: ...
    @overload
    def push(self, delta: Elements, start: int = 0, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def push(self, delta: Elements, start: int = 0, *, async_op: Literal[True]) -> Work: ...
    @overload
    def pull(
        self, into: Elements, start: int = 0, *, cached: bool = False, async_op: Literal[False] = False
    ) -> tuple[int, list[int]]: ...
    @overload
    def pull(self, into: Elements, start: int = 0, *, cached: bool = False, async_op: Literal[True]) -> Work: ...
    @property
    def shard_range(self) -> tuple[int, int]: ...
    def shard(self, into: Elements) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class Background:
    """A background thread of this rank that averages over ranks. See :meth:`World.background`."""

    def mean(self, elements: Elements, encoding: Encoding | None = None) -> Average: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...

class Average:
    """A mean in progress, to apply to its elements."""

    def is_done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def apply(self) -> bool: ...

class Sampler:
    """The order of samples, or of batches, on one rank; see ``hexagram.sampler``."""

    @staticmethod
    def distributed(
        len: int, replicas: int, rank: int, shuffle: bool, seed: int, drop_last: bool, exact: bool
    ) -> Sampler: ...
    @staticmethod
    def load_balancing(
        complexities: Sequence[float],
        replicas: int,
        rank: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        random_level: float,
    ) -> Sampler: ...
    @staticmethod
    def elastic(
        len: int, replicas: int, rank: int, global_batch: int, shuffle: bool, seed: int, tail: str
    ) -> Sampler: ...
    @staticmethod
    def cost_balanced(
        costs: Sequence[float],
        replicas: int,
        rank: int,
        global_batch: int,
        speeds: Sequence[float],
        shuffle: bool,
        seed: int,
        tail: str,
        mix: int,
        random_level: float,
    ) -> Sampler: ...
    @staticmethod
    def load_balancing_batches(
        complexities: Sequence[float],
        replicas: int,
        rank: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        random_level: float,
        batch_fn: Callable[[list[int]], Iterable[Sequence[int]]],
        drop_last_batches: bool,
        epoch: int,
    ) -> Sampler: ...
    @staticmethod
    def weighted(
        weights: Sequence[float],
        num_samples: int,
        replicas: int,
        rank: int,
        replacement: bool,
        seed: int,
        tail: str,
    ) -> Sampler: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> SamplerIterator: ...
    def iter_from(self, position: int) -> SamplerIterator: ...
    @property
    def epoch(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_at(self, position: int) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    @property
    def stride(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...

class SamplerIterator:
    """Draws of an epoch from a position on; torchdata's ``StatefulDataLoader`` saves its state."""

    def __iter__(self) -> SamplerIterator: ...
    def __next__(self) -> Any: ...
    def __length_hint__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class Engine:
    """The engine on one rank, on its own thread: the base of ``hexagram.torch.DataParallel``.

    `gpu` is the number of the GPU that has the model in its memory, and a function that returns the `CUstream` handle of
    the current stream of the thread. The engine begins behind the work of that stream, which later waits for the engine.
    Every method may raise :class:`hexagram.Error`; most are collective calls.
    """

    def __init__(
        self,
        group: Communicator,
        parameters: Sequence[tuple[str, str, Sequence[int]]],
        algorithm: str | dict[str, Any],
        options: dict[str, Any],
        gpu: tuple[int, Callable[[], int]] | None = None,
    ) -> None: ...
    def forward(self, learning_rate: float | None) -> None: ...
    def begin(self, accumulate: bool, learning_rate: float | None, compared: float | None) -> None: ...
    def ready(self, parameter: int) -> None: ...
    def ready_elsewhere(self, parameter: int, gradient: Any) -> None: ...
    def finish(self) -> int: ...
    def step(self, learning_rate: float | None) -> int: ...
    def stepped(self) -> int: ...
    def left_out(self) -> int: ...
    def idle(self, parameters: int) -> list[int]: ...
    def leave_idle(self, parameters: Sequence[int]) -> None: ...
    def set_gradient(self, parameter: int, gradient: Any) -> None: ...
    def set_group_factors(self, factors: Sequence[tuple[float, float]]) -> None: ...
    def optimizer_state(self) -> tuple[int, list[tuple[str, int, str, bytes]]]: ...
    def set_optimizer_state(self, steps: int, slots: Sequence[tuple[str, int, str, bytes]]) -> None: ...
    def average_buffers(self, tensors: Sequence[Any]) -> None: ...
    def check_replicas(self, names: Sequence[str], tensors: Sequence[Any]) -> None: ...
    def wait_for(self, parameters: Sequence[int]) -> int: ...
    def wait_for_all(self) -> int: ...
    def shadow(self) -> bool: ...
    def announced_rate(self) -> float | None: ...
    def prepare(self) -> None: ...
    def set_loss(self, loss: float) -> None: ...
    def check_optimizer(self, form: str, name: str) -> None: ...
    def broadcast_state(self, tensors: Sequence[Any]) -> None: ...
    def synchronize_buffers(self, tensors: Sequence[Any]) -> None: ...
    def bucket_memory(self) -> tuple[int, list[tuple[BucketView, BucketView | None, list[tuple[int, int, int]]]]]: ...
    def gradient(self, parameter: int, into: Any) -> None: ...
    def parameter(self, parameter: int, into: Any) -> None: ...
    def set_parameter(self, parameter: int, values: Any) -> None: ...
    def keeps_snapshot(self) -> bool: ...
    def keep_snapshot(self, snapshots: Snapshots, program: bytes) -> None: ...
    def load_snapshot(self, snapshots: Snapshots) -> tuple[int, bytes] | None: ...
    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    def traits(self) -> dict[str, Any]: ...
    def switch(self, algorithm: str) -> int: ...
    def settle(self) -> None: ...
    def average(self) -> None: ...
    def begin_mean(self, buffers: Sequence[Any]) -> None: ...
    def end_mean(self) -> float: ...
    def save(self) -> tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]], int]: ...
    def load(self, saved: str | tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]], int]) -> int: ...
    def begin_trace(self) -> None: ...
    def collect_trace(self, file: str | None) -> str | None: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def loss_scale(self) -> float: ...
    @property
    def overflowed(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def metrics(self) -> dict[str, float]: ...
    @property
    def blocked(self) -> float: ...

class Snapshots:
    """The state of the last steps of an engine, on one rank: the base of ``hexagram.torch.Snapshots``."""

    def __init__(self) -> None: ...

class BucketView:
    """Gradients or parameters of one bucket, in place: torch imports them by DLPack, without a copy."""

    def __len__(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class CommunicationHook:
    """An algorithm on the gradient buckets of a framework; the base of ``hexagram.torch.hook``.

    A bucket is its index, whether it is the last of the pass, its gradients, and name and shape of each tensor in it.
    """

    def __init__(
        self, group: Communicator, algorithm: str, seed: int, hierarchical: bool, learning_rate: float | None
    ) -> None: ...
    def set_learning_rate(self, rate: float) -> None: ...
    def ready(self, bucket: tuple[int, bool, Any, Sequence[tuple[str, Sequence[int]]]]) -> None: ...
    def save(self) -> tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]], int]: ...
    def load(self, saved: tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]], int]) -> None: ...
    def close(self) -> None: ...

def needs_learning_rate(algorithm: str) -> bool:
    """Returns whether an algorithm uses the learning rate of its steps."""

def algorithms() -> list[tuple[str, str, str]]:
    """Returns name, trigram and source of every algorithm in the registry."""

def joined() -> World | None:
    """Returns the world that this process has joined and not left, the first of several; None if there is none."""

def restarts() -> int:
    """Returns how many times the launcher has restarted this job: ``hexagram run``, torchrun or Slurm.

    A program loads its newest checkpoint if it is above 0.
    """

def make_stream_wait(gpu: int, stream: int, waiting: int) -> None:
    """Makes the stream ``waiting`` wait for the operations on spans of ``stream``, both of the GPU with this number.

    It waits for those that have ended on the host, as after :meth:`Work.wait`, without a wait on the host. Streams are
    ``CUstream`` handles.

    Raises ``SetupError`` without a driver, ``UsageError`` for an unknown GPU and during a graph capture, and failures of
    earlier work of the GPU.
    """

def main(arguments: Sequence[str]) -> int: ...
def shut_down(because: str | None = None) -> None: ...
