"""Initial state of PyTorch optimizers: all ranks start with that of rank 0, as with parameters and buffers. If ranks
run out of data at different times, they end with the state of one that trained to the last step.

An optimizer that has stepped before, or was restored only on rank 0, would make different steps there. An outline of
the state of rank 0 is sent first: its structure, with empty tensors. The tensors follow.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hexagram import Communicator, UsageError

from .tensors import is_reachable, span

#: Replaces the tensors of a list by those of one rank, the root. A collective call.
Broadcast = Callable[[Sequence[Tensor]], None]


def share_optimizers(optimizers: Sequence[Optimizer], group: Communicator, broadcast: Broadcast, root: int = 0) -> None:
    """Gives the optimizers of all ranks the state and the options of the root, bit for bit. A collective call.

    Options that are not numbers, texts or tensors, such as functions, stay local to each rank. Raises `UsageError` on
    all ranks if their optimizers differ in kind or groups from those of the root, or have a state that cannot be sent.

    >>> share_optimizers([torch.optim.Adam(net.parameters())], world.communicator, engine.broadcast_state)  # doctest: +SKIP
    """
    own = [outline(optimizer) for optimizer in optimizers]
    sent = outlines_of_root(own if group.rank == root else None, broadcast)
    agree(sent, own, group, root)
    for optimizer, one in zip(optimizers, sent, strict=True):
        if group.rank == root:
            broadcast(tensors_in(plain(optimizer.state_dict())))
            continue
        state = with_tensors(one["state"], lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        broadcast(tensors_in(state))
        adopt(optimizer, state)


def outline(optimizer: Optimizer) -> dict[str, Any]:
    """Returns the kind of an optimizer, the sizes of its groups, and its state with empty tensors.

    ``error`` is the reason if a state cannot be sent.
    """
    told: dict[str, Any] = {
        "kind": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "groups": [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups],
    }
    state = plain(optimizer.state_dict())
    elsewhere = [str(one.device) for one in tensors_in(state) if not is_reachable(one)]
    if elsewhere or not is_plain(state):
        told["error"] = f"tensors on {elsewhere[0]}" if elsewhere else "more than numbers, texts and tensors"
        return told
    return told | {"state": with_tensors(state, lambda tensor: tensor.to("meta"))}


def outlines_of_root(own: list[dict[str, Any]] | None, broadcast: Broadcast) -> list[dict[str, Any]]:
    """Returns the outlines of the root; other ranks pass None."""
    file = io.BytesIO()
    if own is not None:
        torch.save(own, file)
    length = torch.tensor([len(file.getvalue())])
    broadcast([length])
    content = bytearray(file.getvalue()) if own is not None else bytearray(int(length.item()))
    # Its own memory, as a tensor: without numpy, which PyTorch does not require.
    broadcast([torch.frombuffer(content, dtype=torch.uint8)])
    return own if own is not None else torch.load(io.BytesIO(content), weights_only=True)


def agree(sent: list[dict[str, Any]], own: list[dict[str, Any]], group: Communicator, root: int) -> None:
    """Raises `UsageError` on all ranks unless the state of the root fits on all of them."""
    if errors := [f"{one['kind']} has a state of {one['error']}" for one in sent if "error" in one]:
        raise UsageError(
            f"rank {root}'s optimizer cannot be that of all ranks: {errors[0]}; recreate it, or give it a plain state"
        )
    alike = [(one["kind"], one["groups"]) for one in sent] == [(one["kind"], one["groups"]) for one in own]
    other = torch.tensor([-1 if alike else group.rank])
    group.all_reduce(span(other), "max")
    if (rank := int(other.item())) >= 0:
        theirs = f" ({kinds(own)}, and rank {root} has {kinds(sent)})" if rank == group.rank else ""
        raise UsageError(
            f"ranks train with different optimizers: rank {rank} has another optimizer or other parameter groups than "
            f"rank {root}{theirs}; give all ranks the same"
        )


def kinds(outlines: Sequence[dict[str, Any]]) -> str:
    """Returns optimizers as text for a message."""
    return ", ".join(f"{one['kind'].rsplit('.', 1)[-1]} of {sum(map(len, one['groups']))}" for one in outlines)


def adopt(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Gives an optimizer the state of the root; options that were not sent do not change."""
    groups = zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True)
    optimizer.load_state_dict(state | {"param_groups": [own | sent for own, sent in groups]})


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of an optimizer without options that cannot be sent."""
    groups = [{name: value for name, value in group.items() if is_plain(value)} for group in state["param_groups"]]
    return state | {"param_groups": groups}


def is_plain(value: Any) -> bool:
    """Returns whether a value consists only of numbers, texts and dense tensors, in dicts, lists and tuples.

    Subclasses of these have contents that are not sent.
    """
    if type(value) in (dict, OrderedDict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple, torch.Size):
        return all(map(is_plain, value))
    if isinstance(value, Tensor):
        return value.layout is torch.strided and not value.is_quantized
    return value is None or type(value) in (bool, int, float, str)


def with_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Returns a plain value in which each tensor is replaced by the result of `function`."""
    if isinstance(value, dict):
        return type(value)((name, with_tensors(inner, function)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(inner, function) for inner in value)
    return function(value) if isinstance(value, Tensor) else value


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors of a plain value, in order."""
    found: list[Tensor] = []
    with_tensors(value, lambda tensor: found.append(tensor.detach()) or tensor)
    return found
