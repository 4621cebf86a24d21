"""Tensors on GPUs, and the order of their work: by streams, as in PyTorch, without a wait on the host.

An operation follows the work that the current stream has when the operation begins. After it, :func:`follow` makes the
current stream wait for it. NVIDIA GPUs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.futures import Future

from hexagram import make_stream_wait


class Position(NamedTuple):
    """A stream on which an operation began, and the number of its GPU."""

    gpu: int
    stream: torch.cuda.Stream

    @property
    def handle(self) -> int:
        """The `CUstream` of the driver."""
        return self.stream.cuda_stream


def gpu_of(tensor: Tensor) -> int | None:
    """Returns the number of the GPU that contains a tensor; None for all other devices."""
    return tensor.get_device() if tensor.is_cuda else None


def current_stream(gpu: int) -> torch.cuda.Stream:
    """Returns the current stream of this thread on a GPU."""
    return torch.cuda.current_stream(gpu)


def position_of(tensor: Tensor | None) -> Position | None:
    """Returns the current stream of the GPU of a tensor; None on the CPU."""
    gpu = None if tensor is None else gpu_of(tensor)
    return None if gpu is None else Position(gpu, current_stream(gpu))


def for_engine(gpu: int | None) -> tuple[int, Callable[[], int]] | None:
    """Returns the GPU of a model in the form for the engine: its number, and a function that returns the current stream."""
    return None if gpu is None else (gpu, lambda: current_stream(gpu).cuda_stream)


def follow_current(tensors: Iterable[Tensor]) -> None:
    """Makes the current streams of the GPUs of tensors wait for the operations that began on them and have ended on the host."""
    for gpu in {gpu_of(tensor) for tensor in tensors}:
        if gpu is not None:
            follow(Position(gpu, current_stream(gpu)))


def follow(position: Position | None) -> None:
    """Makes the current stream wait for the operations from `position` that have ended on the host."""
    if position is not None:
        make_stream_wait(position.gpu, position.handle, current_stream(position.gpu).cuda_stream)


def finish_at(position: Position | None, finishes: Sequence[Callable[[], object]]) -> torch.cuda.Event | None:
    """Calls functions; on a GPU, their work is part of the stream of `position`, to which their tensors belong.

    Returns an event after that work, for which streams that read the results have to wait; None on the CPU.
    """
    if position is None:
        for finish in finishes:
            finish()
        return None
    with torch.cuda.stream(position.stream):
        follow(position)
        for finish in finishes:
            finish()
        return position.stream.record_event()


def future_at(position: Position | None) -> Future:
    """Returns a new future; on a GPU, a wait for it also waits for the streams that were current when it was completed."""
    return Future() if position is None else Future(devices=[torch.device("cuda", position.gpu)])
