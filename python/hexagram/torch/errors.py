"""Errors of a group, told in the numbers of the job and in PyTorch's words, and found again where PyTorch lost them.

The native layer numbers the members of each group from 0. An error that reaches the program names ranks as
`torch.distributed.get_rank()` does, and its text says both where they differ. Where time was up, its text begins as that
of PyTorch's own backends, which programs look for.

What waits in Python, and a backward pass under DDP, raises the exception itself. What PyTorch's C++ waits for through a
future is a `RuntimeError` with its text; `original` returns the exception behind it:

    from hexagram.torch.errors import original

    try:
        dist.all_reduce(tensor, async_op=True).get_future().wait()
    except RuntimeError as error:
        failure = original(error)
        if isinstance(failure, hexagram.PeerFailed):
            print("restart without rank", failure.rank)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch.distributed as dist

from hexagram import DeadlineExceeded, Error, SystemFailure

#: The last errors that reached the program, without their tracebacks, which would keep tensors.
_told: deque[tuple[str, Error]] = deque(maxlen=64)


class StillUnderWay(Error, TimeoutError):
    """The time of one `work.wait(timeout)` was up. The operation goes on, and may be waited for again."""


def in_job(error: Error, ranks: Sequence[int]) -> Error:
    """Returns the error with its ranks, members' numbers in a group, as numbers in the job: `ranks[member]`.

    Once only: an error that comes by again stays as it is.
    """
    if isinstance(error, StillUnderWay) or getattr(error, "is_in_job", False):
        return error
    error.is_in_job = True
    culprit = error.rank
    if culprit is not None and culprit < len(ranks) and ranks[culprit] != culprit:
        error.rank = ranks[culprit]
        error.args = (f"{error} (rank {culprit} of this group is rank {ranks[culprit]} of the job)", *error.args[1:])
    if isinstance(error, DeadlineExceeded):
        error.stragglers = [ranks[member] for member in error.stragglers]
        error.args = (f"[hexagram] Timed out waiting: {error}", *error.args[1:])
    keep(error)
    return error


def of_group(error: Error, ranks: Sequence[int]) -> Error:
    """Returns the error of a group that could not be made: where a rank did not come, with its members and PyTorch's rule."""
    if isinstance(error, SystemFailure) and dist.is_initialized():  # Else it is that of all ranks.
        numbers = ", ".join(map(str, ranks))
        error.args = (
            f"{error} (this group's ranks are ranks {numbers} of the job; PyTorch names a group by how many a rank has made "
            "before, so all members have to call new_group as often as each other, also with use_local_synchronization)",
            *error.args[1:],
        )
    return error


def keep(error: Error) -> None:
    """Keeps a copy of an error for `original`."""
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    _told.append((str(error), copy))


def original(error: BaseException) -> Error | None:
    """Returns the error of hexagram that `error` is, was raised from, or has the text of; None if there is none.

    PyTorch's C++ turns what fails behind a future into a `RuntimeError` that has its text. The last 64 errors are found.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Error):
            return seen
        seen = seen.__cause__
    text = str(error)
    return next((kept for told, kept in reversed(_told) if told in text), None)
