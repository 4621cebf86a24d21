"""Checkpoints of a training on one rank, which resume bit for bit: the engine's state, the model's, and the
optimizers'.

A checkpoint that is not whole, or of another training, changes nothing: all of it is looked at first, and the engine lets
all ranks go on only if every rank's fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from ctypes import string_at
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexagram._native import Engine

from .optimizer import EngineOptimizer

if TYPE_CHECKING:
    from .algorithm import Driver

#: What a checkpoint consists of, and the types of its parts.
PARTS = {
    "facts": dict,
    "tensors": dict,
    "checksum": int,
    "model": dict,
    "optimizers": list,
    "python": (dict, type(None)),
}


def saved(engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None) -> dict[str, Any]:
    """Returns the state of engine, model and optimizers: tensors, numbers and texts, as ``torch.save`` takes them."""
    facts, tensors, checksum = engine.save()
    return {
        "facts": facts,
        "tensors": {name: (kind, shape, as_tensor(data)) for name, (kind, shape, data) in tensors.items()},
        "checksum": checksum,
        "model": {name: copied(value) for name, value in module.state_dict().items()},
        "optimizers": [deepcopy(state_of(optimizer)) for optimizer in optimizers],
        "python": None if driver is None else driver.saved(),
    }


def restored(
    state: dict[str, Any], engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None
) -> int:
    """Puts back what :func:`saved` returned; returns the generation of the engine's buckets.

    The engine goes first, as it refuses on all ranks what one of them cannot load. Parameters that the engine has, it
    restores with all their bits, so that they are told to the model once more afterwards.
    """
    wrong = mistake(state, module, optimizers, driver)
    generation = engine.load(wrong or (state["facts"], with_bytes(state["tensors"]), state["checksum"]))
    module.load_state_dict(state["model"])
    for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
        # It would go on with these very tensors.
        load_state(optimizer, deepcopy(own))
    if driver is not None:
        driver.restore(state["python"])
    return generation


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Returns an optimizer's state; of the engine's only the groups, as its state is the engine's."""
    return optimizer.groups_dict() if isinstance(optimizer, EngineOptimizer) else optimizer.state_dict()


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Puts back what :func:`state_of` returned."""
    optimizer.load_groups(state) if isinstance(optimizer, EngineOptimizer) else optimizer.load_state_dict(state)


def mistake(state: Any, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None) -> str | None:
    """Returns what keeps a checkpoint from being put back, as a clause; None if nothing does, but for the engine."""
    if not isinstance(state, dict):
        return f"the checkpoint is a {type(state).__name__}"
    for part, kind in PARTS.items():
        if part not in state:
            return f"the checkpoint has no `{part}`"
        if not isinstance(state[part], kind):
            return f"`{part}` of the checkpoint is a {type(state[part]).__name__}"
    return (
        mistake_in_tensors(state)
        or mistake_in_model(state["model"], module)
        or mistake_in_optimizers(state["optimizers"], optimizers)
        or mistake_in_driver(state["python"], driver)
    )


def mistake_in_tensors(state: dict[str, Any]) -> str | None:
    """Returns what is wrong with the form of the engine's part, whose contents the engine looks at."""
    for name, fact in state["facts"].items():
        if not isinstance(name, str) or not isinstance(fact, str):
            return f"the checkpoint's fact `{name}` is not a text"
    for name, tensor in state["tensors"].items():
        match tensor:
            case (str(), list() | tuple(), Tensor() as data) if data.dtype is torch.uint8 and data.is_contiguous():
                continue
            case _:
                return f"the checkpoint's tensor `{name}` is not one that was saved"
    return None


def mistake_in_model(saved: dict[str, Any], module: nn.Module) -> str | None:
    """Returns what a model's state has, lacks or has in another shape than the model."""
    own = module.state_dict()
    if lacking := sorted(own.keys() - saved.keys()):
        return f"the checkpoint is of a model without `{lacking[0]}`"
    if more := sorted(saved.keys() - own.keys()):
        return f"the checkpoint is of a model with `{more[0]}`, which this one has not"
    for name, value in own.items():
        if isinstance(value, Tensor) and outline(saved[name]) != outline(value):
            return f"the checkpoint has `{name}` as {outline(saved[name])}, and this model as {outline(value)}"
    return None


def mistake_in_optimizers(saved: list[Any], optimizers: Sequence[Optimizer]) -> str | None:
    """Returns what tells the saved optimizers from those that are there."""
    try:
        sizes = [[len(group["params"]) for group in one["param_groups"]] for one in saved]
    except (TypeError, KeyError):
        return "the checkpoint's optimizers are not what was saved"
    own = [[len(group["params"]) for group in one.param_groups] for one in optimizers]
    if sizes != own:
        return f"the checkpoint has optimizers of {sizes} parameters by group, and here they are of {own}"
    return None


def mistake_in_driver(saved: dict[str, Any] | None, driver: Driver | None) -> str | None:
    """Returns what is wrong with the part of an algorithm in Python."""
    if (saved is None) != (driver is None):
        here, there = ("Rust", "Python") if driver is None else ("Python", "Rust")
        return f"the checkpoint is of an algorithm in {there}, and this one is in {here}"
    if saved is not None and not {"step", "states"} <= saved.keys():
        return "the checkpoint has no states of the algorithm in Python"
    return None


def outline(value: Any) -> str:
    """Returns element type and shape of a tensor, as a message has them."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def copied(value: Any) -> Any:
    """Returns a copy of a value of a model's state."""
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def with_bytes(tensors: dict[str, Any]) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the tensors of a checkpoint as the engine takes them."""
    return {name: (kind, list(shape), as_bytes(data)) for name, (kind, shape, data) in tensors.items()}


def as_tensor(data: bytes) -> torch.Tensor:
    """Returns bytes as a tensor of shape ``(len(data),)``."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(tensor: torch.Tensor) -> bytes:
    """Returns a tensor of bytes as bytes."""
    return string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
