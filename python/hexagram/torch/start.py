"""The rendezvous of the ranks of a process group, through the store that PyTorch has created for the group.

Every group of PyTorch is a separate world: PyTorch creates it only on its members, and a group that fails or times out
does not affect the others. Rank 0 listens at a free address and stores it, with a secret, in the store of the group.
TCPStore of PyTorch has no password: any process that can reach its port can read both, so protect the port.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hexagram import World


class KeyValueStore:
    """A PyTorch store with the interface of the native layer."""

    def __init__(self, store: Store):
        self.store = store

    def put(self, key: str, value: bytes) -> None:
        """Sets a key to a value, replacing an existing one."""
        self.store.set(key, value)

    def get(self, key: str, seconds: float) -> bytes:
        """Returns the value of a key, after waiting at most `seconds`."""
        self.store.wait([key], timedelta(seconds=max(seconds, 0.001)))
        return self.store.get(key)

    def remove(self, key: str) -> None:
        """Removes a key, if it exists."""
        self.store.delete_key(key)


def join(store: Store, rank: int, size: int, timeout: float, deadline: float | None = None) -> World:
    """Joins the ranks that meet through `store`, as `rank` of `size`.

    `timeout` is the maximum wait for the others now, `deadline` that for each later operation (300), in seconds. Raises
    `SetupError` or `SystemFailure` if a rank is missing.
    """
    return World.join_through(
        KeyValueStore(store),
        rank,
        size,
        timeout=timeout,
        deadline=deadline,
    )


#: Where the ranks meet that go by the name of mpi: the store, this rank and their number; and the default groups so far.
_meeting: tuple[Store, int, int] | None = None
_defaults = 0


def without_store(group: str, rank: int, size: int) -> tuple[Store, int, int]:
    """Returns a store, this rank and the size for a group without a store from PyTorch.

    PyTorch passes none for the backend name mpi, which starts its own ranks: those of the default group are -1 then.
    They are read from the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, with which all groups of this
    process meet.
    """
    global _meeting, _defaults
    if _meeting is None:
        _meeting = next(rendezvous("env://"))
    store, own, everyone = _meeting
    if rank < 0:
        _defaults += 1
        rank, size = own, everyone
    return PrefixStore(f"hexagram/{_defaults}/{group}", store), rank, size
