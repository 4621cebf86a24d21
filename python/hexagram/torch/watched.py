"""Whether a model still is what was attached to the engine: its parameters by identity, and where their values lie.

What puts other memory or another tensor in a parameter's place would otherwise part the model from its training without
a word: ``p.data = …``, ``vector_to_parameters``, ``load_state_dict(assign=True)``, ``.double()``, a layer that is added,
replaced or unfrozen, a storage that moves to shared memory. A look takes some microseconds, and is taken once a step:

    the same parameters, where they were        nothing is done
    the same parameters, elsewhere              their values are taken up, and lie in the buckets again
    others, or of another type or shape         `UsageError` by name, before anything is sent
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
    """The parameters of one model, as they were attached."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], views: Views, has_parameters: bool, wait: Callable[[], None]
    ):
        self.module = module
        self.names = list(names)
        self.views = views
        self.has_parameters = has_parameters
        #: Waits for what the last step has left on its way.
        self.wait = wait
        self.traits = [(parameter.dtype, parameter.shape) for parameter in views.parameters]
        self.note_modules()

    def note_modules(self) -> None:
        """Takes note of the modules that there are, and of what each has."""
        tables = ((one._parameters, one._modules) for one in self.module.modules())
        self.tables = [table for table in chain.from_iterable(tables) if table]
        self.members = list(chain.from_iterable(table.values() for table in self.tables))
        self.frozen = self.not_attached()

    def not_attached(self) -> list[tuple[str, Tensor]]:
        """Returns the model's parameters that are not trained by the engine, but for those to be ignored."""
        attached = {id(parameter) for parameter in self.views.parameters}
        left_out = ignored(self.module)
        named = self.module.named_parameters()
        return [(name, one) for name, one in named if id(one) not in attached and name not in left_out]

    def check_identity(self) -> None:
        """Raises `UsageError` if the model has lost a parameter that is trained, or got another one to train."""
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
        """Takes up the values of parameters that lie elsewhere than they did; raises `UsageError` where it cannot."""
        self.check_identity()
        views = self.views
        # No value is read: parameters may be on their way.
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
        """Raises `UsageError` for a parameter that is of another type, shape, layout or device than when it was attached."""
        dtype, shape = self.traits[index]
        if (
            (parameter.dtype, parameter.shape) == (dtype, shape)
            and parameter.is_cpu
            and parameter.layout is torch.strided
        ):
            return
        raise UsageError(
            f"parameter `{self.names[index]}` is {described(parameter.dtype, parameter.shape)} on {parameter.device}, and was "
            f"{described(dtype, shape)} on cpu when this DataParallel was made; convert the model before that, or close this "
            "one and make another"
        )

    def take_up(self, moved: Sequence[int]) -> None:
        """Gives the engine the values of these parameters, and lets them lie in its buckets again."""
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
        """Gives the engine a value of 16 bits, unless it is what the engine's 32 bits are rounded to."""
        own = torch.empty_like(value)
        self.views.engine.parameter(index, span(own))
        if not torch.equal(own, value):
            self.views.engine.set_parameter(index, span(value))


def described(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Returns type and shape as a message has them."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
