"""A model under the engine between steps: evaluation of the mean, checkpoints, another algorithm, traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from .broadcast_state import share_optimizers
from .checkpoint import restored, saved
from .copies import Copied
from .model import model_buffers, model_frozen, named_buffers
from .tensors import numbers, span

Result = TypeVar("Result")


class Between(Copied):
    """The part of :class:`DataParallel` that is called between steps."""

    # DataParallel sets up its attributes.
    _attached: Any

    def evaluate_mean(self, evaluate: Callable[[], Result]) -> tuple[Result, float]:
        """Returns the result of `evaluate` while each replica is replaced by the mean of all, and their distance.

        Buffers are replaced by their means, too, as in :meth:`average`. The distance is the root mean square of the
        distances of the replicas from the mean; 0 if the algorithm keeps them identical. Replicas are restored. A
        collective call, between steps.

        `evaluate` runs the model under ``torch.no_grad()``. Other calls of this class raise `UsageError` meanwhile.
        """
        self._between_steps()
        has_parameters = self._traits["has_parameters"]
        buffers = model_buffers(self.module)
        own, means = ([buffer.detach().clone() for buffer in buffers] for _ in range(2))
        self._with_plain(means, self._engine.begin_mean)
        try:
            copy_all(means, buffers)
            if has_parameters:
                self._views.publish()
            result = evaluate()
        finally:
            copy_all(own, buffers)
            distance = self._engine.end_mean()
            if has_parameters:
                self._after_step(None)
        return result, distance

    def average(self) -> None:
        """Replaces all replicas by their mean, after the last step, for evaluation and saving.

        Includes buffers such as running statistics: floats are replaced by their mean, integers by those of rank 0. If
        the algorithm keeps replicas identical, raises `UsageError` on all ranks if they differ, as
        :meth:`check_replicas`.
        """
        self._between_steps()
        if self._traits["has_parameters"]:
            self._engine.average()
            self._after_step(None)
        self._with_plain(model_buffers(self.module), self._engine.average_buffers)
        self.check_replicas()

    def check_replicas(self) -> None:
        """Raises `UsageError` on all ranks unless their parameters and buffers are the same, bit for bit.

        The error names the first tensor that differs, and a rank where it differs from rank 0. Tensors in
        ``_ddp_params_and_buffers_to_ignore`` do not count. A collective call, between steps, that sends a few bytes.
        Replicas of many algorithms differ between calls of :meth:`average`, and buffers after each forward pass.
        """
        self._between_steps()
        pairs = zip(self._watched.names, self._parameters_in_order, strict=True)
        tensors = {} if self._traits["has_parameters"] else dict(pairs)
        tensors |= model_frozen(self.module) | named_buffers(self.module)
        forms = [numbers(tensor.detach())[0] for tensor in tensors.values()]
        self._engine.check_replicas(list(tensors), [span(form) for form in forms])

    def settle(self) -> None:
        """Completes the background work of the algorithm: call it after the last step, on all ranks."""
        self._between_steps()
        self._engine.settle()
        self._after_step(None)

    def switch(self, algorithm: str) -> None:
        """Continues with another algorithm from the next step on. A collective call, between steps.

        If replicas differed and must be identical, they become their mean, and PyTorch optimizers get the state of rank
        0.

        Raises `UsageError` if the new one works on parameters, and neither the old one nor an engine optimizer did.
        """
        self._between_steps()
        generation = self._engine.switch(algorithm)
        self._driver = None
        may_differ = not self._traits["identical"]
        self._traits = self._engine.traits()
        if may_differ and self._traits["identical"]:
            # Replicas are identical from here on; different optimizer states would separate them.
            share_optimizers(self._stepping, self._group, partial(self._with_plain, work=self._engine.broadcast_state))
        self._after_step(generation)

    def checkpoint(self) -> dict[str, Any]:
        """Returns the state of engine, model and optimizers, for ``torch.save`` on each rank.

        The program must save all other state: random generators, learning rate schedules, a ``GradScaler``, and the
        position of the loader. A collective call, between steps. Every rank saves its own checkpoint, as replicas may
        differ.
        """
        self._between_steps()
        return saved(self._engine, self.module, self._optimizers(), self._driver)

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint of this rank, bit for bit. A collective call, between steps or before the first.

        Raises `UsageError` on all ranks if the checkpoint of one rank is incomplete, or has another model, algorithm,
        optimizer or number of ranks: nothing is changed then, and training can continue.
        """
        self._between_steps()
        generation = restored(state, self._engine, self.module, self._optimizers(), self._driver)
        self._after_step(generation)

    def begin_trace(self) -> None:
        """Begins to record the activity of all ranks. A collective call, between steps."""
        self._between_steps()
        self._engine.begin_trace()

    def collect_trace(self, file: str | None = None) -> str | None:
        """Ends the recording; returns its report on rank 0, which also writes the trace to `file`.

        Raises `UsageError` if no trace is being recorded.
        """
        self._between_steps()
        return self._engine.collect_trace(file)


def copy_all(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copies tensors into others of the same shapes."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
