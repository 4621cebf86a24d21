"""Communication during the next forward pass: the unfinished work of a step, and the waits for it.

    finish, step               return while buckets are in progress
    parameters, gradients      become `Arriving`: other threads may be writing their values
    module with parameters     a hook before its forward pass waits for these only, which become ordinary again
    any other use of one       PyTorch calls the class of the tensor first, and the class waits

The hooks are the fast path. The class makes every other access correct: ``F.linear(x, other.weight)``, clipping,
``state_dict``, your own optimizer. Accesses that need no values, such as ``.shape``, ``.grad`` and ``.grad = None``, do
not wait. A tensor that shares memory with a parameter, such as the result of ``detach``, is not a parameter: use it
only before the next step.

Compiled and scripted code reads memory without the class of a tensor. A module returned by ``torch.compile`` waits for
all parameters inside. If a module was scripted or compiled in place, `DataParallel` waits for all parameters, so call
the module through it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hexagram import UsageError
from hexagram._native import Engine

from .views import Views

#: Attributes that do not depend on values.
FREE_ATTRIBUTES = (
    *(
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "itemsize",
        "nbytes",
        "requires_grad",
        "is_leaf",
        "grad",
        "grad_fn",
    ),
    *("is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested"),
)
#: Functions that neither depend on values nor change any.
FREE = {getattr(Tensor, name).__get__ for name in FREE_ATTRIBUTES} | {
    *(Tensor.grad.__set__, Tensor.requires_grad.__set__, Tensor.requires_grad_),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.element_size),
    *(Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex, Tensor.register_hook),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}


class Arriving(Tensor):
    """A gradient in progress. An access to its values waits for them; then it becomes an ordinary tensor again."""

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function after all tensors in progress among its arguments have arrived."""
        kwargs = kwargs or {}
        if function in FREE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        wait_for(args, kwargs)
        return function(*args, **kwargs)


class ArrivingParameter(nn.Parameter):
    """A parameter in progress, like :class:`Arriving`."""

    __torch_function__ = Arriving.__dict__["__torch_function__"]

    def __deepcopy__(self, memo: dict) -> Tensor:
        """Returns a copy of the parameter after it has arrived, as an ordinary tensor."""
        wait_for(self, None)
        return copy.deepcopy(self, memo)


#: For each tensor in progress: its overlap, and the index of its parameter.
WAITED_BY: dict[int, tuple[ForwardOverlap, int]] = {}


@torch.compiler.disable
def wait_for(args: Any, kwargs: Any) -> None:
    """Waits for all tensors in progress among arguments."""
    for tensor in tensors_in((args, kwargs)):
        overlap, index = WAITED_BY.get(id(tensor), (None, 0))
        if overlap is None:
            # Its class was changed in the meantime.
            tensor.__class__ = nn.Parameter if isinstance(tensor, ArrivingParameter) else Tensor
        else:
            overlap.wait([index])


def tensors_in(arguments: Any) -> Iterator[Tensor]:
    """Returns all tensors in progress in arguments, and in lists, tuples and dictionaries of them."""
    if isinstance(arguments, (Arriving, ArrivingParameter)):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for one in arguments:
            yield from tensors_in(one)
    elif isinstance(arguments, dict):
        yield from tensors_in(list(arguments.values()))


class ForwardOverlap:
    """The unfinished work of the last step of the engine, for one model."""

    def __init__(self, engine: Engine, views: Views, names: Sequence[str]):
        # They may be in progress in another engine.
        wait_for(views.parameters, None)
        for name, parameter in zip(names, views.parameters, strict=True):
            if type(parameter) is not nn.Parameter:
                raise UsageError(
                    f"parameter `{name}` is a {type(parameter).__name__}, and its use cannot be noticed; "
                    'leave overlap at "backward"'
                )
        self.engine = engine
        self.views = views
        #: Buckets in progress.
        self.under_way: set[int] = set()
        self.bucket_of: list[int] = []

    def watch(self, module: nn.Module) -> list[RemovableHandle]:
        """Makes each module with parameters wait for them before its forward pass; returns the hooks for it."""
        self.module = module
        handles: list[RemovableHandle] = []
        index_of = {id(parameter): index for index, parameter in enumerate(self.views.parameters)}

        def watch(one: nn.Module) -> None:
            if without_hooks(one):
                return
            is_compiled = hasattr(one, "_orig_mod")
            own = [index_of[id(parameter)] for parameter in one.parameters(is_compiled) if id(parameter) in index_of]
            if own:
                handles.append(one.register_forward_pre_hook(self.hook(own), prepend=True))
            if not is_compiled:
                for child in one.children():
                    watch(child)

        watch(module)
        return handles

    def hook(self, own: list[int]) -> Callable:
        """Returns the hook that waits for these parameters before a forward pass; for all outside training."""
        return Waiting(self, own)

    def leave(self) -> None:
        """Marks all parameters and gradients as in progress."""
        self.bucket_of = [0] * len(self.views.parameters)
        self.under_way = set(range(len(self.views.buckets)))
        for at, bucket in enumerate(self.views.buckets):
            for index, *_ in bucket.members:
                self.bucket_of[index] = at
                for tensor, kind in self.tensors_of(index, ArrivingParameter, Arriving):
                    tensor.__class__ = kind
                    WAITED_BY[id(tensor)] = (self, index)

    def tensors_of(self, index: int, of_parameter: type, of_gradient: type) -> Iterator[tuple[Tensor, type]]:
        """Returns a parameter and its gradient, each with its new class."""
        yield self.views.parameters[index], of_parameter
        if (gradient := self.views.given(index)) is not None:
            yield gradient, of_gradient

    def stepped(self, generation: int) -> None:
        """Records the optimizer step, which leaves all parameters in progress."""
        # The engine drops the gradients with the step, so they are removed before new ones arrive.
        self.views.forget()
        if generation != self.views.generation:
            self.wait_for_all()
            self.views.refresh(generation)
        self.leave()

    def has_parts_without_hooks(self) -> bool:
        """Returns whether a part of the module starts without a hook."""
        return any(without_hooks(module) for module in self.module.modules())

    def wait(self, parameters: Iterable[int]) -> None:
        """Waits for the buckets of these parameters. Raises the error that ended the communication of the last step."""
        asked = [index for index in parameters if self.bucket_of[index] in self.under_way]
        if not asked:
            return
        if self.engine.wait_for(asked) != self.views.generation:
            # Recreating the views waits for all.
            self.wait_for_all()
            return
        for at in {self.bucket_of[index] for index in asked}:
            self.arrived(at)

    def wait_for_all(self) -> None:
        """Waits for all unfinished work."""
        if not self.under_way:
            return
        generation = self.engine.wait_for_all()
        arrived = [index for index, at in enumerate(self.bucket_of) if at in self.under_way]
        self.under_way.clear()
        for index in arrived:
            self.free(index)
        # It may recreate the buckets.
        self.views.refresh(generation)
        for index in arrived:
            self.views.fetch(index)

    def arrived(self, at: int) -> None:
        """Restores the parameters and gradients of a bucket, with their new values."""
        self.under_way.discard(at)
        for index, *_ in self.views.buckets[at].members:
            self.free(index)
            self.views.fetch(index)

    def free(self, index: int) -> None:
        """Restores the classes of a parameter and its gradient."""
        for tensor, kind in self.tensors_of(index, nn.Parameter, Tensor):
            if WAITED_BY.pop(id(tensor), None):
                tensor.__class__ = kind


class Waiting:
    """The hook before the forward pass of a module. A copy of the module has none, and does not wait."""

    def __init__(self, overlap: ForwardOverlap, own: list[int]):
        self.overlap = overlap
        self.own = own

    @torch.compiler.disable
    def __call__(self, module: nn.Module, _: Any) -> None:
        """Waits for the parameters of the module, or for all outside training."""
        if self.overlap.under_way:
            is_training = module.training and torch.is_grad_enabled()
            self.overlap.wait(self.own) if is_training else self.overlap.wait_for_all()

    def __deepcopy__(self, memo: dict) -> Callable:
        """Returns the hook of a copy."""
        return nothing

    def __reduce__(self) -> tuple:
        """Returns how to create the hook of a pickled copy."""
        return partial, (nothing,)


def nothing(*_: Any) -> None:
    """Does not wait."""


def without_hooks(module: nn.Module) -> bool:
    """Returns whether hooks of a module and of those inside are not called: it is scripted, or compiled in place."""
    return isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None
