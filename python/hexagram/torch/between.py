"""What a model under the engine does between steps: evaluations of the mean, checkpoints, another algorithm, traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from .checkpoint import restored, saved
from .copies import Copied
from .initial import share_optimizers
from .model import model_buffers, model_frozen, named_buffers
from .tensors import numbers, span

Result = TypeVar("Result")


class Between(Copied):
    """The part of :class:`DataParallel` that is called between steps."""

    # What it works on is set up by DataParallel.
    _attached: Any

    def evaluate_mean(self, evaluate: Callable[[], Result]) -> tuple[Result, float]:
        """Returns what `evaluate` returns while the mean of all replicas is in the place of each, and their distance.

        Buffers are their means, too, as :meth:`average` makes them. The distance is the root mean square of the replicas'
        distances from the mean; 0 where the algorithm keeps them identical. Replicas are put back as they were. A
        collective call, between steps.

        `evaluate` runs the model under ``torch.no_grad()``. What else it asks of this class raises `UsageError`.
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
        """Replaces all replicas by their mean, after the last step: the model to evaluate and to save.

        Buffers such as running statistics too: floats by their mean, integers by rank 0's. Raises `UsageError` on all ranks
        where replicas have parted that the algorithm keeps identical, as :meth:`check_replicas`.
        """
        self._between_steps()
        if self._traits["has_parameters"]:
            self._engine.average()
            self._after_step(None)
        self._with_plain(model_buffers(self.module), self._engine.average_buffers)
        self.check_replicas()

    def check_replicas(self) -> None:
        """Raises `UsageError` on all ranks unless their parameters and buffers are the same, bit for bit.

        It names the first tensor that differs, and a rank that has it otherwise than rank 0. What
        ``_ddp_params_and_buffers_to_ignore`` names does not count. A collective call, between steps, of some bytes. Replicas
        of many algorithms differ between :meth:`average` and the next one, and buffers do after each forward pass.
        """
        self._between_steps()
        pairs = zip(self._watched.names, self._parameters_in_order, strict=True)
        tensors = {} if self._traits["has_parameters"] else dict(pairs)
        tensors |= model_frozen(self.module) | named_buffers(self.module)
        forms = [numbers(tensor.detach())[0] for tensor in tensors.values()]
        self._engine.check_replicas(list(tensors), [span(form) for form in forms])

    def settle(self) -> None:
        """Ends what the algorithm has under way in the background: call it after the last step, on all ranks."""
        self._between_steps()
        self._engine.settle()
        self._after_step(None)

    def switch(self, algorithm: str) -> None:
        """Goes on with another algorithm from the next step on. A collective call, between steps.

        Where replicas differed and are to be identical, they become their mean, and PyTorch's optimizers rank 0's.

        Raises `UsageError` if the new one works on parameters, and neither the old one nor the engine's optimizer did.
        """
        self._between_steps()
        generation = self._engine.switch(algorithm)
        self._driver = None
        may_differ = not self._traits["identical"]
        self._traits = self._engine.traits()
        if may_differ and self._traits["identical"]:
            # Each rank's own would part the replicas, which are one from here on.
            share_optimizers(self._stepping, self._group, partial(self._with_plain, work=self._engine.broadcast_state))
        self._after_step(generation)

    def checkpoint(self) -> dict[str, Any]:
        """Returns the state of engine, model and optimizers, for ``torch.save`` on each rank.

        What else the next steps depend on is the program's to save: random generators, learning rate schedules, a
        ``GradScaler``, and where the loader is. A collective call, between steps. Every rank saves its own, as replicas
        may differ.
        """
        self._between_steps()
        return saved(self._engine, self.module, self._optimizers(), self._driver)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint of this rank, bit for bit. A collective call, between steps or before the first.

        Raises `UsageError` on all ranks if one rank's checkpoint is not whole, or of another model, algorithm, optimizer or
        number of ranks: nothing is changed then, and training can go on as it was.
        """
        self._between_steps()
        generation = restored(state, self._engine, self.module, self._optimizers(), self._driver)
        self._after_step(generation)

    def begin_trace(self) -> None:
        """Begins to record what all ranks do. A collective call, between steps."""
        self._between_steps()
        self._engine.begin_trace()

    def collect_trace(self, file: str | None = None) -> str | None:
        """Ends the recording; returns its report on rank 0, which also writes the trace to `file`.

        Raises `UsageError` if nothing is being recorded.
        """
        self._between_steps()
        return self._engine.collect_trace(file)


def copy_all(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copies tensors into others of the same shapes."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
