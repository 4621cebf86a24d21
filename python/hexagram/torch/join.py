"""Ranks that run out of data at different times: the state that a rank without a loop takes from the others, and the
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexagram import Communicator, UsageError
from hexagram._native import Span

from .sync_batch_norm import SyncBatchNorm
from .tensors import span


def check_uneven(module: nn.Module) -> None:
    """Raises `UsageError` for a layer that communicates in the forward pass, as ranks without data make none."""
    for name, layer in module.named_modules():
        if isinstance(layer, SyncBatchNorm | nn.SyncBatchNorm):
            raise UsageError(
                f"a rank that has run out of data makes no forward pass, in which `{name or type(layer).__name__}` of "
                f"{type(layer).__name__} waits for all; use BatchNorm, or leave out uneven"
            )


def follow_rate(optimizers: Iterable[Optimizer], own: float | None, told: float | None) -> None:
    """Sets the learning rate of the training ranks in optimizers, instead of `own`; other groups in proportion."""
    if told is None or own is None:
        return
    # It may be a tensor, that of the first group, which is overwritten below.
    own = float(own)
    if told == own:
        return
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        rate = told * float(group["lr"]) / own if own else told
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def last_of(group: Communicator, own_steps: int) -> tuple[int, Callable[[Sequence[Span]], None]]:
    """Returns a rank that has made the most steps itself, and a broadcast from it. A collective call."""
    counts = torch.zeros(group.size, dtype=torch.int64)
    group.all_gather(span(torch.tensor([own_steps])), span(counts))
    last = int(counts.argmax())

    def broadcast(spans: Sequence[Span]) -> None:
        for one in spans:
            group.broadcast(one, last)

    return last, broadcast
