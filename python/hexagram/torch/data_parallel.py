"""Data-parallel training by the hexagram engine: any algorithm of the registry, instead of DDP.

    model = hexagram.torch.DataParallel(model, optimizer, algorithm="choco-sgd(codec=top-k(5%))")
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

Gradients are communicated during the backward pass, without a copy: they are views of the engine buckets, in the memory
best suited to the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from hexagram import NotFinite, UsageError
from hexagram._native import Engine

from .algorithm import Algorithm, Driver
from .between import Between
from .broadcast_state import share_optimizers
from .claimed_models import Attached
from .default_world import Ranks, communicator_of
from .groups import all_groups, names_of
from .join import check_uneven, follow_rate, last_of
from .model import check_apart, described, gpu_of_model, model_buffers, model_frozen, model_parameters
from .optimizer import EngineOptimizer, compared_rate, form, rate_of
from .options import check_rate, check_takes_groups, engine_options
from .streams import follow_current, for_engine
from .tensors import numbers, span
from .uncompiled import uncompiled
from .views import Views
from .watched import Watched
from .work import passes_on_stack

if TYPE_CHECKING:
    from .overlap import ForwardOverlap

Result = TypeVar("Result")


@uncompiled
class DataParallel(Between):
    """A model that is trained on all ranks together, each with its own samples.

    `optimizer` is a PyTorch optimizer (or several), the spelling of an engine optimizer, such as
    ``"adamw(weight_decay=0.1)"``, or None if the algorithm names its optimizer. The optimizer in use is
    `self.optimizer`. `algorithm` is any spelling of an algorithm in the registry, or an :class:`Algorithm` in Python.
    `learning_rate`, the same on all ranks, is for the engine optimizer and, without an optimizer, for algorithms that
    need it. `groups` are parameters for which the engine optimizer has another learning rate or weight decay, in the
    form of PyTorch; its ``param_groups`` are then all other parameters, followed by these::

        model = DataParallel(model, "adamw", learning_rate=1e-3, groups=[{"params": biases, "weight_decay": 0.0}])

    `process_group` is the group of ranks that train this model: a PyTorch group with any backend, a communicator of
    hexagram (from ``split``), or a world. Default: the world that this process has joined, or joins by the variables of
    the launcher. A rank may train several models, each in its own group.

    `options` are those of the Rust engine: ``bucket_bytes``, ``first_bucket_bytes``, ``order`` (``"observed"``,
    ``"listed"``), ``unused`` (``"error"``, ``"zero"``), ``buffers`` (``"broadcast"``, ``"average"``, ``"off"``),
    ``hierarchical``, ``streams``, ``clip_norm``, ``loss_scale`` (the first scale), ``uneven``, ``seed``, ``autotune``,
    ``overlap``.

    With ``overlap="forward"``, neither the backward pass nor the optimizer step waits for communication. The next
    forward pass does: each module waits for its own parameters. Any other use of a parameter or its gradient waits by
    itself. The training is the same, bit for bit. It requires an engine optimizer, and an algorithm that allows it::

        model = DataParallel(model, "adamw", learning_rate=1e-3, overlap="forward")

    See :mod:`hexagram.torch.overlap` for compiled code. Scale the loss by ``loss_scale`` with it: a ``GradScaler``
    reads all gradients before each step, and an overflow in an encoded gradient raises `NotFinite`.

    Limits: a change by ``p.data.copy_()`` to a parameter of 16 bits is not detected, and the engine keeps its 32-bit
    value (use ``p.copy_()`` under ``torch.no_grad()``); the engine's Adam counts steps for all parameters together,
    including steps that left a parameter unchanged; a step that all ranks skip counts for an algorithm that works on
    parameters.

    ``copy.deepcopy``, ``pickle`` and PyTorch's ``AveragedModel`` treat it like the model: see
    :mod:`hexagram.torch.copies`.

    A collective call: all ranks start with the parameters, buffers and optimizer state of rank 0. Raises `UsageError`
    on all ranks if model, optimizer, algorithm or options differ; and on this rank for an invalid option value, and for
    parameters that are neither all on the CPU nor all on one CUDA GPU.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | str | None = None,
        algorithm: str | Algorithm = "gradient-allreduce",
        *,
        learning_rate: float | None = None,
        groups: Sequence[dict[str, Any]] | None = None,
        process_group: Ranks | None = None,
        **options: Any,
    ):
        super().__init__()
        self.module = module
        names, parameters = model_parameters(module)
        self._parameters_in_order = parameters
        self._gpu = gpu_of_model(names, parameters)
        self._attached = Attached(names, parameters)
        self._require_sync = True
        self._is_open = False
        self._owes_step = False
        self._is_closed = False
        checked = engine_options(options, optimizer, algorithm, learning_rate)
        check_takes_groups(groups, optimizer, algorithm)
        self._groups = all_groups(groups, names, parameters)
        if groups:
            checked["groups"] = names_of(self._groups, names, parameters)
        if options.get("uneven"):
            check_uneven(module)
        self._group = communicator_of(process_group)
        self._engine = Engine(
            self._group,
            described(names, parameters),
            algorithm.declared() if isinstance(algorithm, Algorithm) else algorithm,
            checked,
            for_engine(self._gpu),
        )
        self._fixed_rate = learning_rate
        self._note_options(checked)
        self._traits = self._engine.traits()
        check_rate(self._engine, optimizer, algorithm, learning_rate)
        self._views = Views(self._engine, parameters)
        self._overlap: ForwardOverlap | None = None
        if options.get("overlap") == "forward":
            # It imports the compiler, which takes seconds.
            from .overlap import ForwardOverlap

            self._overlap = ForwardOverlap(self._engine, self._views, names)
            self._before_forward = torch.compiler.disable(self._before_forward)
        self._adopt_optimizer(optimizer, learning_rate)
        self._start(algorithm, names, options.get("order") == "listed")

    def _note_options(self, options: dict[str, Any]) -> None:
        """Stores the options that a step reads."""
        self._uneven = bool(options["uneven"])
        self._asks_for_idle = options["unused"] == "zero"
        self._scales_loss = options["loss_scale"] is not None
        # By the scale of the engine, or by that of a GradScaler with a codec.
        self._may_overflow = self._scales_loss or options["skip_overflows"]
        self._has_overflowed = False

    def _adopt_optimizer(self, optimizer: Optimizer | Sequence[Optimizer] | str | None, rate: float | None) -> None:
        """Stores the optimizer: that of the engine, or those of PyTorch, whose steps are observed."""
        self._stepped_so_far: set[int] = set()
        is_own = isinstance(optimizer, str) or (optimizer is None and self._traits["names_optimizer"] is not None)
        self._stepping: list[Optimizer] = []
        if is_own:
            parameters = self._parameters_in_order
            self.optimizer: Any = EngineOptimizer(self._engine, parameters, self._groups, rate, self._step)
            return
        self.optimizer = optimizer
        if optimizer is not None:
            self._stepping = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        for one in self._stepping:
            self._engine.check_optimizer(form(one), type(one).__name__)

    def _start(self, algorithm: str | Algorithm, names: Sequence[str], listed: bool) -> None:
        """Gives all ranks the state of rank 0, and moves gradients into the buckets."""
        has_parameters = self._traits["has_parameters"]
        if has_parameters:
            check_apart(names, self._parameters_in_order)
        self._views.adopt() if has_parameters else self._views.refresh()
        tensors = [*model_buffers(self.module), *model_frozen(self.module).values()]
        if not has_parameters:
            tensors += [parameter.detach() for parameter in self._parameters_in_order]
        self._with_plain(tensors, self._engine.broadcast_state)
        if has_parameters:
            self._views.publish()
        share_optimizers(self._stepping, self._group, partial(self._with_plain, work=self._engine.broadcast_state))
        self._driver: Driver | None = None
        if isinstance(algorithm, Algorithm) or listed:
            # Otherwise the first pass would move the buckets, with gradients in them.
            self._engine.prepare()
            self._views.refresh()
        if isinstance(algorithm, Algorithm):
            self._driver = Driver(algorithm, self._group, self._views, names)
        self._attach()
        self._watched = Watched(self.module, names, self._views, has_parameters, self._wait_for_all)
        self._has_looked = False

    def _attach(self) -> None:
        """Installs the hooks in the model and its optimizers."""
        handles = [optimizer.register_step_post_hook(self._after_optimizer) for optimizer in self._stepping]
        handles += [optimizer.register_step_pre_hook(self._check_finite) for optimizer in self._stepping]
        for index, parameter in enumerate(self._parameters_in_order):
            handles.append(parameter.register_post_accumulate_grad_hook(self._hook(index)))
        if self._overlap is not None:
            handles += self._overlap.watch(self.module)
        self._attached.attach(handles, self._engine)

    def _with_plain(self, tensors: Sequence[Tensor], work: Callable[[list], None]) -> None:
        """Calls `work` with spans of tensors as in :func:`numbers`, and copies back those that are not in place."""
        forms = [numbers(tensor) for tensor in tensors]
        work([span(plain) for plain, _ in forms])
        follow_current(plain for plain, _ in forms)
        for _, finish in forms:
            if finish is not None:
                finish()

    # A step.

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the module. In training, buffers are synchronized first, as set by ``buffers``.

        Each rank keeps its own buffers with ``uneven`` and if the algorithm is asynchronous: ranks then run the forward
        pass at different times, or less often.
        """
        self._before_forward(torch.compiler.is_compiling())
        return self.module(*inputs, **keywords)

    def _before_forward(self, is_compiled: bool) -> None:
        trains = self.training and torch.is_grad_enabled()
        if trains:
            self._check_open()
        if self._overlap is not None and (is_compiled or not trains or self._overlap.has_parts_without_hooks()):
            self._overlap.wait_for_all()
        if trains and self._require_sync:
            self._settle_step()
            self._look()
            self._has_looked = True
            if buffers := model_buffers(self.module):
                self._with_plain(buffers, self._engine.synchronize_buffers)
            if self._driver is not None:
                self._driver.before_forward(self._rate())
            elif self._traits["needs_parameters"] or self._uneven:
                self._engine.forward(self._rate())

    def _look(self, within_step: bool = False) -> None:
        """Adopts the memory of parameters that have moved; raises `UsageError` if the model has changed."""
        self._watched.look(may_take_up=not (within_step and self._traits["needs_parameters"]))

    def _check_open(self) -> None:
        """Raises `UsageError` if no step can follow."""
        if self._is_closed and self._attached is None:
            self._engine.begin()
        if self._is_closed:
            raise UsageError("this DataParallel was closed; create a new one for training, or call eval() first")
        if self._is_open and passes_on_stack(self._gpu is not None) == 0:
            raise UsageError(
                "the last backward pass was left by an exception, and the other ranks wait for its gradients; close this "
                "model, which tells them, and start all ranks again from a checkpoint"
            )

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        """Returns the function that autograd calls when the gradient of a parameter is complete."""

        def ready(parameter: Tensor) -> None:
            if not self._is_open:
                self._begin()
            gradient = parameter.grad
            view = self._views.gradients[index]
            if view is None:
                # The engine accumulates gradients that it keeps in 32 bits itself.
                self._engine.ready_elsewhere(index, span(gradient.detach().to_dense().contiguous()))
                parameter.grad = None
                return
            is_sparse = gradient.layout is not torch.strided
            if is_sparse or gradient.data_ptr() != self._views.places[index]:
                view.copy_(gradient.detach().to_dense() if is_sparse else gradient.detach())
                parameter.grad = view
            self._engine.ready(index)

        return ready

    def _begin(self) -> None:
        """Begins a backward pass, at its first gradient."""
        if passes_on_stack(self._gpu is not None) > 1:
            raise UsageError(
                "the first gradient is of a backward pass inside of another, which ends before the other gradients are there; "
                "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
            )
        self._between_steps()
        if not self._has_looked:
            self._look()
        # A rank that has run out of data has only one rate.
        compared = compared_rate([] if self._uneven else self._optimizers(), self._engine)
        self._engine.begin(not self._require_sync, self._rate(), compared)
        self._is_open = True
        Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """Ends a backward pass; if it has communicated, sets the gradients that the algorithm left."""
        self._is_open = self._has_looked = False
        generation = self._engine.finish()
        if self._require_sync:
            self._receive(generation)

    def _receive(self, generation: int | None) -> None:
        self._views.refresh(generation)
        self._owes_step = True
        self._has_overflowed = self._may_overflow and self._engine.overflowed
        if self._has_overflowed:
            # There are no gradients for a step by any optimizer; a GradScaler must find the overflow.
            self._views.clear() if self._scales_loss else self._views.show_overflow()
            return
        idle = self._engine.idle(len(self._parameters_in_order)) if self._asks_for_idle else []
        self._views.receive(idle, later=self._overlap is not None)
        if self._overlap is not None:
            self._overlap.leave()
        elif self._traits["needs_parameters"] and self._driver is None:
            self._views.publish()
        if self._driver is not None:
            self._driver.after_backward(self._rate())

    def _settle_step(self) -> None:
        """Continues after a step that was skipped, as by GradScaler after an overflow, or that was incomplete."""
        if self._owes_step:
            self._wait_for_all()
            # If the loop makes the steps itself, they cannot be observed.
            self._end_step(has_stepped=bool(self._stepped_so_far) or self.optimizer is None)

    def _wait_for_all(self) -> None:
        """Waits for the unfinished work of the last step."""
        if self._overlap is not None:
            self._overlap.wait_for_all()

    def _between_steps(self) -> None:
        """Completes parameters and gradients of the last step, for uses outside the forward pass."""
        self._check_open()
        self._settle_step()
        self._wait_for_all()

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """Runs after each step of a PyTorch optimizer."""
        if not self._owes_step:
            return
        self._stepped_so_far.add(id(optimizer))
        if len(self._stepped_so_far) < len(self._stepping):
            return
        self._end_step(has_stepped=True)

    def _end_step(self, has_stepped: bool) -> None:
        """Ends a step of the PyTorch optimizers, including one that was skipped: other ranks may have made a step."""
        self._stepped_so_far.clear()
        if has_stepped and self._traits["has_parameters"]:
            self._views.collect()
        self._look(within_step=True)
        self._drive_after_step(has_stepped)
        self._after_step(self._engine.stepped() if has_stepped else self._engine.left_out())

    def _drive_after_step(self, has_stepped: bool = True) -> None:
        """Runs the hooks of an algorithm in Python after a step; without such hooks, a skipped step does not count."""
        if self._driver is not None and not self._has_overflowed and (has_stepped or self._driver.works_after_step):
            self._driver.after_step(self._rate())

    def _step(self) -> None:
        """Makes a step of the engine optimizer."""
        self._look(within_step=True)
        self._check_finite()
        self._take_gradients()
        generation = self._engine.step(self.optimizer.follow_groups())
        self._drive_after_step()
        if self._overlap is None:
            self._after_step(generation)
            return
        self._owes_step = False
        self._overlap.stepped(generation)

    def _check_finite(self, optimizer: Optimizer | None = None, *_: Any) -> None:
        """Raises `NotFinite` for a step with overflowed gradients, which a GradScaler would have skipped."""
        found = getattr(optimizer, "found_inf", None)
        if self._has_overflowed and not self._scales_loss and not (found is not None and bool(found)):
            name = self._watched.names[self._views.not_finite()]
            raise NotFinite(
                f"gradients such as that of `{name}` are not finite on some rank, and {self.algorithm} cannot encode them; see "
                "why training diverges, or skip the step, as torch.amp.GradScaler does"
            )

    def _take_gradients(self) -> None:
        """Adopts gradients with which the loop has replaced those in the buckets, or that it has removed."""
        if not self._owes_step or self._has_overflowed:
            return
        if changed := self._views.changed_gradients():
            self._wait_for_all()
            self._engine.leave_idle([index for index in changed if self._parameters_in_order[index].grad is None])
            self._views.take_gradients(changed)

    def _after_step(self, generation: int | None) -> None:
        self._owes_step = False
        self._views.refresh(generation)
        if self._traits["has_parameters"]:
            self._views.publish()

    def _optimizers(self) -> list[Optimizer]:
        """Returns the optimizers: those of PyTorch, or that of the engine; none if the loop has its own."""
        return self._stepping or ([] if self.optimizer is None else [self.optimizer])

    def _rate(self) -> float | None:
        """Returns the learning rate of the current step."""
        optimizer = self._stepping[0] if self._stepping else self.optimizer
        return self._fixed_rate if optimizer is None else rate_of(optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients of the backward passes inside, without communication, like that of DDP."""
        before, self._require_sync = self._require_sync, False
        try:
            yield
        finally:
            self._require_sync = before

    # Other parts of a step.

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Returns a loss multiplied by the scale of the engine, for the option ``loss_scale``.

        Gradients are divided by it after the backward pass. If they overflowed on any rank, no rank has gradients: each
        ``.grad`` is None, so no optimizer steps, and the step does not count.
        """
        return loss * self._engine.loss_scale

    @property
    def overflowed(self) -> bool:
        """True if gradients of the last backward pass have overflowed, so that its step is skipped on all ranks."""
        return self._engine.overflowed

    def set_loss(self, loss: float) -> None:
        """Passes the loss of this rank to algorithms that need it, before its backward pass."""
        self._engine.set_loss(loss)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allows ranks to run out of data at different times, with the option ``uneven``: put the training loop inside.

        At its end a rank participates in the steps of the others, with zero gradients and their learning rate, until
        all have run out. Changes by a loop between ``backward()`` and ``step()``, such as a ``GradScaler`` or
        ``clip_grad_norm_``, are missing on a rank without a loop: use the options ``loss_scale`` and ``clip_norm``.
        They are allowed if the algorithm keeps replicas identical and a PyTorch optimizer steps: in the end all ranks
        have the parameters, buffers and optimizer state of one that trained to the last step.
        """
        yield
        self._between_steps()
        own_steps = self._engine.steps
        while self._engine.shadow():
            follow_rate(self._optimizers(), self._rate(), self._engine.announced_rate())
            self._receive(None)
            for optimizer in self._optimizers():
                optimizer.step()
            self._between_steps()
        if self._traits["identical"] and not isinstance(self.optimizer, EngineOptimizer):
            self._share_last(own_steps)

    def _share_last(self, own_steps: int) -> None:
        """Gives all ranks the model and the optimizers of a rank that trained to the last step."""
        last, broadcast = last_of(self._group, own_steps)
        parameters = [parameter.detach() for parameter in self._parameters_in_order]
        self._with_plain([*parameters, *model_buffers(self.module)], broadcast)
        if self._traits["has_parameters"]:
            self._views.collect()
        share_optimizers(self._stepping, self._group, partial(self._with_plain, work=broadcast), last)

    @property
    def algorithm(self) -> str:
        """Spelling of the algorithm in use; class and attributes of one in Python."""
        return self._engine.algorithm if self._driver is None else self._driver.algorithm.spelling()

    @property
    def steps(self) -> int:
        """Number of steps so far.

        A skipped step counts, from the next forward pass on, only for algorithms that work on parameters: other ranks
        may have made a step.
        """
        return self._engine.steps

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the algorithm reported in the last step, by name."""
        return self._engine.metrics

    @property
    def blocked(self) -> float:
        """Time that the training has waited for communication so far, in seconds."""
        return self._engine.blocked

    def close(self) -> None:
        """Ends the engine, after the last step on all ranks, and removes its hooks. So does the end of the interpreter.

        The model keeps its parameters, and another engine can train it.
        """
        try:
            try:
                if not self._is_closed and not self._is_open and not self._engine.is_closed:
                    self._between_steps()
            finally:
                self._engine.close()
        finally:
            self._is_closed = True
            if self._attached is not None:
                self._attached.remove()
