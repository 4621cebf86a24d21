"""The collectives on one tensor each: the native call, and the processing of its result.

Operations of PyTorch take lists of tensors, and `process_group` makes one step of each. A step shows which data is sent
and which copies are made: a contiguous tensor is sent and received in its own memory; lists of tensors go through one
tensor that contains all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from hexagram import Communicator, UsageError

from .tensors import (
    Finish,
    check,
    check_target,
    copy_rows,
    equal_shapes,
    put,
    readable,
    reducible,
    reduction,
    rows,
    span,
    writable,
)


class Step:
    """A native collective, called with `async_op` and `timeout`, and the work after its end."""

    __slots__ = ("call", "finish")

    def __init__(self, call: Callable, finish: Finish = None):
        self.call = call
        self.finish = finish


def all_reduce(comm: Communicator, tensor: Tensor, op: ReduceOp) -> Step:
    """Reduces a tensor over all ranks, in place."""
    name, plain, finish = reducible(tensor, op, comm.size)
    return Step(partial(comm.all_reduce, span(plain), name), finish)


def reduce(comm: Communicator, tensor: Tensor, op: ReduceOp, root: int) -> Step:
    """Reduces a tensor over all ranks; the result is on `root`, and elsewhere the tensor is undefined."""
    name, plain, finish = reducible(tensor, op, comm.size)
    return Step(partial(comm.reduce, span(plain), name, root=root), finish)


def broadcast(comm: Communicator, tensor: Tensor, root: int) -> Step:
    """Copies the tensor of `root` to all ranks."""
    plain, finish = (readable(tensor), None) if comm.rank == root else writable(tensor)
    return Step(partial(comm.broadcast, span(plain), root=root), finish)


def all_gather(comm: Communicator, tensor: Tensor, outputs: Sequence[Tensor]) -> list[Step]:
    """Copies the tensor of rank r to `outputs[r]`, on every rank."""
    check_targets(outputs, comm.size)
    if not equal_shapes(outputs):
        put(tensor.detach(), outputs[comm.rank])
        return [broadcast(comm, output, root) for root, output in enumerate(outputs)]
    plain = readable(tensor)
    gathered = rows(comm.size, plain)
    return [Step(partial(comm.all_gather, span(plain), span(gathered)), partial(copy_rows, gathered, outputs))]


def all_gather_single(comm: Communicator, tensor: Tensor, output: Tensor) -> Step:
    """Copies the tensors of all ranks to parts of `output`, in the order of ranks."""
    plain, finish = writable(output)
    return Step(partial(comm.all_gather, span(readable(tensor)), span(plain)), finish)


def gather(comm: Communicator, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int) -> Step:
    """Copies the tensor of rank r to `outputs[r]` on `root`; elsewhere `outputs` is empty."""
    plain = readable(tensor)
    if comm.rank != root:
        return Step(partial(comm.gather, span(plain), None, root=root))
    check_targets(outputs, comm.size)
    gathered = rows(comm.size, plain)
    return Step(partial(comm.gather, span(plain), span(gathered), root=root), partial(copy_rows, gathered, outputs))


def gather_single(comm: Communicator, tensor: Tensor, output: Tensor, root: int) -> Step:
    """Copies the tensors of all ranks to parts of `output` on `root`."""
    mine = span(readable(tensor))
    if comm.rank != root:
        return Step(partial(comm.gather, mine, None, root=root))
    plain, finish = writable(output)
    return Step(partial(comm.gather, mine, span(plain), root=root), finish)


def scatter(comm: Communicator, output: Tensor, tensors: Sequence[Tensor] | None, root: int) -> Step:
    """Copies `tensors[r]` of `root` to `output` on rank r; elsewhere `tensors` is empty."""
    plain, finish = writable(output)
    if comm.rank != root:
        return Step(partial(comm.scatter, None, span(plain), root=root), finish)
    check_count(tensors, comm.size, "inputs")
    everything = torch.stack([readable(tensor).reshape(plain.shape) for tensor in tensors])
    return Step(partial(comm.scatter, span(everything), span(plain), root=root), finish)


def reduce_scatter(comm: Communicator, output: Tensor, tensors: Sequence[Tensor], op: ReduceOp) -> list[Step]:
    """Reduces `tensors[r]` over all ranks to `output` on rank r."""
    check_count(tensors, comm.size, "inputs")
    if not equal_shapes(tensors):
        return reduce_each(comm, output, tensors, op)
    name, plain, finish = reducible(output, op, comm.size)
    everything = as_wide(torch.stack([readable(tensor) for tensor in tensors]), output, plain)
    return [Step(partial(comm.reduce_scatter, span(everything), span(plain), name), finish)]


def reduce_each(comm: Communicator, output: Tensor, tensors: Sequence[Tensor], op: ReduceOp) -> list[Step]:
    """Reduces `tensors[r]`, whose shapes differ, over all ranks to `output` on rank r: one after the other."""
    reduction(op, output)
    copies = [readable(tensor).clone() for tensor in tensors]
    steps = [reduce(comm, copy, op, root) for root, copy in enumerate(copies)]
    last = steps[-1].finish

    def finish() -> None:
        if last is not None:
            last()
        copy_rows([copies[comm.rank]], [output])

    return [*steps[:-1], Step(steps[-1].call, finish)]


def reduce_scatter_single(comm: Communicator, output: Tensor, tensor: Tensor, op: ReduceOp) -> Step:
    """Reduces a tensor over all ranks, and copies part r of the result to `output` on rank r."""
    name, plain, finish = reducible(output, op, comm.size)
    sent = as_wide(readable(tensor), output, plain)
    return Step(partial(comm.reduce_scatter, span(sent), span(plain), name), finish)


def as_wide(sent: Tensor, output: Tensor, plain: Tensor) -> Tensor:
    """Returns the data to send, in the element type of the output; raises `UsageError` for a different type."""
    if sent.dtype is not output.dtype and not output.is_complex():
        raise UsageError(f"the inputs are {sent.dtype} and the output is {output.dtype}; make them the same type")
    return sent.to(plain.dtype)


def all_to_all(comm: Communicator, outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Step:
    """Copies `tensors[r]` to `outputs[this rank]` on rank r. Sizes may differ from pair to pair."""
    check_count(outputs, comm.size, "outputs")
    check_count(tensors, comm.size, "inputs")
    sent = torch.cat([readable(tensor).reshape(-1) for tensor in tensors])
    targets = [writable(output)[0] for output in outputs]
    counts = [target.numel() for target in targets]
    received = torch.empty(sum(counts), dtype=sent.dtype, device=sent.device)
    send_counts = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in tensors]

    def finish() -> None:
        for part, output, target in zip(received.split(counts), outputs, targets, strict=True):
            copy_rows([part.reshape(target.shape)], [output])

    return Step(exchange(comm, sent, send_counts, received, counts), finish)


def all_to_all_single(
    comm: Communicator, output: Tensor, tensor: Tensor, output_sizes: Sequence[int], sizes: Sequence[int]
) -> Step:
    """Copies part r of `tensor` to the part of this rank in `output` on rank r.

    `sizes` and `output_sizes` are the sizes of the parts in the first dimension; empty for equal ones.
    """
    sent = readable(tensor)
    plain, finish = writable(output)
    send_counts = part_counts(sent, sizes, comm.size, "input")
    counts = part_counts(plain, output_sizes, comm.size, "output")
    return Step(exchange(comm, sent, send_counts, plain, counts), finish)


def exchange(
    comm: Communicator, sent: Tensor, send_counts: Sequence[int], received: Tensor, counts: Sequence[int]
) -> Callable:
    """Returns the native all-to-all with counts in elements of the tensors; rare types are sent as bytes."""
    source, target = span(sent), span(received)
    width = max(len(source) // max(sent.numel(), 1), len(target) // max(received.numel(), 1), 1)
    return partial(
        comm.all_to_all_v, source, [count * width for count in send_counts], target, [count * width for count in counts]
    )


def part_counts(tensor: Tensor, sizes: Sequence[int], ranks: int, side: str) -> list[int]:
    """Returns the elements of the part of each rank in a tensor; raises `UsageError` for sizes that do not fit."""
    length = tensor.shape[0] if tensor.dim() else 0
    row = tensor.numel() // length if length else 0
    if not sizes:
        if length % ranks:
            raise UsageError(
                f"the {side}'s first dimension, {length}, is not a multiple of {ranks} ranks; pass split sizes"
            )
        return [length // ranks * row] * ranks
    if len(sizes) != ranks or sum(sizes) != length or min(sizes) < 0:
        raise UsageError(f"the {side}'s split sizes {list(sizes)} are not {ranks} from 0 on that add up to {length}")
    return [size * row for size in sizes]


def check_targets(outputs: Sequence[Tensor] | None, ranks: int) -> None:
    """Raises `UsageError` unless there is a tensor for each rank to which a result can be copied."""
    check_count(outputs, ranks, "outputs")
    for output in outputs or ():
        check(output)
        check_target(output)


def check_count(tensors: Sequence[Tensor] | None, ranks: int, side: str) -> None:
    """Raises `UsageError` unless there is a tensor for each rank."""
    if tensors is None or len(tensors) != ranks:
        raise UsageError(f"{0 if tensors is None else len(tensors)} {side} for {ranks} ranks; pass one for each")
