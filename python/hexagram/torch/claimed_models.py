"""Hooks that `DataParallel` installs in a model and in optimizers, and removes at its end. A parameter can have the
hooks of one model at a time, as its gradient is in the buckets of one engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import ref

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hexagram import UsageError

#: What is attached to each parameter, by its id.
_ATTACHED: dict[int, ref[Attached]] = {}


class Attached:
    """Hooks of one model under the engine."""

    def __init__(self, names: Sequence[str], parameters: Sequence[Tensor]):
        """Raises `UsageError` if a parameter has hooks of another model."""
        for name, parameter in zip(names, parameters, strict=True):
            if (other := _ATTACHED.get(id(parameter))) is not None and other() is not None:
                raise UsageError(
                    f"parameter `{name}` is trained by another DataParallel, which would communicate its gradient, too; close "
                    "that one first"
                )
        self.parameters = list(parameters)
        self.handles: list[RemovableHandle] = []

    def attach(self, handles: Iterable[RemovableHandle]) -> None:
        """Records hooks that have been installed."""
        self.handles += handles
        for parameter in self.parameters:
            _ATTACHED[id(parameter)] = ref(self)

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        for parameter in self.parameters:
            if (there := _ATTACHED.get(id(parameter))) is not None and there() is self:
                del _ATTACHED[id(parameter)]
