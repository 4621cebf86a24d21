"""Algorithms under PyTorch's own ``DistributedDataParallel``, as communication hooks.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*hexagram.torch.hook("bytegrad"))

Every algorithm that works only on gradients can be a hook. For one that works on parameters (local SGD, gossip,
asynchronous averages) or names an optimizer, use :class:`hexagram.torch.DataParallel` instead of DDP.
"""

# Annotations are evaluated in this file: DDP checks those of its hooks.

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import GradBucket
from torch.futures import Future

from hexagram import UsageError
from hexagram._native import CommunicationHook, needs_learning_rate

from .checkpoint import as_dict, as_saved, mistake_in_tensors
from .default_world import Ranks, communicator_of
from .streams import Position, follow, future_at, position_of
from .tensors import readable, span


class HookState:
    """State of a hook from bucket to bucket: the algorithm with its error feedback, by bucket index.

    DDP recreates its buckets after the first iteration, so the states begin anew with the second.
    """

    def __init__(self, native: CommunicationHook, optimizer: torch.optim.Optimizer | None):
        self.native = native
        self.optimizer = optimizer
        self.pending: list[tuple[Future, torch.Tensor, Position | None]] = []

    def set_learning_rate(self, rate: float) -> None:
        """Passes the learning rate, the same on all ranks, to algorithms that need it. Not needed with an optimizer."""
        self.native.set_learning_rate(rate)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the algorithm on this rank, such as its error feedback, for ``torch.save``.

        Call it between two iterations. Each rank has a state of its own.
        """
        return as_dict(self.native.save())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of this rank that :meth:`state_dict` returned, before the first iteration.

        The next steps equal those of an uninterrupted run, bit for bit, with ``find_unused_parameters=True``. Otherwise DDP
        recreates its buckets after the first iteration, which averages gradients in full precision; the state takes effect
        in the second. Raises `UsageError` for the state of another algorithm, rank or number of ranks, and in a later
        iteration if the buckets of DDP are not those of the save.
        """
        if not isinstance(state, dict) or not {"facts", "tensors", "checksum"} <= state.keys():
            raise UsageError("this is not the state of a hook; load what state_dict() returned on this rank")
        if wrong := mistake_in_tensors(state):
            raise UsageError(f"{wrong}; load what state_dict() returned on this rank")
        self.native.load(as_saved(state))

    def close(self) -> None:
        """Ends the communication of the hook, after the last iteration on all ranks."""
        self.native.close()


def communicate(state: HookState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Communicates one bucket of DDP; returns a future with its gradients as the algorithm left them.

    The call with the last bucket of an iteration waits for all of them, as DDP would do next. So no other thread must
    complete the futures, and ``backward()`` raises the original exception, such as ``hexagram.PeerFailed``.
    """
    gradients = bucket.buffer()
    if gradients.layout is not torch.strided:
        raise UsageError(
            f"bucket {bucket.index()} of DDP has a sparse gradient, of a parameter of shape {list(gradients.shape)}, and "
            "hooks work on dense ones; make the layer without sparse=True, or train with hexagram.torch.DataParallel, which "
            "takes sparse gradients"
        )
    if bucket.index() == 0:
        state.pending.clear()
        if state.optimizer is not None:
            state.native.set_learning_rate(state.optimizer.param_groups[0]["lr"])
    # The bucket has two real numbers per complex number, so the views of DDP have half the elements.
    shapes = [[*part.shape, 2] if part.is_complex() else list(part.shape) for part in bucket.parameters()]
    tensors = [(f"{bucket.index()}.{at}", shape) for at, shape in enumerate(shapes)]
    position = position_of(gradients)
    future: Future[torch.Tensor] = future_at(position)
    state.pending.append((future, gradients, position))
    state.native.ready((bucket.index(), bucket.is_last(), span(readable(gradients)), tensors))
    if bucket.is_last():
        for earlier, result, began in state.pending:
            follow(began)
            earlier.set_result(result)
        state.pending.clear()
    return future


def hook(
    algorithm: str,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    learning_rate: float | None = None,
    process_group: Ranks | None = None,
    seed: int = 0,
    hierarchical: bool = False,
) -> tuple[HookState, Callable[[HookState, GradBucket], Future[torch.Tensor]]]:
    """Returns the arguments of ``register_comm_hook``: a state and a function.

    `algorithm` is a spelling of the registry: ``"bytegrad"``, ``"topk-ef(fraction=5%)"``. `optimizer` provides the
    learning rate for algorithms that need it; without it, `learning_rate` is that of the first steps, and
    :meth:`HookState.set_learning_rate` sets later ones. `process_group` is that of the DDP model, by default all ranks.
    `seed` is that of the random numbers of the algorithm; with `hierarchical`, ranks of one host communicate first.

    Raises `UsageError`, on all ranks, for an algorithm that works on parameters or names its optimizer, and for one
    that needs a learning rate if there is none. A collective call::

        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(*hexagram.torch.hook("powersgd(rank=4)", optimizer=optimizer))
    """
    if optimizer is not None:
        learning_rate = float(optimizer.param_groups[0]["lr"])
    if learning_rate is None and needs_learning_rate(algorithm):
        raise UsageError(
            f'{algorithm} asks for the learning rate of its steps; pass optimizer=…, or learning_rate=…, to hook("{algorithm}")'
        )
    native = CommunicationHook(communicator_of(process_group), algorithm, seed, hierarchical, learning_rate)
    return HookState(native, optimizer), communicate
