"""How the ranks of a process group meet: through the store that PyTorch has made for the group.

Every group of PyTorch is a world of its own: PyTorch tells only its members of it, and a group that fails or times out
leaves the others as they are. Rank 0 listens at a free address and leaves it, and a secret, in the group's store.
PyTorch's TCPStore has no password: whoever reaches its port can read both, so keep the port from strangers.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from hexagram import World


class KeyValueStore:
    """A store of PyTorch as the native layer asks for one."""

    def __init__(self, store: Store):
        self.store = store

    def put(self, key: str, value: bytes) -> None:
        """Sets a key to a value, in place of the one that it has."""
        self.store.set(key, value)

    def get(self, key: str, seconds: float) -> bytes:
        """Returns the value of a key, for which it waits `seconds` at most."""
        self.store.wait([key], timedelta(seconds=max(seconds, 0.001)))
        return self.store.get(key)

    def remove(self, key: str) -> None:
        """Removes a key, if it is there."""
        self.store.delete_key(key)


def join(store: Store, rank: int, size: int, timeout: float, deadline: float | None = None) -> World:
    """Joins the ranks that meet through `store`, as `rank` of `size`.

    `timeout` is the longest wait for the others now, `deadline` that for each operation later (300), in seconds. Raises
    `SetupError` or `SystemFailure` if a rank does not come.
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
    """Returns a store, this rank and the size for a group to which PyTorch gives no store.

    It gives none to MPI, which brings its own ranks: those of the default group are -1 then. They are read from the
    variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, at which all groups of this process meet.
    """
    global _meeting, _defaults
    if _meeting is None:
        _meeting = next(rendezvous("env://"))
    store, own, everyone = _meeting
    if rank < 0:
        _defaults += 1
        rank, size = own, everyone
    return PrefixStore(f"hexagram/{_defaults}/{group}", store), rank, size
