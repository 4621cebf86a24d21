"""Hooks that `DataParallel` installs in a model and in optimizers, and removes at its end. A parameter can have the
hooks of one model at a time, as its gradient is in the buckets of one engine.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from weakref import ref

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hexagram import UsageError
from hexagram._native import Engine

#: What is attached to each parameter, by its id.
_ATTACHED: dict[int, ref[Attached]] = {}


class Attached:
    """Hooks of one model under the engine."""

    def __init__(self, names: Sequence[str], parameters: Sequence[Tensor]):
        """Raises `UsageError` if a parameter has hooks of another model; removes those of an earlier generation."""
        removed = False
        for name, parameter in zip(names, parameters, strict=True):
            other = _ATTACHED.get(id(parameter), lambda: None)()
            if other is not None and other.engine is not None and other.engine.is_closed:
                other.remove()
                removed = True
            elif other is not None:
                raise UsageError(
                    f"parameter `{name}` is trained by another DataParallel, which would communicate its gradient, too; close "
                    "that one first"
                )
        if removed:
            # Its model is in reference cycles, and holds buckets and optimizer state.
            del other
            gc.collect()
        self.parameters = list(parameters)
        self.handles: list[RemovableHandle] = []
        self.engine: Engine | None = None

    def attach(self, handles: Iterable[RemovableHandle], engine: Engine) -> None:
        """Records hooks of an engine that have been installed."""
        self.handles += handles
        self.engine = engine
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
