"""Gradients and parameters as views of the engine buckets: autograd, the optimizer and the engine share memory, without
copies.

The engine decides when it may write there: `DataParallel` reads gradients only between the end of a backward pass and
the next one, like a training loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from hexagram._native import BucketView, Engine

from .tensors import span

#: Types of gradients and parameters that the engine keeps in 32 bits.
HALVES = (torch.float16, torch.bfloat16)


class Views:
    """Views of the parameters and gradients of one model, by parameter index; ``None`` for those of 16 bits."""

    def __init__(self, engine: Engine, parameters: Sequence[Parameter]):
        self.engine = engine
        self.parameters = list(parameters)
        self.gradients: list[Tensor | None] = []
        #: Addresses of the views in `gradients`, in the memory of the engine even if the storage of a view moves.
        self.places: list[int] = []
        #: Parameters that no rank has used in the last step.
        self.idle: set[int] = set()
        #: Gradients of 16 bits that have not been copied from the engine yet, by parameter index.
        self.untold: dict[int, Tensor] = {}
        #: Identity and version of those that have been copied.
        self.told: dict[int, tuple[int, int]] = {}
        #: Addresses at which the values of parameters must be.
        self.homes = [parameter.data_ptr() for parameter in self.parameters]
        #: Indices of the parameters of 16 bits, and their versions when engine and model last agreed.
        self.halves = [index for index, parameter in enumerate(self.parameters) if parameter.dtype in HALVES]
        self.versions = [self.parameters[index]._version for index in self.halves]
        self.buckets: list[Bucket] = []
        self.generation = -1

    def refresh(self, generation: int | None = None) -> None:
        """Recreates the views, if the engine has recreated its buckets, and moves parameters and gradients there.

        `generation` is the result of the last engine call; None to call it.
        """
        if generation is not None and generation == self.generation:
            return
        self.generation, buckets = self.engine.bucket_memory()
        self.gradients = [None] * len(self.parameters)
        self.places = [0] * len(self.parameters)
        self.buckets = []
        for memory, values, members in buckets:
            gradients = imported(memory)
            data = None if values is None else imported(values)
            self.buckets.append(Bucket(gradients, data, members))
            for index, start, end in members:
                self.place(index, gradients[start:end], None if data is None else data[start:end])

    def place(self, index: int, gradient: Tensor, data: Tensor | None) -> None:
        """Moves a parameter and its gradient to these elements of their bucket."""
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
        """Returns whether a view of gradients is outside the engine memory: converting a model moves its gradients."""
        pairs = zip(self.gradients, self.places, strict=True)
        return any(view is not None and view.data_ptr() != place for view, place in pairs)

    def gradients_elsewhere(self) -> dict[int, Tensor]:
        """Returns copies of present gradients outside the engine memory, by parameter index."""
        pairs = enumerate(zip(self.parameters, self.gradients, self.places, strict=True))
        return {
            index: parameter.grad.detach().clone()
            for index, (parameter, view, place) in pairs
            if view is not None and parameter.grad is not None and parameter.grad.data_ptr() != place
        }

    def adopt(self) -> None:
        """Copies the values of the parameters to the engine, and moves the parameters into its buckets."""
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
        """Copies the parameters of 16 bits to the engine after a step of a torch optimizer."""
        for at, index in enumerate(self.halves):
            self.engine.set_parameter(index, span(self.parameters[index].detach().contiguous()))
            self.versions[at] = self.parameters[index]._version

    def receive(self, idle: Sequence[int] = (), later: bool = False) -> None:
        """Sets the gradient of every parameter, as the algorithm left it, or as :meth:`fetch` will later find it.

        Those of `idle` parameters, which no rank has used, are None: optimizers leave them unchanged.
        """
        self.idle = set(idle)
        for index, (parameter, view) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            if index in self.idle:
                parameter.grad = None
                continue
            if view is None:
                view = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
                self.untold[index] = view
                if not later:
                    self.fetch(index)
            parameter.grad = view

    def clear(self) -> None:
        """Removes all gradients, after a pass that has overflowed."""
        self.untold.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def show_overflow(self) -> None:
        """Sets the gradient of every parameter after a pass with an overflow: those of 16 bits are all NaN."""
        for parameter, view in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = torch.full_like(parameter, torch.nan) if view is None else view

    def not_finite(self) -> int:
        """Returns the first parameter with a gradient that is not finite; 0 if there is none."""
        gradients = (parameter.grad for parameter in self.parameters)
        found = (at for at, one in enumerate(gradients) if one is not None and not bool(one.isfinite().all()))
        return next(found, 0)

    def given(self, index: int) -> Tensor | None:
        """Returns the gradient that :meth:`receive` set for a parameter, if it is still present."""
        view = self.gradients[index]
        return self.untold.get(index) if view is None else view

    def changed_gradients(self) -> list[int]:
        """Returns the parameters whose gradient was replaced or changed after :meth:`receive`."""
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
        """Copies gradients to the buckets, for the engine optimizer."""
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
        """Copies the 16-bit gradient of a parameter, before the step; after it the parameter, if that has 16 bits."""
        if (gradient := self.untold.pop(index, None)) is not None:
            self.engine.gradient(index, span(gradient))
            self.told[index] = (id(gradient), gradient._version)
        elif self.parameters[index].dtype in HALVES:
            self.tell(index)

    def forget(self) -> None:
        """Removes gradients that were not fetched before the step."""
        for index in self.untold:
            self.parameters[index].grad = None
        self.untold.clear()


def imported(memory: BucketView) -> Tensor:
    """Returns the memory of a bucket as a tensor."""
    return torch.from_dlpack(memory)


class Bucket:
    """Gradients and parameters that are communicated together: flat tensors over the engine memory.

    `gradients` and `parameters` have shape ``(elements,)``; ``members`` has parameter indices, each with the first of
    its elements and the end of its range.
    """

    def __init__(self, gradients: Tensor, parameters: Tensor | None, members: list[tuple[int, int, int]]):
        self.gradients = gradients
        self.parameters = parameters
        self.members = members


def shaped(flat: Tensor, parameter: Tensor) -> Tensor:
    """Returns flat elements as a tensor with the shape of a parameter, in its memory format if that has no gaps."""
    if not parameter.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return flat.as_strided(parameter.size(), parameter.stride())
    return flat.view(parameter.shape)
