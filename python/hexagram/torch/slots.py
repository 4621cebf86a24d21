"""The state of an engine optimizer, in the form of PyTorch's `state_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import string_at
from typing import Any

import torch
from torch import Tensor

from hexagram import UsageError
from hexagram._native import Engine

#: Element types of the state, by their names in the engine.
TYPES = {"f32": torch.float32, "f64": torch.float64}


def slots(engine: Engine, numbers: Sequence[int], parameters: Sequence[Tensor]) -> dict[int, dict[str, Any]]:
    """Returns the state of each parameter, by its position in the groups: ``step``, and its state tensors."""
    steps, remembered = engine.optimizer_state()
    place = {number: at for at, number in enumerate(numbers)}
    state: dict[int, dict[str, Any]] = {at: {"step": torch.tensor(float(steps))} for at in range(len(numbers))}
    for slot, number, kind, data in remembered:
        flat = torch.frombuffer(bytearray(data), dtype=TYPES[kind]) if data else torch.empty(0, dtype=TYPES[kind])
        shape = parameters[number].shape
        state[place[number]][slot] = flat.view(shape) if flat.numel() == shape.numel() else flat
    return state


def load_slots(
    engine: Engine, numbers: Sequence[int], parameters: Sequence[Tensor], state_dict: Any, spelled: str
) -> None:
    """Restores the result of :func:`slots`; raises `UsageError` for another optimizer, without changing anything."""
    remedy = (
        f"load what state_dict() of {spelled} returned, for the same groups, or train with that optimizer of PyTorch"
    )
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise UsageError(
            f"a {type(state_dict).__name__} without state and param_groups is not an optimizer's state; {remedy}"
        )
    own, state = slots(engine, numbers, parameters), state_dict["state"]
    sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    if sum(sizes) != len(numbers):
        raise UsageError(f"the state is of {sum(sizes)} parameters, and the optimizer has {len(numbers)}; {remedy}")
    if own.keys() != state.keys():
        raise UsageError(f"the state is of {len(state)} of {len(own)} parameters; {remedy}")
    for at, remembered in own.items():
        if strange := sorted(remembered.keys() ^ state[at].keys()):
            raise UsageError(f"the state of parameter {at} differs from {spelled} in `{strange[0]}`; {remedy}")
        for name, value in remembered.items():
            if torch.as_tensor(state[at][name]).shape != value.shape:
                raise UsageError(f"`{name}` of parameter {at} is of another shape than {list(value.shape)}; {remedy}")
    steps = {int(remembered["step"]) for remembered in state.values()}
    if len(steps) != 1:
        raise UsageError(f"the parameters of the state have made different numbers of steps; {remedy}")
    _, remembered = engine.optimizer_state()
    place = {number: at for at, number in enumerate(numbers)}
    given = [
        (slot, number, kind, bytes_of(state[place[number]][slot].to(TYPES[kind])))
        for slot, number, kind, _ in remembered
    ]
    engine.set_optimizer_state(steps.pop(), given)


def bytes_of(tensor: Tensor) -> bytes:
    """Returns the bytes of the elements of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    return string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
