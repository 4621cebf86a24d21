"""Checkpoints of a training on one rank, which resume bit for bit: the state of engine, model and optimizers.

An incomplete checkpoint, or one of another training, changes nothing: the checkpoint is checked first, and the engine
continues only if those of all ranks fit.
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

#: A state that the native library has saved: facts by name, tensors by name (type, shape and bytes), and the checksum of both.
Saved = tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]], int]

#: Parts of a checkpoint, and their types.
PARTS = {
    "facts": dict,
    "tensors": dict,
    "checksum": int,
    "model": dict,
    "optimizers": list,
    "python": (dict, type(None)),
}


def saved(engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None) -> dict[str, Any]:
    """Returns the state of engine, model and optimizers: tensors, numbers and texts, suitable for ``torch.save``."""
    return as_dict(engine.save()) | {
        "model": {name: copied(value) for name, value in module.state_dict().items()},
        "optimizers": [deepcopy(state_of(optimizer)) for optimizer in optimizers],
        "python": None if driver is None else driver.saved(),
    }


def restored(
    state: dict[str, Any], engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None
) -> int:
    """Restores the result of :func:`saved`; returns the generation of the engine buckets.

    The engine is restored first, as it refuses on all ranks a state that one of them cannot load. It restores the
    parameters that it owns with all their bits, so they are copied to the model once more afterwards.
    """
    wrong = mistake(state, module, optimizers, driver)
    generation = engine.load(wrong or as_saved(state))
    module.load_state_dict(state["model"])
    for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
        # Otherwise it would continue with these very tensors.
        load_state(optimizer, deepcopy(own))
    if driver is not None:
        driver.restore(state["python"])
    return generation


def as_dict(saved: Saved) -> dict[str, Any]:
    """Returns a state that the native library has saved, in a form for ``torch.save``."""
    facts, tensors, checksum = saved
    content = {name: (kind, shape, as_tensor(data)) for name, (kind, shape, data) in tensors.items()}
    return {"facts": facts, "tensors": content, "checksum": checksum}


def as_saved(state: dict[str, Any]) -> Saved:
    """Returns the native form of the result of :func:`as_dict`, which may have further parts."""
    return state["facts"], with_bytes(state["tensors"]), state["checksum"]


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Returns the state of an optimizer; only the groups of an engine optimizer, as the engine saves its state."""
    return optimizer.groups_dict() if isinstance(optimizer, EngineOptimizer) else optimizer.state_dict()


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restores the result of :func:`state_of`."""
    optimizer.load_groups(state) if isinstance(optimizer, EngineOptimizer) else optimizer.load_state_dict(state)


def mistake(state: Any, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None) -> str | None:
    """Returns why a checkpoint cannot be restored, as a clause; None if it can, as far as the engine allows."""
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
    """Returns the error in the form of the engine part, whose contents the engine checks."""
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
    """Returns the difference between the saved state of a model and the model: extra or missing tensors, or shapes."""
    own = module.state_dict()
    if lacking := sorted(own.keys() - saved.keys()):
        return f"the checkpoint is of a model without `{lacking[0]}`"
    if more := sorted(saved.keys() - own.keys()):
        return f"the checkpoint is of a model with `{more[0]}`, which this one does not have"
    for name, value in own.items():
        if isinstance(value, Tensor) and outline(saved[name]) != outline(value):
            return f"the checkpoint has `{name}` as {outline(saved[name])}, and this model as {outline(value)}"
    return None


def mistake_in_optimizers(saved: list[Any], optimizers: Sequence[Optimizer]) -> str | None:
    """Returns the difference between the saved optimizers and the present ones."""
    try:
        sizes = [[len(group["params"]) for group in one["param_groups"]] for one in saved]
    except (TypeError, KeyError):
        return "the checkpoint's optimizers are not what was saved"
    own = [[len(group["params"]) for group in one.param_groups] for one in optimizers]
    if sizes != own:
        return f"the checkpoint has optimizers of {sizes} parameters by group, and here they are of {own}"
    return None


def mistake_in_driver(saved: dict[str, Any] | None, driver: Driver | None) -> str | None:
    """Returns the error in the part of an algorithm in Python."""
    if (saved is None) != (driver is None):
        here, there = ("Rust", "Python") if driver is None else ("Python", "Rust")
        return f"the checkpoint is of an algorithm in {there}, and this one is in {here}"
    if saved is not None and not {"step", "states"} <= saved.keys():
        return "the checkpoint has no states of the algorithm in Python"
    return None


def outline(value: Any) -> str:
    """Returns element type and shape of a tensor, for messages."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def copied(value: Any) -> Any:
    """Returns a copy of a value in the state of a model."""
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def with_bytes(tensors: dict[str, Any]) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the tensors of a checkpoint in the form for the engine."""
    return {name: (kind, list(shape), as_bytes(data)) for name, (kind, shape, data) in tensors.items()}


def as_tensor(data: bytes) -> torch.Tensor:
    """Returns bytes as a tensor of shape ``(len(data),)``."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(tensor: torch.Tensor) -> bytes:
    """Returns a tensor of bytes as bytes."""
    tensor = tensor.cpu()
    return string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
