"""Gradients and parameters as views of the engine's buckets: what the engine communicates lies where autograd and the
optimizer have it, and nothing is copied.

When the engine may be writing there is its matter: `DataParallel` looks at gradients only between the end of a backward
pass and the next one, as a training loop does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from hexagram._native import Engine

from .tensors import span

#: Types whose gradients and parameters the engine keeps in 32 bits.
HALVES = (torch.float16, torch.bfloat16)


class Views:
    """Views of one model's parameters and gradients, by the parameters' numbers; ``None`` for those of 16 bits."""

    def __init__(self, engine: Engine, parameters: Sequence[Parameter]):
        self.engine = engine
        self.parameters = list(parameters)
        self.gradients: list[Tensor | None] = []
        #: Addresses of the views in `gradients`, in the engine's memory wherever a view's storage may be moved to.
        self.places: list[int] = []
        #: Parameters that no rank has used in the last step.
        self.idle: set[int] = set()
        #: Gradients of 16 bits that the engine has not told yet, by the parameters' numbers.
        self.untold: dict[int, Tensor] = {}
        #: Identity and version of those that it has told.
        self.told: dict[int, tuple[int, int]] = {}
        #: Addresses at which the values of parameters are to lie.
        self.homes = [parameter.data_ptr() for parameter in self.parameters]
        #: Numbers of the parameters of 16 bits, and how often each was changed when engine and model last had the same.
        self.halves = [index for index, parameter in enumerate(self.parameters) if parameter.dtype in HALVES]
        self.versions = [self.parameters[index]._version for index in self.halves]
        self.buckets: list[Bucket] = []
        self.generation = -1

    def refresh(self, generation: int | None = None) -> None:
        """Takes the views anew, if the engine has cut its buckets anew: parameters and gradients lie there from then on.

        `generation` is what the engine's last call returned; None asks it.
        """
        if generation is not None and generation == self.generation:
            return
        self.generation, buckets = self.engine.bucket_memory()
        self.gradients = [None] * len(self.parameters)
        self.places = [0] * len(self.parameters)
        self.buckets = []
        for memory, values, members in buckets:
            gradients = torch.from_dlpack(memory)
            data = None if values is None else torch.from_dlpack(values)
            self.buckets.append(Bucket(gradients, data, members))
            for index, start, end in members:
                self.place(index, gradients[start:end], None if data is None else data[start:end])

    def place(self, index: int, gradient: Tensor, data: Tensor | None) -> None:
        """Lets a parameter and its gradient lie in these elements of their bucket."""
        parameter = self.parameters[index]
        if parameter.dtype in HALVES:
            return
        view = shaped(gradient, parameter)
        if parameter.grad is not None:
            parameter.grad = view
        if data is not None:
            parameter.data = shaped(data, parameter)
            self.homes[index] = parameter.data_ptr()
        self.gradients[index] = view
        self.places[index] = view.data_ptr()

    def are_moved(self) -> bool:
        """Returns whether a view of gradients lies elsewhere than the engine's: converting a model moves its gradients."""
        pairs = zip(self.gradients, self.places, strict=True)
        return any(view is not None and view.data_ptr() != place for view, place in pairs)

    def gradients_elsewhere(self) -> dict[int, Tensor]:
        """Returns copies of gradients that are there, and not in the engine's memory, by the parameters' numbers."""
        pairs = enumerate(zip(self.parameters, self.gradients, self.places, strict=True))
        return {
            index: parameter.grad.detach().clone()
            for index, (parameter, view, place) in pairs
            if view is not None and parameter.grad is not None and parameter.grad.data_ptr() != place
        }

    def adopt(self) -> None:
        """Gives the engine the parameters' values, and lets them lie in its buckets."""
        values = [parameter.detach().clone() for parameter in self.parameters]
        self.refresh()
        for index, (parameter, value) in enumerate(zip(self.parameters, values, strict=True)):
            if parameter.dtype in HALVES:
                self.engine.set_parameter(index, span(value.contiguous()))
            else:
                parameter.data.copy_(value)

    def publish(self) -> None:
        """Copies the values of parameters of 16 bits, which the engine keeps in 32, to the model."""
        for index in self.halves:
            self.tell(index)

    def tell(self, index: int) -> None:
        """Copies the values of one parameter of 16 bits to the model."""
        parameter = self.parameters[index]
        plain = parameter.detach().contiguous()
        self.engine.parameter(index, span(plain))
        if plain.data_ptr() != parameter.data_ptr():
            parameter.data.copy_(plain)

    def collect(self) -> None:
        """Copies what an optimizer of torch has made of parameters of 16 bits to the engine."""
        for at, index in enumerate(self.halves):
            self.engine.set_parameter(index, span(self.parameters[index].detach().contiguous()))
            self.versions[at] = self.parameters[index]._version

    def receive(self, idle: Sequence[int] = (), later: bool = False) -> None:
        """Gives every parameter its gradient, as the algorithm left it, or as :meth:`fetch` will later find it.

        Those of `idle` parameters, which no rank has used, are None: optimizers leave them as they are.
        """
        self.idle = set(idle)
        for index, (parameter, view) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            if index in self.idle:
                parameter.grad = None
                continue
            if view is None:
                view = torch.empty(parameter.shape, dtype=parameter.dtype)
                self.untold[index] = view
                if not later:
                    self.fetch(index)
            parameter.grad = view

    def clear(self) -> None:
        """Takes all gradients away, after a pass that has overflowed."""
        self.untold.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def show_overflow(self) -> None:
        """Gives every parameter its gradient after a pass in which some have overflowed: those of 16 bits are all NaN."""
        for parameter, view in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = torch.full_like(parameter, torch.nan) if view is None else view

    def not_finite(self) -> int:
        """Returns the first parameter whose gradient has a number that is not finite; 0 if none has."""
        gradients = (parameter.grad for parameter in self.parameters)
        found = (at for at, one in enumerate(gradients) if one is not None and not bool(one.isfinite().all()))
        return next(found, 0)

    def given(self, index: int) -> Tensor | None:
        """Returns the gradient that :meth:`receive` gave a parameter, if it is still there."""
        view = self.gradients[index]
        return self.untold.get(index) if view is None else view

    def changed_gradients(self) -> list[int]:
        """Returns the parameters whose gradient is not the one that :meth:`receive` gave them, or was changed there."""
        changed = []
        for index, (parameter, view) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            gradient = parameter.grad
            if gradient is None and index in self.idle:
                continue
            if view is not None:
                if gradient is not view:
                    changed.append(index)
            elif index not in self.untold and self.told.get(index) != (id(gradient), getattr(gradient, "_version", 0)):
                changed.append(index)
        return changed

    def take_gradients(self, changed: Sequence[int]) -> None:
        """Copies gradients to the buckets, which the engine's optimizer steps with."""
        for index in changed:
            gradient = self.parameters[index].grad
            if gradient is None:
                continue
            view = self.gradients[index]
            if view is None:
                self.engine.set_gradient(index, span(gradient.detach().contiguous()))
            elif gradient.data_ptr() != self.places[index]:
                view.copy_(gradient.detach())

    def fetch(self, index: int) -> None:
        """Copies a parameter's gradient of 16 bits, before the step; after it the parameter, if that has 16 bits."""
        if (gradient := self.untold.pop(index, None)) is not None:
            self.engine.gradient(index, span(gradient))
            self.told[index] = (id(gradient), gradient._version)
        elif self.parameters[index].dtype in HALVES:
            self.tell(index)

    def forget(self) -> None:
        """Takes gradients away that were not fetched before the step."""
        for index in self.untold:
            self.parameters[index].grad = None
        self.untold.clear()


class Bucket:
    """Gradients and parameters that are communicated together: flat tensors, over the engine's memory.

    `gradients` and `parameters` are of shape ``(elements,)``; ``members`` tells parameters' numbers, each with the first
    of its elements and the one after its last.
    """

    def __init__(self, gradients: Tensor, parameters: Tensor | None, members: list[tuple[int, int, int]]):
        self.gradients = gradients
        self.parameters = parameters
        self.members = members


def shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    """Returns flat elements as a tensor of a parameter's shape, in its memory format if that has no gaps."""
    if not parameter.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return flat.as_strided(parameter.size(), parameter.stride())
    return flat.view(parameter.shape)
