"""Snapshots in memory, from which a training continues when the members of an elastic job change.

Example, started by ``hexagram run -n 4 --elastic 2 -- python program.py``::

    def train(world):
        model = DataParallel(net, "sgd", learning_rate=0.1, process_group=world)
        position = snapshots.load(model, {"batch": 0})
        for batch in range(position["batch"], 1000):
            ...  # a step
            snapshots.keep(model, {"batch": batch + 1})
        world.communicator.barrier()  # all ranks have finished

    snapshots = Snapshots()
    hexagram.as_member(hexagram.init(), train)
"""

from __future__ import annotations

import io
from typing import Any

import torch

from hexagram import UsageError, _native

from . import regroup
from .broadcast_state import adopt, is_plain, plain
from .checkpoint import copied, load_state, state_of
from .data_parallel import DataParallel
from .optimizer import EngineOptimizer
from .regroup import PLAIN


class Snapshots:
    """The state of the last steps of a training, on one rank, from which the ranks that are left continue with new ones.

    It has the state of engine, model and optimizers, as :meth:`DataParallel.checkpoint`, and that of the program. The
    memory for it is twice the size of the state, on the host.

    If the number of ranks changes and their replicas differ, each rank continues with the mean of the parameters and of the
    state of an engine optimizer; buffers and the state of a PyTorch optimizer are those of one of the ranks. The states of an
    algorithm in Python are the results of :meth:`Algorithm.regroup`, for which each rank has those of all ranks in memory, one
    bucket after another.
    """

    def __init__(self) -> None:
        self._native = _native.Snapshots()

    def keep(self, model: DataParallel, state: dict[str, Any] | None = None) -> None:
        """Keeps the state of the model, and a state of the program, in place of that of the step before the last.

        Call it after each step, on all ranks. `state` has numbers, texts and tensors, in dicts, lists and tuples, such as the
        epoch and the ``state_dict`` of a sampler; random generators and learning rate schedules belong there, too. Unless the
        algorithm keeps replicas identical and has no background work, only calls after a multiple of 16 steps keep a state,
        and these are collective calls.

        Raises `UsageError` during a step, for a state of other types, and for an algorithm in Python that has a state but no
        method `regroup`.
        """
        model._between_steps()
        if model._engine.keeps_snapshot():
            model._engine.keep_snapshot(self._native, packed(model, state or {}))

    def load(self, model: DataParallel, state: dict[str, Any] | None = None) -> dict[str, Any]:
        """Continues from the newest step that the ranks have in common. Returns the state of the program at that step.

        If no rank has kept a state, keeps and returns `state`, the one before the first step. A collective call, before the
        first step of a new model, of the ranks of the new world.
        """
        model._between_steps()
        loaded = model._engine.load_snapshot(self._native)
        if loaded is None:
            self.keep(model, state)
            return state or {}
        generation, content = loaded
        own = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        unpack(own, model)
        model._after_step(generation)
        return own["program"]


def packed(model: DataParallel, program: dict[str, Any]) -> bytes:
    """Returns the state that the engine does not have."""
    if not is_plain(program):
        raise UsageError(f"the state of the program has more than {PLAIN}; convert it, for example to a list")
    driver = None if model._driver is None else regroup.kept(model._driver)
    optimizers = [plain(state_of(optimizer)) for optimizer in model._optimizers()]
    if not all(map(is_plain, optimizers)):
        raise UsageError(f"the state of an optimizer has more than {PLAIN}; use another optimizer")
    file = io.BytesIO()
    own = {"model": tensors_of(model), "optimizers": optimizers, "python": driver, "program": program}
    torch.save(own, file)
    return file.getvalue()


def tensors_of(model: DataParallel) -> dict[str, Any]:
    """Returns the state of the module, without parameters that the engine has."""
    state = {name: copied(value) for name, value in model.module.state_dict().items()}
    if model._traits["has_parameters"]:
        for name in model._watched.names:
            state.pop(name, None)
    return state


def unpack(own: dict[str, Any], model: DataParallel) -> None:
    """Restores the result of :func:`packed`."""
    model.module.load_state_dict(own["model"], strict=False)
    for optimizer, state in zip(model._optimizers(), own["optimizers"], strict=True):
        if isinstance(optimizer, EngineOptimizer):
            load_state(optimizer, state)
        else:
            adopt(optimizer, state)
    if model._driver is not None:
        regroup.restore(model._driver, own["python"])
