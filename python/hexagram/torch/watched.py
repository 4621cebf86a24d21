"""Checks that a model is unchanged since it was attached to the engine: the identity and the memory of its parameters.

Other memory or another tensor for a parameter would otherwise silently separate the model from its training: ``p.data =
…``, ``vector_to_parameters``, ``load_state_dict(assign=True)``, ``.double()``, a layer that is added, replaced or
unfrozen, a storage that moves to shared memory. A check takes some microseconds, and runs once per step:

    the same parameters, same memory            no action
    the same parameters, other memory           the engine adopts the values, and moves them into its buckets
    others, or with another type or shape       `UsageError` with the name, before anything is sent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_

import torch
from torch import Tensor, nn

from hexagram import UsageError

from .model import ignored
from .tensors import span
from .views import HALVES, Views


class Watched:
    """The parameters of one model when they were attached."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], views: Views, has_parameters: bool, wait: Callable[[], None]
    ):
        self.module = module
        self.names = list(names)
        self.views = views
        self.has_parameters = has_parameters
        #: Waits for the unfinished work of the last step.
        self.wait = wait
        self.traits = [(parameter.dtype, parameter.shape, parameter.device) for parameter in views.parameters]
        self.note_modules()

    def note_modules(self) -> None:
        """Records the present modules, and their parameters."""
        tables = ((one._parameters, one._modules) for one in self.module.modules())
        self.tables = [table for table in chain.from_iterable(tables) if table]
        self.members = list(chain.from_iterable(table.values() for table in self.tables))
        self.frozen = self.not_attached()

    def not_attached(self) -> list[tuple[str, Tensor]]:
        """Returns the parameters of the model that the engine does not train, except those to ignore."""
        attached = {id(parameter) for parameter in self.views.parameters}
        left_out = ignored(self.module)
        named = self.module.named_parameters()
        return [(name, one) for name, one in named if id(one) not in attached and name not in left_out]

    def check_identity(self) -> None:
        """Raises `UsageError` if the model has lost a trained parameter, or got a new one."""
        members = list(chain.from_iterable(table.values() for table in self.tables))
        if len(members) != len(self.members) or not all(map(is_, members, self.members)):
            there = {id(parameter) for parameter in self.module.parameters()}
            for name, parameter in zip(self.names, self.views.parameters, strict=True):
                if id(parameter) not in there:
                    raise UsageError(
                        f"parameter `{name}` is not in the model any more: a layer was replaced or taken away, or its "
                        "parameters were, as load_state_dict(assign=True) does; close this DataParallel, and make another "
                        "one and its optimizer of the model as it is"
                    )
            self.note_modules()
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise UsageError(
                    f"parameter `{name}` is to be trained, and was not when this DataParallel was made: it was added or "
                    "unfrozen since; close this one, and make another one and its optimizer of the model as it is"
                )

    def look(self, may_take_up: bool = True) -> None:
        """Adopts the values of parameters that have moved; raises `UsageError` if that is not possible."""
        self.check_identity()
        views = self.views
        # No value is read: parameters may be in progress.
        with torch._C.DisableTorchFunctionSubclass():
            places = [parameter.data_ptr() for parameter in views.parameters]
            versions = [views.parameters[index]._version for index in views.halves]
            are_gradients_moved = views.are_moved()
            is_same = versions == views.versions or not self.has_parameters
            if places == views.homes and is_same and not are_gradients_moved:
                return
            for index, parameter in enumerate(views.parameters):
                self.check_traits(index, parameter)
        moved = {index for index, place in enumerate(places) if place != views.homes[index]}
        if self.has_parameters:
            moved |= {index for at, index in enumerate(views.halves) if versions[at] != views.versions[at]}
            if moved and not may_take_up:
                raise UsageError(
                    f"parameter `{self.names[min(moved)]}` was given other memory between a forward pass and its step, in "
                    "which the algorithm works on parameters; do this between steps"
                )
            self.take_up(sorted(moved))
        elif are_gradients_moved:
            self.take_up([])
        for index in moved:
            views.homes[index] = views.parameters[index].data_ptr()
        views.versions = [views.parameters[index]._version for index in views.halves]

    def check_traits(self, index: int, parameter: Tensor) -> None:
        """Raises `UsageError` for a parameter whose type, shape, layout or device has changed since it was attached."""
        dtype, shape, device = self.traits[index]
        now = (parameter.dtype, parameter.shape, parameter.device)
        if now == (dtype, shape, device) and parameter.layout is torch.strided:
            return
        raise UsageError(
            f"parameter `{self.names[index]}` is {described(parameter.dtype, parameter.shape)} on {parameter.device}, and was "
            f"{described(dtype, shape)} on {device} when this DataParallel was made; convert the model before that, or close this "
            "one and make another"
        )

    def take_up(self, moved: Sequence[int]) -> None:
        """Copies the values of these parameters to the engine, and moves them into its buckets again."""
        parameters = self.views.parameters
        self.wait()
        values = {index: parameters[index].detach().clone() for index in moved}
        gradients = self.views.gradients_elsewhere()
        self.views.refresh()
        for index, value in values.items():
            if value.dtype in HALVES:
                self.give(index, value.contiguous())
            else:
                parameters[index].data.copy_(value)
        for index, gradient in gradients.items():
            parameters[index].grad.copy_(gradient)

    def give(self, index: int, value: Tensor) -> None:
        """Copies a value of 16 bits to the engine, unless it equals the rounded 32-bit value there."""
        own = torch.empty_like(value)
        self.views.engine.parameter(index, span(own))
        if not torch.equal(own, value):
            self.views.engine.set_parameter(index, span(value))


def described(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Returns type and shape for a message."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
