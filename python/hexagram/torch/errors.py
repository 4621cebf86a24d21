"""Errors of a group, with ranks of the job and in the words of PyTorch, and recovered where PyTorch lost them.

The native layer numbers the members of each group from 0. An error that reaches the program names ranks as
`torch.distributed.get_rank()` returns them, and its text has both numbers if they differ. The text of a timeout begins
like that of the PyTorch backends, because programs search for it.

Waits in Python, and a backward pass under DDP, raise the exception itself. If the C++ code of PyTorch waits through a
future, it raises a `RuntimeError` with the text; `original` returns the exception behind it:

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

#: The last errors that reached the program, without their tracebacks, which would keep tensors alive.
_told: deque[tuple[str, Error]] = deque(maxlen=64)


class StillUnderWay(Error, TimeoutError):
    """A `work.wait(timeout)` has timed out. The operation continues, and may be waited for again."""


def in_job(error: Error, ranks: Sequence[int]) -> Error:
    """Returns the error with its ranks converted from members of a group to ranks of the job: `ranks[member]`.

    Only once: an error that passes again does not change.
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
    """Returns the error of a group that could not be created; for a missing rank, with its members and the rule."""
    if isinstance(error, SystemFailure) and dist.is_initialized():  # Otherwise it concerns all ranks.
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
    """Returns the hexagram error that `error` is, was raised from, or has the text of; None if there is none.

    The C++ code of PyTorch turns a failure behind a future into a `RuntimeError` with its text. The
    text of the last 64 errors is known.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Error):
            return seen
        seen = seen.__cause__
    text = str(error)
    return next((kept for told, kept in reversed(_told) if told in text), None)
