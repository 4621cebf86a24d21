"""Algorithms in Python, for trying one out: a class with the hooks of the Rust trait, on torch tensors.

    class LocalSgd(Algorithm):
        def after_step(self, context, state, bucket):
            if (context.step + 1) % 4 == 0:
                context.mean(bucket.parameters)

    model = DataParallel(model, optimizer, algorithm=LocalSgd())

The hooks run on the training thread, one bucket after another, and each call waits for its communication: nothing
overlaps with the passes. On two cores for two ranks, which leave nothing to overlap with, a step took as long as with the
same algorithm in Rust; where ranks wait for each other, 1.3 to 1.4 times as long (docs/benchmarks.md). What else the engine does is done: buckets, accumulation, unused parameters, AMP, clipping, uneven data
(without a hook before the forward pass), checkpoints. ``clip_norm`` clips each rank's own gradients, before the hooks;
``torch.nn.utils.clip_grad_norm_`` before the optimizer's step clips what they leave. An algorithm that has proved itself is
written in Rust, where its hooks run beside the backward pass (docs/write-your-own-algorithm.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hexagram import Communicator

from .tensors import in_place
from .views import Views


@dataclass(frozen=True)
class PythonBucket:
    """Tensors that are communicated together: flat views of the engine's memory, which hooks change in place.

    `gradients` and `parameters` are of shape ``(elements,)``, in the same places. `tensors` has name, shape and range of
    each parameter there.
    """

    index: int
    gradients: Tensor
    parameters: Tensor
    tensors: list[tuple[str, tuple[int, ...], range]]


@dataclass
class Context:
    """Access of an algorithm to the other ranks, in one step."""

    #: Communicator of all ranks, with every primitive.
    comm: Communicator
    #: Number of steps before this one.
    step: int = 0
    #: Learning rate γ of the step; None if no optimizer tells it.
    learning_rate: float | None = None

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.comm.size

    def mean(self, tensor: Tensor) -> None:
        """Replaces a contiguous tensor by its mean over all ranks, bit for bit the same on each.

        Raises `UsageError` for one with gaps between its elements, and for what has no mean.
        """
        self.comm.all_reduce(in_place(tensor, "Context.mean"), "mean")

    def sum(self, tensor: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over all ranks, bit for bit the same on each. Raises as :meth:`mean`."""
        self.comm.all_reduce(in_place(tensor, "Context.sum"), "sum")


class Algorithm:
    """A variant of distributed SGD: write the hooks that it needs. Its attributes must be the same on all ranks.

    A step calls, for one bucket after another: ``before_forward``; ``gradients_ready`` and ``after_backward``, when the
    backward pass is over; ``after_step``, when the optimizer has changed the parameters. What the hooks leave in the
    gradients is what the optimizer steps with.
    """

    #: True if everyone agrees on one result; otherwise ranks mix with neighbours.
    centralized: bool = True
    #: True if numbers travel as they are.
    full_precision: bool = True
    #: True if all replicas are bit-identical after every step.
    keeps_replicas_identical: bool = False
    #: True for one bucket of each element type, in the place of several by size.
    whole_buckets: bool = False

    def spelling(self) -> str:
        """Returns the class with its attributes, which ranks compare: ``Pull(period=4, strength=0.5)``."""
        options = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({options})"

    def written(self) -> set[str]:
        """Returns the names of the hooks that the class writes: the others are not called."""
        return {hook for hook in HOOKS if getattr(type(self), hook) is not getattr(Algorithm, hook)}

    def declared(self) -> dict[str, Any]:
        """Returns what the engine compares between ranks, and what it provides."""
        return {
            "described": self.spelling(),
            "centralized": self.centralized,
            "full_precision": self.full_precision,
            "identical": self.keeps_replicas_identical,
            "whole": self.whole_buckets,
        }

    def state(self, context: Context, bucket: PythonBucket) -> Any:
        """Returns the state of a bucket before its first step: what hooks get from step to step, and a checkpoint has."""
        return None

    def before_forward(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs before each training forward pass."""

    def gradients_ready(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs when the backward pass is over: gradients of all passes that accumulated are there."""

    def after_backward(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs when ``gradients_ready`` of all buckets has run."""

    def after_step(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs when the optimizer has changed the parameters."""


#: Hooks of an algorithm that run in every step.
HOOKS = ("before_forward", "gradients_ready", "after_backward", "after_step")


class Driver:
    """What calls an algorithm's hooks, in the same order on all ranks."""

    def __init__(self, algorithm: Algorithm, group: Communicator, views: Views, names: Sequence[str]):
        self.algorithm = algorithm
        self.written = algorithm.written()
        self.context = Context(group)
        self.views = views
        self.names = names
        self.generation = -1
        self.buckets: list[PythonBucket] = []
        self.states: list[Any] = []

    @property
    def works_after_step(self) -> bool:
        """True if the algorithm has a part after a step, in which ranks may wait for each other."""
        return "after_step" in self.written

    def follow(self) -> None:
        """Makes buckets and states anew where the engine has cut its buckets anew."""
        if self.generation == self.views.generation:
            return
        self.generation = self.views.generation
        self.buckets = [self.bucket(index) for index in range(len(self.views.buckets))]
        self.states = [self.algorithm.state(self.context, bucket) for bucket in self.buckets]

    def bucket(self, index: int) -> PythonBucket:
        """Returns a bucket as hooks see it."""
        bucket = self.views.buckets[index]
        shapes = [tuple(parameter.shape) for parameter in self.views.parameters]
        tensors = [(self.names[at], shapes[at], range(start, end)) for at, start, end in bucket.members]
        return PythonBucket(index, bucket.gradients, bucket.parameters, tensors)

    def call(self, hook: str, rate: float | None) -> None:
        """Calls a hook for each bucket, if it is written."""
        if hook not in self.written:
            return
        self.context.learning_rate = rate
        self.follow()
        for bucket, state in zip(self.buckets, self.states, strict=True):
            getattr(self.algorithm, hook)(self.context, state, bucket)

    def before_forward(self, rate: float | None) -> None:
        """Runs the hooks before a forward pass."""
        self.call("before_forward", rate)

    def after_backward(self, rate: float | None) -> None:
        """Runs the hooks after a backward pass."""
        self.call("gradients_ready", rate)
        self.call("after_backward", rate)

    def after_step(self, rate: float | None) -> None:
        """Runs the hooks after a step of the optimizer."""
        self.call("after_step", rate)
        self.context.step += 1

    def saved(self) -> dict[str, Any]:
        """Returns step and states, for a checkpoint."""
        self.follow()
        return {"step": self.context.step, "states": deepcopy(self.states)}

    def restore(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`saved` returned."""
        self.views.refresh()
        self.follow()
        self.context.step = state["step"]
        self.states = deepcopy(state["states"])
