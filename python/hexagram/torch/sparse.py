"""All-reduce of sparse tensors: each rank gathers those of all others, and adds them.

Bytes sent by each rank: indices and values, padded to the largest number of any rank.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from hexagram import Communicator, UsageError

from .tensors import reduction, rows, span


def all_reduce_sparse(comm: Communicator, tensor: Tensor, op: ReduceOp, timeout: float | None) -> None:
    """Adds a sparse COO tensor over all ranks, in place. Waits for the end.

    Raises `UsageError` for other reductions and layouts.
    """
    if tensor.layout is not torch.sparse_coo or not tensor.is_cpu:
        raise UsageError(
            f"all_reduce of a {tensor.layout} tensor on {tensor.device}; convert it to sparse COO on the CPU"
        )
    if reduction(op, tensor) != "sum":
        raise UsageError(f"sparse tensors have no {reduction(op, tensor)} here; use sum")
    mine = tensor.detach().coalesce()
    most, counts = share_counts(comm, mine, timeout)
    indices = gather(comm, padded(mine.indices().t(), most), timeout)
    values = gather(comm, padded(mine.values(), most), timeout)
    kept = torch.cat([torch.arange(rank * most, rank * most + count) for rank, count in enumerate(counts)])
    total = torch.sparse_coo_tensor(
        indices.flatten(0, 1)[kept].t(), values.flatten(0, 1)[kept], tensor.shape, check_invariants=False
    )
    # A detached sparse tensor would change separately.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(total.coalesce())


def share_counts(comm: Communicator, mine: Tensor, timeout: float | None) -> tuple[int, list[int]]:
    """Returns the largest number of elements of any rank, and that of each rank."""
    counts = gather(comm, torch.tensor([mine._nnz()]), timeout).flatten().tolist()
    return max(counts), counts


def padded(tensor: Tensor, length: int) -> Tensor:
    """Returns a contiguous tensor with `length` rows, the first of which are those of `tensor`."""
    result = torch.zeros((length, *tensor.shape[1:]), dtype=tensor.dtype)
    result[: tensor.shape[0]] = tensor
    return result


def gather(comm: Communicator, tensor: Tensor, timeout: float | None) -> Tensor:
    """Returns the tensors of all ranks, of shape `(ranks, *shape)`."""
    gathered = rows(comm.size, tensor)
    real = torch.view_as_real if tensor.is_complex() else lambda same: same
    comm.all_gather(span(real(tensor)), span(real(gathered)), timeout=timeout)
    return gathered
