"""Which world a model trains in, where the program names none."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

import hexagram
from hexagram import World

from .start import join

#: World whose ranks met through the store of the process group.
_met: World | None = None


def world_of(world: World | None = None) -> World:
    """Returns the given world, or that of this process.

    That is the world of the default process group, if ``init_process_group("hexagram")`` made it; or the one that this
    process has joined, as ``hexagram.joined()`` returns it, if its ranks are those of the process group, where there is
    one. If there is neither, it joins one: through the store of the process group, or by the variables of the launcher. A
    collective call then.
    """
    global _met
    if world is not None:
        return world
    if not dist.is_initialized():
        return hexagram.joined() or hexagram.init()
    if (own := getattr(dist.group.WORLD, "world", None)) is not None:
        return own
    rank, size = dist.get_rank(), dist.get_world_size()
    for there in (hexagram.joined(), _met):
        if there is not None and not there.is_closed and (there.rank, there.size) == (rank, size):
            return there
    _met = join(PrefixStore("hexagram/engine", _get_default_store()), rank, size, timeout=60.0)
    return _met
