"""Which world a model trains in, where the program names none."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

import hexagram
from hexagram import World

_joined: World | None = None


def world_of(world: World | None = None) -> World:
    """Returns the given world, or that of this process.

    That is the world of the default process group, if ``init_process_group("hexagram")`` made it; one that meets through
    the store of a process group of another backend; or else ``hexagram.init()``, by the variables of the launcher. A
    collective call the first time.
    """
    global _joined
    if world is not None:
        return world
    if not dist.is_initialized():
        _joined = _joined or hexagram.init()
        return _joined
    group = dist.group.WORLD
    if (own := getattr(group, "world", None)) is not None:
        return own
    if _joined is None:
        from .start import join

        store = PrefixStore("hexagram/engine", _get_default_store())
        _joined = join(store, dist.get_rank(), dist.get_world_size(), 60.0)
    return _joined
