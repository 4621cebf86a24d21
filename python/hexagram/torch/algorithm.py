"""Algorithms in Python, for experiments: a class with the hooks of the Rust trait, on torch tensors.

    class LocalSgd(Algorithm):
        def after_step(self, context, state, bucket):
            if (context.step + 1) % 4 == 0:
                context.mean(bucket.parameters)

    model = DataParallel(model, optimizer, algorithm=LocalSgd())

The hooks run on the training thread, one bucket after another, and each call waits for its communication: nothing
overlaps with the passes. With two cores for two ranks, which leave no room for overlap, a step took as long as with the
same algorithm in Rust; with algorithms in which ranks wait for each other, 1.3 to 1.4 times as long
(docs/benchmarks.md). The other features of the engine are available: buckets, accumulation, unused parameters, AMP,
clipping, uneven data (without a hook before the forward pass), checkpoints. ``clip_norm`` clips the gradients of each
rank, before the hooks; ``torch.nn.utils.clip_grad_norm_`` before the optimizer step clips the gradients after the
hooks. Write a successful algorithm in Rust, where its hooks overlap with the backward pass
(docs/write-your-own-algorithm.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hexagram import Communicator

from .streams import follow_current
from .tensors import in_place
from .views import Views


@dataclass(frozen=True)
class PythonBucket:
    """Tensors that are communicated together: flat views of the engine memory, which hooks change in place.

    `gradients` and `parameters` have shape ``(elements,)``, with the same layout. `tensors` has name, shape and range
    of each parameter.
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
    #: Learning rate γ of the step; None if no optimizer has one.
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
        """Replaces a contiguous tensor by its mean over all ranks, with the same bits on each.

        Raises `UsageError` for a tensor that is not contiguous, or whose type has no mean.
        """
        self.comm.all_reduce(in_place(tensor, "Context.mean"), "mean")
        follow_current([tensor])

    def sum(self, tensor: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over all ranks, bit for bit equal on each. Raises as :meth:`mean`."""
        self.comm.all_reduce(in_place(tensor, "Context.sum"), "sum")
        follow_current([tensor])


class Algorithm:
    """A variant of distributed SGD: implement the hooks that it needs. Its attributes must be the same on all ranks.

    A step calls, for one bucket after another: ``before_forward``; ``gradients_ready`` and ``after_backward`` after the
    backward pass; ``after_step`` after the optimizer has changed the parameters. The optimizer steps with the gradients
    that the hooks leave.
    """

    #: True if all ranks agree on one result; otherwise ranks mix with neighbours.
    centralized: bool = True
    #: True if numbers are sent in full precision.
    full_precision: bool = True
    #: True if all replicas are bit-identical after every step.
    keeps_replicas_identical: bool = False
    #: True for one bucket per element type, instead of several by size.
    whole_buckets: bool = False

    def spelling(self) -> str:
        """Returns the class with its attributes, which ranks compare: ``Pull(period=4, strength=0.5)``."""
        options = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({options})"

    def written(self) -> set[str]:
        """Returns the names of the hooks that the class implements: the others are not called."""
        return {hook for hook in HOOKS if getattr(type(self), hook) is not getattr(Algorithm, hook)}

    def declared(self) -> dict[str, Any]:
        """Returns the declaration that the engine compares between ranks and provides for."""
        return {
            "described": self.spelling(),
            "centralized": self.centralized,
            "full_precision": self.full_precision,
            "identical": self.keeps_replicas_identical,
            "whole": self.whole_buckets,
        }

    def state(self, context: Context, bucket: PythonBucket) -> Any:
        """Returns the state of a bucket before its first step, which hooks receive and checkpoints contain."""
        return None

    def regroup(self, context: Context, states: list[Any], bucket: PythonBucket) -> Any:
        """Returns the state of a bucket after ranks of an elastic job have died or arrived.

        `states` are those of the last kept step that a rank still has, in the order of the ranks of that step. All ranks call
        the method with the same `states`, new ones too. A state that is equal on all ranks is ``states[0]``. The mean of an
        error feedback stays with ``sum(states) / len(states)``. ``self.state(context, bucket)`` begins anew. All tensors of
        `states` are on the device of the gradients.

        Only `Snapshots` needs this method, and only if the algorithm has a state, which then consists of numbers, texts and
        dense tensors in dicts, lists and tuples.
        """
        raise NotImplementedError

    def before_forward(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs before each training forward pass."""

    def gradients_ready(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs after the backward pass, with the gradients of all accumulating passes."""

    def after_backward(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs after ``gradients_ready`` of all buckets."""

    def after_step(self, context: Context, state: Any, bucket: PythonBucket) -> None:
        """Runs after the optimizer has changed the parameters."""


#: Hooks of an algorithm that run in every step.
HOOKS = ("before_forward", "gradients_ready", "after_backward", "after_step")


class Driver:
    """Calls the hooks of an algorithm, in the same order on all ranks."""

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
        """True if the algorithm has a hook after the step, in which ranks may wait for each other."""
        return "after_step" in self.written

    def follow(self) -> None:
        """Recreates buckets and states if the engine has recreated its buckets."""
        if self.generation == self.views.generation:
            return
        self.generation = self.views.generation
        self.buckets = [self.bucket(index) for index in range(len(self.views.buckets))]
        self.states = [self.algorithm.state(self.context, bucket) for bucket in self.buckets]

    def bucket(self, index: int) -> PythonBucket:
        """Returns a bucket for hooks."""
        bucket = self.views.buckets[index]
        shapes = [tuple(parameter.shape) for parameter in self.views.parameters]
        tensors = [(self.names[at], shapes[at], range(start, end)) for at, start, end in bucket.members]
        return PythonBucket(index, bucket.gradients, bucket.parameters, tensors)

    def call(self, hook: str, rate: float | None) -> None:
        """Calls a hook for each bucket, if it is implemented."""
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
        """Restores the result of :meth:`saved`."""
        self.views.refresh()
        self.follow()
        self.context.step = state["step"]
        self.states = deepcopy(state["states"])
