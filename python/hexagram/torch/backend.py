"""Registers hexagram with torch.distributed, under its own names and optionally under one that scripts already use.

    import hexagram.torch
    torch.distributed.init_process_group("hexagram")

With PyTorch 2.14 and newer the import is not needed, as the package declares its backend in an entry point. With
`HEXAGRAM_AS=gloo` a script that names `gloo` runs over hexagram.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import start
from .process_group import HexagramBackend, HexagramProcessGroup

#: Name of the backend that is a whole process group.
GROUP = "hexagram"
#: Name of the backend for single devices in a group of several.
DEVICE = "hexagram_device"
#: Variable that names another backend to replace.
ALIAS = "HEXAGRAM_AS"


def register() -> None:
    """Registers the backends; called by PyTorch's entry point, and by the import of `hexagram.torch`."""
    add(GROUP, creator(GROUP, HexagramProcessGroup))
    add(DEVICE, creator(GROUP, HexagramBackend))
    if alias := os.environ.get(ALIAS, "").strip():
        if not is_replaceable(alias):
            text = f"PyTorch {torch.__version__} does not allow a replacement of {alias}; set {ALIAS}=gloo, or use a newer one"
            warnings.warn(text, stacklevel=2)
        add(alias, creator(alias, HexagramProcessGroup))


def is_replaceable(name: str) -> bool:
    """Returns whether PyTorch looks a name up among registered backends. Old versions do not for mpi and nccl."""
    creates = {dist.Backend.MPI: "ProcessGroupMPI.create", dist.Backend.NCCL: "ProcessGroupNCCL("}.get(name, "\0")
    try:
        return creates not in inspect.getsource(distributed_c10d._new_process_group_helper)
    except (AttributeError, OSError):
        return True


def add(name: str, create: Callable) -> None:
    """Registers one backend for tensors on the CPU and on GPUs."""
    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])
    # PyTorch 2.15 and newer record each group in the flight recorder, which is not possible for a group in Python.
    getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(name)


def creator(name: str, kind: Callable) -> Callable:
    """Returns the function that PyTorch calls to create a group or backend of a class, under a name."""

    def create(options: Any, backend_options: Any) -> dist.ProcessGroup | Any:
        store, rank, size = options.store, options.group_rank, options.group_size
        if name == dist.Backend.MPI:
            store, rank, size = start.without_store(options.group_id, rank, size)
        ranks = options.global_ranks_in_group or range(size)
        return kind(name, store, rank, ranks, options.timeout)

    return create
