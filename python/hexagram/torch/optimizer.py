"""The optimizer: one of PyTorch, of which the engine knows only the form, or one of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from hexagram import UsageError
from hexagram._native import Engine

from .groups import factors
from .slots import load_slots, slots

#: Options of optimizers that engine optimizers have in their spelling.
SPELLED = ("momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize")


class EngineOptimizer(Optimizer):
    """The engine optimizer as a PyTorch optimizer, for learning rate schedules and loops.

    Each group has a learning rate ``lr`` and a ``weight_decay``, which may change from step to step. `state_dict`
    contains the state of the engine optimizer; :meth:`DataParallel.checkpoint` includes it.
    """

    def __init__(
        self,
        engine: Engine,
        parameters: Sequence[torch.nn.Parameter],
        groups: Sequence[dict[str, Any]],
        learning_rate: float | None,
        step: Callable[[], None],
    ):
        traits = engine.traits()
        self.engine = engine
        self.spelled = traits["optimizer"]
        #: Weight decay to which the factors of the engine apply; None if the optimizer has none, or several.
        self.own_decay: float | None = traits["weight_decay"]
        self.parameters = list(parameters)
        self._is_made = False
        self._told: list[tuple[float, float]] | None = None
        defaults = {"lr": learning_rate, "weight_decay": traits["spelled_decay"] or 0.0}
        super().__init__([dict(group) for group in groups], defaults)
        self._is_made = True
        self._step = step
        # Invalid groups are errors before the first step.
        self.group_factors()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises `UsageError` after creation: pass groups to `DataParallel`."""
        if self._is_made:
            raise UsageError(
                "the engine optimizer has the parameters of the model at the start of DataParallel, each in one group; "
                "name groups there: groups=[{'params': …, 'lr': …, 'weight_decay': …}]"
            )
        super().add_param_group(param_group)

    def group_factors(self) -> tuple[float | None, list[tuple[float, float]]]:
        """Returns the learning rate of the step, and the factors of each group for it and for the weight decay.

        Raises `UsageError` for an option of a group that the engine does not support.
        """
        for group in self.param_groups:
            if strange := [name for name in SPELLED if name in group]:
                raise UsageError(
                    f"a group of the engine's optimizer has `{strange[0]}`, which is one for all groups; say it in the "
                    f"spelling, as in adamw(beta1=0.8) or sgd(momentum=0.9), of which this one is {self.spelled}"
                )
        return factors(self.param_groups, self.own_decay, self.spelled)

    def rate(self) -> float | None:
        """Returns the learning rate of the step for algorithms and for the other ranks."""
        return self.group_factors()[0]

    def follow_groups(self) -> float | None:
        """Passes changed groups to the engine; returns the learning rate of the step."""
        rate, now = self.group_factors()
        if now != (self._told or [(1.0, 1.0)] * len(now)):
            self.engine.set_group_factors(now)
            self._told = now
        return rate

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Makes one step with the gradients of the last backward pass; returns the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Returns groups and state in the form of PyTorch: for each parameter ``step``, and its state tensors.

        They have the names of the engine optimizer, such as ``first-moment``. Call it between steps; local to this
        rank.
        """
        return self.groups_dict() | {"state": slots(self.engine, self.in_groups(), self.parameters)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with a state from :meth:`state_dict`, which all ranks must load. Call it between steps.

        Raises `UsageError` for the state of another optimizer, without changing anything.
        """
        load_slots(self.engine, self.in_groups(), self.parameters, state_dict, self.spelled)
        self.load_groups(state_dict)

    def groups_dict(self) -> dict[str, Any]:
        """Returns the groups in the form of `state_dict`, without a state: a checkpoint contains that of the engine."""
        return super().state_dict()

    def load_groups(self, state_dict: dict[str, Any]) -> None:
        """Restores the groups of a state."""
        super().load_state_dict(state_dict | {"state": {}})
        for group in self.param_groups:
            # A checkpoint of an earlier version does not have one.
            group.setdefault("weight_decay", self.defaults["weight_decay"])

    def in_groups(self) -> list[int]:
        """Returns the indices of the parameters in the order of the groups."""
        number = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        return [number[id(parameter)] for group in self.param_groups for parameter in group["params"]]


def rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer for algorithms: that of its first group."""
    return optimizer.rate() if isinstance(optimizer, EngineOptimizer) else optimizer.param_groups[0]["lr"]


def compared_rate(optimizers: Sequence[Optimizer], engine: Engine) -> float | None:
    """Returns the learning rate that ranks compare in a step: with several groups, one group per step, in turn."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(groups) < 2:
        return None
    rate = groups[engine.steps % len(groups)]["lr"]
    return float(rate) if isinstance(rate, float | int | Tensor) else None


def form(optimizer: Optimizer) -> str:
    """Returns the form of the step of an optimizer: ``plain``, ``decaying`` or ``other``.

    Plain is x ← x − γ g; decaying adds weight decay to that.
    """
    groups = optimizer.param_groups
    if type(optimizer) is not SGD or any(group["momentum"] or group["maximize"] for group in groups):
        return "other"
    return "decaying" if any(group["weight_decay"] for group in groups) else "plain"
