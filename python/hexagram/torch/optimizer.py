"""The optimizer that steps: one of PyTorch, of which the engine only knows the form, or the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.optim import SGD, Optimizer


class EngineOptimizer(Optimizer):
    """The engine's optimizer as one of PyTorch: learning rate schedules and loops take it for one.

    Its state is the engine's, and goes with :meth:`DataParallel.checkpoint`. All parameters have the learning rate of the
    first group.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], learning_rate: float | None, step: Callable[[], None]):
        super().__init__(list(parameters), {"lr": learning_rate})
        self._step = step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Makes one step with the gradients of the last backward pass; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss


def form(optimizer: Optimizer) -> str:
    """Returns the form of an optimizer's step, as algorithms ask for it: ``plain``, ``decaying`` or ``other``.

    Plain is x ← x − γ g; decaying adds weight decay to that.
    """
    groups = optimizer.param_groups
    if type(optimizer) is not SGD or any(group["momentum"] or group["maximize"] for group in groups):
        return "other"
    return "decaying" if any(group["weight_decay"] for group in groups) else "plain"
