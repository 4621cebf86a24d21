"""hexagram for PyTorch.

Importing this registers the backend `hexagram` with torch.distributed:

    import torch.distributed as dist
    import hexagram.torch

    dist.init_process_group("hexagram")

It also provides three ways to train with algorithms of hexagram: `hook` for DDP, `DataParallel` instead of DDP, and
`Algorithm` for your own.
"""

from .algorithm import Algorithm
from .backend import register
from .data_parallel import DataParallel
from .hooks import hook
from .snapshots import Snapshots
from .sync_batch_norm import SyncBatchNorm, sync_batch_norm

register()

__all__ = ["Algorithm", "DataParallel", "Snapshots", "SyncBatchNorm", "hook", "register", "sync_batch_norm"]
