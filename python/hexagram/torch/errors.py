"""Errors of a group, told in the numbers of the job and in PyTorch's words.

The native layer numbers the members of each group from 0. An error that reaches the program names ranks as
`torch.distributed.get_rank()` does, and its text says both where they differ. Where time was up, its text begins as that
of PyTorch's own backends, which programs look for.
"""

from __future__ import annotations

from collections.abc import Sequence

from hexagram import DeadlineExceeded, Error


def in_job(error: Error, ranks: Sequence[int]) -> Error:
    """Returns the error with its ranks, members' numbers in a group, as numbers in the job: `ranks[member]`.

    Once only: an error that comes by again stays as it is.
    """
    if getattr(error, "is_in_job", False):
        return error
    error.is_in_job = True
    culprit = error.rank
    if culprit is not None and culprit < len(ranks) and ranks[culprit] != culprit:
        error.rank = ranks[culprit]
        error.args = (f"{error} (rank {culprit} of this group is rank {ranks[culprit]} of the job)", *error.args[1:])
    if isinstance(error, DeadlineExceeded):
        error.stragglers = [ranks[member] for member in error.stragglers]
        error.args = (f"[hexagram] Timed out waiting: {error}", *error.args[1:])
    return error
