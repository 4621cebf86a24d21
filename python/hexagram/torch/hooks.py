"""Algorithms under PyTorch's own ``DistributedDataParallel``, as communication hooks.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*hexagram.torch.hook("bytegrad"))

Every algorithm that works on gradients alone can be a hook. One that works on parameters (local SGD, gossip,
asynchronous averages) or brings an optimizer needs :class:`hexagram.torch.DataParallel` in DDP's place.
"""

# Annotations are not put off in this file: DDP looks at those of its hooks.

from collections.abc import Callable

import torch
from torch.distributed import GradBucket
from torch.futures import Future

from hexagram import UsageError
from hexagram._native import CommunicationHook, needs_learning_rate

from .tensors import readable, span
from .worlds import Ranks, communicator_of


class HookState:
    """What a hook keeps from bucket to bucket: the algorithm with its error feedback, by the bucket's number.

    DDP cuts its buckets anew after the first iteration, so that states begin with the second.
    """

    def __init__(self, native: CommunicationHook, optimizer: torch.optim.Optimizer | None):
        self.native = native
        self.optimizer = optimizer
        self.pending: list[tuple[Future, torch.Tensor]] = []

    def set_learning_rate(self, rate: float) -> None:
        """Tells algorithms that ask for it the learning rate, the same on all ranks. With an optimizer it is not needed."""
        self.native.set_learning_rate(rate)

    def close(self) -> None:
        """Ends the hook's communication, after the last iteration on all ranks."""
        self.native.close()


def communicate(state: HookState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Communicates one bucket of DDP; returns a future with its gradients as the algorithm left them.

    The call with the last bucket of an iteration waits for all of them, as DDP would do next: so no other thread has to
    complete the futures, and a failure is raised from ``backward()`` as what it is, such as ``hexagram.PeerFailed``.
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
    # A complex number is two real ones, as it lies in the bucket, of which DDP's own views are too short.
    shapes = [[*part.shape, 2] if part.is_complex() else list(part.shape) for part in bucket.parameters()]
    tensors = [(f"{bucket.index()}.{at}", shape) for at, shape in enumerate(shapes)]
    future: Future[torch.Tensor] = Future()
    state.pending.append((future, gradients))
    state.native.ready((bucket.index(), bucket.is_last(), span(readable(gradients)), tensors))
    if bucket.is_last():
        for earlier, result in state.pending:
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
    """Returns what ``register_comm_hook`` takes: a state and a function.

    `algorithm` is a spelling of the registry: ``"bytegrad"``, ``"topk-ef(fraction=5%)"``. `optimizer` tells the learning
    rate to algorithms that ask for it; without it `learning_rate` is that of the first steps, and
    :meth:`HookState.set_learning_rate` tells others. `process_group` has the ranks: that of the DDP model, or by default all. `seed` is that of the
    algorithm's random numbers; with `hierarchical`, ranks of one host communicate first.

    Raises `UsageError`, on all ranks, for an algorithm that works on parameters or names its optimizer, and for one that
    asks for the learning rate where neither tells it. A collective call::

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
