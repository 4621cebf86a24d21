"""The process group: the methods that torch.distributed calls, under its names.

`Operations` implements each operation once. Two classes inherit it: `HexagramProcessGroup` is a whole process group of
PyTorch, with the lowest overhead, created by `init_process_group("hexagram")`; `HexagramBackend` is a backend in
a group of several devices, such as `cpu:hexagram_device,cuda:nccl`, which PyTorch supports since 2.14.

Names have changed between versions of PyTorch; each operation has all of its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend

import hexagram
from hexagram import UsageError

from . import profile, start, steps
from .errors import in_job, of_group
from .monitor import MonitoredBarrier
from .sparse import all_reduce_sparse
from .steps import Step
from .streams import follow, position_of
from .tensors import readable, span, writable
from .uncompiled import uncompiled
from .work import Finished, Operation, Pending, seconds


@uncompiled
class Operations:
    """Every operation of a group, over a world of its members."""

    # PyTorch reads these of a backend; C++ would call Python again for missing ones.
    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    _supports_time_estimate = False

    def open(self, name: str, store: dist.Store, ranks: Sequence[int], timeout: timedelta) -> None:
        """Joins the world of the group; the number of this rank and the size are already set.

        `name` is that of the backend, `ranks` are the ranks of the members in the job.
        """
        self.backend_name = name
        self.ranks = list(ranks)
        self.timeout = timeout.total_seconds()
        try:
            self.world = start.join(store, self.group_rank, self.group_size, self.timeout, self.timeout)
        except hexagram.Error as error:
            raise of_group(error, self.ranks)
        self.comm = self.world.communicator
        self.gpu_comm: hexagram.Communicator | None = None
        self.monitor = MonitoredBarrier(store, self.group_rank, self.group_size)

    # Execution of an operation.

    def carry_out(
        self, title: str, steps: Iterable[Step], inputs: Sequence[Tensor], result: list, opts: Any
    ) -> dist.Work:
        """Runs steps in order: to the end for a synchronous call, otherwise in the background."""
        timeout = self.seconds(opts)
        end = profile.begin(self.backend_name, title, inputs)
        position = position_of(first(inputs or result))
        try:
            if getattr(opts, "asyncOp", True):
                steps = list(steps)
                natives = [step.call(async_op=True, timeout=timeout) for step in steps]
                finishes = [step.finish for step in steps if step.finish is not None]
                operation = Operation(natives, finishes, self.ranks, end, position)
                operation.finish_alone()
                return Pending(operation, result)
            for step in steps:
                step.call(timeout=timeout)
                follow(position)
                if step.finish is not None:
                    step.finish()
        except hexagram.Error as error:
            raise in_job(error, self.ranks)
        if end is not None:
            end()
        return Finished(result, position)

    def comm_for(self, tensors: Sequence[Any]) -> hexagram.Communicator:
        """Returns the communicator for collectives on these tensors: that of GPUs is made with the first on GPUs, on all ranks.

        Before, PyTorch may not have chosen the GPU of the rank.
        """
        position = position_of(first(tensors))
        if position is None:
            return self.comm
        if self.gpu_comm is None:
            try:
                self.gpu_comm, _ = self.comm.on_gpu(position.gpu)
            except hexagram.Mismatch as error:
                raise UsageError(
                    f"the first collective on GPUs has tensors on {first(tensors).device} here and elsewhere on other ranks; "
                    f"pass CUDA tensors on all ranks of the group ({error})"
                )
            except hexagram.Error as error:
                raise of_group(error, self.ranks)
        return self.gpu_comm

    def seconds(self, opts: Any) -> float | None:
        """Returns the timeout of a call, in seconds; None for that of the group."""
        return seconds(getattr(opts, "timeout", None))

    # Collectives.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        if tensors and tensors[0].layout is not torch.strided:
            return self.allreduce_sparse(tensors, op, opts)
        comm = self.comm_for(tensors)
        parts = (steps.all_reduce(comm, tensor, op) for tensor in tensors)
        return self.carry_out("all_reduce", parts, tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors: list[Tensor], op: Any, opts: Any) -> dist.Work:
        end = profile.begin(self.backend_name, "sparse_all_reduce", [])
        try:
            for tensor in tensors:
                all_reduce_sparse(self.comm, tensor, op, self.seconds(opts))
        except hexagram.Error as error:
            raise in_job(error, self.ranks)
        if end is not None:
            end()
        return Finished(tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        comm = self.comm_for(tensors)
        parts = (steps.reduce(comm, tensor, opts.reduceOp, opts.rootRank) for tensor in tensors)
        return self.carry_out("reduce", parts, tensors, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        comm = self.comm_for(tensors)
        parts = (steps.broadcast(comm, tensor, opts.rootRank) for tensor in tensors)
        return self.carry_out("broadcast", parts, tensors, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        pairs = zip(tensors, outputs, strict=True)
        comm = self.comm_for(tensors)
        parts = [part for pair in pairs for part in steps.all_gather(comm, *pair)]
        return self.carry_out("all_gather", parts, tensors, outputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        transposed = [[row[i] for row in outputs] for i in range(len(tensors))]
        pairs = zip(tensors, transposed, strict=True)
        comm = self.comm_for(tensors)
        parts = [part for pair in pairs for part in steps.all_gather(comm, *pair)]
        return self.carry_out("all_gather", parts, tensors, outputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        comm = self.comm_for([tensor])
        part = steps.all_gather_single(comm, tensor, output)
        return self.carry_out("all_gather_into_tensor", [part], [tensor], [output], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        pairs = zip(tensors, outputs, strict=True)
        comm = self.comm_for(tensors)
        parts = (steps.all_gather_single(comm, *pair) for pair in pairs)
        return self.carry_out("all_gather_into_tensor", parts, tensors, outputs, opts)

    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> dist.Work:
        root = opts.rootRank
        targets = outputs if self.group_rank == root else [None] * len(tensors)
        comm = self.comm_for(tensors)
        parts = (steps.gather(comm, *pair, root) for pair in zip(tensors, targets, strict=True))
        return self.carry_out("gather", parts, tensors, outputs, opts)

    def gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> dist.Work:
        comm = self.comm_for([tensor])
        part = steps.gather_single(comm, tensor, output, opts.rootRank)
        return self.carry_out("gather", [part], [tensor], [output], opts)

    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> dist.Work:
        root = opts.rootRank
        sources = tensors if self.group_rank == root else [None] * len(outputs)
        comm = self.comm_for(outputs)
        parts = (steps.scatter(comm, *pair, root) for pair in zip(outputs, sources, strict=True))
        return self.carry_out("scatter", parts, sum(tensors, []), outputs, opts)

    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> dist.Work:
        pairs = zip(outputs, tensors, strict=True)
        comm = self.comm_for(outputs)
        parts = [part for pair in pairs for part in steps.reduce_scatter(comm, *pair, opts.reduceOp)]
        return self.carry_out("reduce_scatter", parts, sum(tensors, []), outputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> dist.Work:
        comm = self.comm_for([output])
        part = steps.reduce_scatter_single(comm, output, tensor, opts.reduceOp)
        return self.carry_out("reduce_scatter_tensor", [part], [tensor], [output], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> dist.Work:
        pairs = zip(outputs, tensors, strict=True)
        comm = self.comm_for(outputs)
        parts = (steps.reduce_scatter_single(comm, *pair, opts.reduceOp) for pair in pairs)
        return self.carry_out("reduce_scatter_tensor", parts, tensors, outputs, opts)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: list[int], sizes: list[int], opts: Any = None
    ) -> dist.Work:
        comm = self.comm_for([tensor])
        part = steps.all_to_all_single(comm, output, tensor, output_sizes, sizes)
        return self.carry_out("all_to_all", [part], [tensor], [output], opts)

    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        comm = self.comm_for(tensors)
        part = steps.all_to_all(comm, outputs, tensors)
        return self.carry_out("all_to_all", [part], tensors, outputs, opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Returns after every rank has called it. After collectives on GPUs, the current stream is finished first, as by NCCL."""
        if self.gpu_comm is not None:
            torch.cuda.current_stream().synchronize()
        return self.carry_out("barrier", [Step(self.comm.barrier)], [], [], opts)

    # Names of other versions of PyTorch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages between two ranks.

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        check_tag(tag)
        message = span(readable(single(tensors)))
        return self.post("send", tensors, lambda: self.comm.send(message, rank, tag=tag, async_op=True))

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        check_tag(tag)
        plain, finish = writable(single(tensors))
        return self.post(
            "recv", tensors, lambda: self.comm.recv(span(plain), rank, tag=tag, async_op=True), finish, rank
        )

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        check_tag(tag)
        plain, finish = writable(single(tensors))
        return self.post("recvAnySource", tensors, lambda: self.comm.recv(span(plain), tag=tag, async_op=True), finish)

    recvAnysource = recv_anysource

    def post(
        self,
        title: str,
        tensors: list[Tensor],
        call: Callable,
        finish: Callable | None = None,
        source: int | None = None,
    ) -> Pending:
        """Posts a message; the caller need not wait for its end."""
        end = profile.begin(self.backend_name, title, tensors)
        try:
            native = call()
        except hexagram.Error as error:
            raise in_job(error, self.ranks)
        finishes = [] if finish is None else [finish]
        operation = Operation([native], finishes, self.ranks, end, position_of(first(tensors)))
        operation.finish_alone()
        return Pending(operation, tensors, source)

    # The group itself.

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.monitor.wait(self.timeout if timeout is None else timeout.total_seconds(), wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout.total_seconds()
        self.world.deadline = self.timeout

    _set_default_timeout = set_timeout

    def rank(self) -> int:
        return self.group_rank

    def size(self) -> int:
        return self.group_size

    getRank = rank
    getSize = size

    def name(self) -> str:
        """Returns "hexagram", whatever the requested name: for "gloo", C++ expects Gloo itself."""
        return "hexagram"

    getBackendName = name
    _get_backend_name = name

    def _set_sequence_number_for_group(self) -> None:
        """Has no effect: the native layer numbers operations from the start."""

    def shutdown(self) -> None:
        """Leaves the world of the group. Operations in progress end first, within the timeout of the group."""
        self.world.close()

    def abort(self) -> None:
        """Ends operations in progress with an error, here and on the other members, and leaves the world."""
        self.world.abort("aborted the process group")
        self.world.close()


@uncompiled
class HexagramProcessGroup(Operations, dist.ProcessGroup):
    """A process group of PyTorch for tensors on the CPU and on GPUs."""

    def __init__(self, name: str, store: dist.Store, rank: int, ranks: Sequence[int], timeout: timedelta):
        try:
            dist.ProcessGroup.__init__(self, store, rank, len(ranks))
        except TypeError:  # PyTorch 2.8 allows subclasses without a store.
            dist.ProcessGroup.__init__(self, rank, len(ranks))
        self.store = store
        self.group_rank = rank
        self.group_size = len(ranks)
        self.label = ""
        self.description = ""
        self.open(name, store, ranks, timeout)

    def getGroupName(self) -> str:
        return self.label

    def setGroupName(self, name: str) -> None:
        self.label = name

    def getGroupDesc(self) -> str:
        return self.description

    def setGroupDesc(self, description: str) -> None:
        self.description = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        return self.label

    @property
    def group_desc(self) -> str:
        return self.description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def get_group_store(self) -> dist.Store:
        return self.store

    def _get_backend(self, device: torch.device) -> HexagramProcessGroup:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise UsageError(
                f"this group carries tensors on the CPU and on CUDA, not on {device}; move them to the CPU"
            )
        return self

    get_backend = _get_backend

    def _set_default_backend(self, kind: Any) -> None:
        """Has no effect: the group is its own backend."""

    # Required by `dist.split_group` since PyTorch 2.14; before, it supports only NCCL groups.
    supports_splitting = True

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> HexagramProcessGroup | None:
        """Returns a group of these members, numbered in this order; None on ranks that are not members.

        Without a name, the ranks of the members serve as one: only one such group can exist at a time then.
        """
        if self.group_rank not in ranks:
            return None
        name = group_name or f"{self.label}/split/{'-'.join(map(str, ranks))}"
        in_job = [self.ranks[member] for member in ranks]
        limit = timeout or timedelta(seconds=self.timeout)
        store = dist.PrefixStore(f"{name}/", self.store)
        group = HexagramProcessGroup(self.backend_name, store, list(ranks).index(self.group_rank), in_job, limit)
        group.setGroupName(name)
        group.setGroupDesc(group_desc or f"{self.description}:split")
        return group


@uncompiled
class HexagramBackend(Operations, Backend):
    """The backend of one device, or several, in a group of several devices."""

    def __init__(self, name: str, store: dist.Store, rank: int, ranks: Sequence[int], timeout: timedelta):
        try:
            Backend.__init__(self, rank, len(ranks))
        except TypeError:
            raise UsageError(
                f"PyTorch {torch.__version__} has no groups of several devices for a backend that is written in Python; "
                'use "hexagram" alone, or PyTorch from 2.14 on'
            )
        self.group_rank = rank
        self.group_size = len(ranks)
        self.open(name, store, ranks, timeout)


def first(tensors: Sequence[Any]) -> Tensor | None:
    """Returns the first tensor of nested lists; None if they have none."""
    while not isinstance(tensors, Tensor):
        if not tensors:
            return None
        tensors = tensors[0]
    return tensors


def single(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the only tensor of a message."""
    if len(tensors) != 1:
        raise UsageError(f"a message of {len(tensors)} tensors; send one at a time")
    return tensors[0]


def check_tag(tag: int) -> None:
    """Raises `UsageError` for an invalid tag of a message."""
    if not 0 <= tag < 1 << 32:
        raise UsageError(f"messages have no tag {tag}; use a number from 0 to {(1 << 32) - 1}")
