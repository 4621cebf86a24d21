"""Checkpoints of a training on one rank, which resume bit for bit: the engine's state, the model's, and the
optimizers'."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import string_at
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from hexagram._native import Engine

if TYPE_CHECKING:
    from .algorithm import Driver


def saved(engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None) -> dict[str, Any]:
    """Returns all that the next steps depend on: tensors, numbers and texts, as ``torch.save`` takes them."""
    facts, tensors = engine.save()
    return {
        "facts": facts,
        "tensors": {name: (kind, shape, as_tensor(data)) for name, (kind, shape, data) in tensors.items()},
        "model": {name: value.detach().clone() for name, value in module.state_dict().items()},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "python": None if driver is None else driver.saved(),
    }


def restored(
    state: dict[str, Any], engine: Engine, module: nn.Module, optimizers: Sequence[Optimizer], driver: Driver | None
) -> None:
    """Puts back what :func:`saved` returned.

    The model goes first, as parameters that the engine has are restored with all their bits by the engine.
    """
    module.load_state_dict(state["model"])
    for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(own)
    tensors = {name: (kind, shape, as_bytes(data)) for name, (kind, shape, data) in state["tensors"].items()}
    engine.load(state["facts"], tensors)
    if driver is not None:
        driver.restore(state["python"])


def as_tensor(data: bytes) -> torch.Tensor:
    """Returns bytes as a tensor of shape ``(len(data),)``."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(tensor: torch.Tensor) -> bytes:
    """Returns a tensor of bytes as bytes."""
    return string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
