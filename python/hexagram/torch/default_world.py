"""The ranks that train a model: those of a world, of a hexagram group, or of a PyTorch process group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

import hexagram
from hexagram import Communicator, UsageError, World

from .start import join

#: Ranks of a model, a hook or a layer.
Ranks = dist.ProcessGroup | Communicator | World

#: Worlds whose ranks met through the store of PyTorch, by the name of their process group.
_met: dict[str, World] = {}


def communicator_of(process_group: Ranks | None = None) -> Communicator:
    """Returns the communicator of a process group, which may also be a world or a communicator of hexagram.

    Default: all ranks. :func:`world_of` describes the world of a process group. Raises `UsageError` if this rank is not
    in the group.
    """
    if isinstance(process_group, Communicator):
        return process_group
    if isinstance(process_group, World):
        return process_group.communicator
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise UsageError(f"{process_group!r} is no group of this rank; create the model only on ranks of its group")
    return world_of(process_group).communicator


def world_of(group: dist.ProcessGroup | None = None) -> World:
    """Returns the world of the ranks of a process group, by default of the default group.

    It is the world of the group itself, if its backend is hexagram; for all ranks also the one that this process has
    joined, as returned by ``hexagram.joined()``. Otherwise the ranks join a new one: through the PyTorch store, or
    without a process group by the variables of the launcher. A collective call of these ranks then.
    """
    if group is None and not dist.is_initialized():
        return hexagram.joined() or hexagram.init()
    group = group or dist.group.WORLD
    if (own := _world_within(group)) is not None:
        return own
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    everyone = group is dist.group.WORLD
    for there in (hexagram.joined() if everyone else None, _met.get(group.group_name)):
        if there is not None and not there.is_closed and (there.rank, there.size) == (rank, size):
            return there
    store = PrefixStore(f"hexagram/engine/{group.group_name}", _get_default_store())
    _met[group.group_name] = join(store, rank, size, timeout=60.0)
    return _met[group.group_name]


def _world_within(group: dist.ProcessGroup) -> World | None:
    """Returns the world in which a group, or its CPU backend, runs its operations."""
    if (own := getattr(group, "world", None)) is not None:
        return own
    try:
        return getattr(group._get_backend(torch.device("cpu")), "world", None)
    except RuntimeError:
        return None
