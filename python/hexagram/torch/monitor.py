"""`monitored_barrier`: a barrier that names the missing ranks.

It uses the store of the group, not the group itself. So it also works while some ranks are stuck in a collective that
others do not call, which is its purpose; and a failed barrier leaves the group intact.
"""

from __future__ import annotations

import time
from datetime import timedelta

from torch.distributed import Store


class MonitoredBarrier:
    """The barriers of one group: each has its own keys in the store."""

    def __init__(self, store: Store, rank: int, size: int):
        self.store = store
        self.rank = rank
        self.size = size
        self.count = 0

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Waits for all ranks, at most `seconds`.

        Raises `RuntimeError`: on rank 0 with the first missing rank, or with all of them for `wait_all_ranks`; on the
        others with the reason of rank 0.
        """
        prefix = f"hexagram/monitored_barrier/{self.count}"
        self.count += 1
        if self.rank == 0:
            self.lead(prefix, seconds, wait_all_ranks)
        else:
            self.follow(prefix, seconds)

    def lead(self, prefix: str, seconds: float, wait_all_ranks: bool) -> None:
        """Waits for each rank in turn, and sends the result to all of them."""
        start = time.monotonic()
        missing: list[int] = []
        for rank in range(1, self.size):
            left = seconds - (time.monotonic() - start)
            if left <= 0 and not wait_all_ranks:
                self.fail(prefix, f"Rank 0 timed out in monitoredBarrier after {seconds * 1e3:.0f} ms.")
            if not self.has(f"{prefix}/{rank}", left):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            which = f"{'Ranks' if wait_all_ranks else 'Rank'} {', '.join(map(str, missing))}"
            self.fail(prefix, f"{which} failed to pass monitoredBarrier in {seconds * 1e3:.0f} ms")
        self.store.set(f"{prefix}/end", "")

    def fail(self, prefix: str, reason: str) -> None:
        """Sends the reason of the failure to the others, and raises it here."""
        self.store.set(f"{prefix}/end", reason)
        raise RuntimeError(f"[hexagram] {reason}")

    def follow(self, prefix: str, seconds: float) -> None:
        """Reports to rank 0, and waits for its result."""
        self.store.set(f"{prefix}/{self.rank}", "")
        came = f"[hexagram] Rank {self.rank} successfully reached monitoredBarrier, but received errors"
        # Rank 0 may have arrived just before its timeout, and then waits for the same time again.
        if not self.has(f"{prefix}/end", 2 * seconds):
            raise RuntimeError(f"{came} while waiting for send/recv from rank 0: no answer in {2 * seconds:.1f} s")
        if reason := self.store.get(f"{prefix}/end").decode():
            raise RuntimeError(f"{came} while waiting for send/recv from rank 0: {reason}")

    def has(self, key: str, seconds: float) -> bool:
        """Returns whether the store has a key, after waiting at most `seconds`."""
        if seconds <= 0:
            return self.store.check([key])
        try:
            self.store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:  # DistStoreError of the store: no value in time.
            return False
        return True
