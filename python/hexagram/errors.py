"""Failures: one class for each kind, with the rank that caused the failure as fields.

Catch :class:`Error` for all of them. The documentation of each class states what a program can still do afterwards; the
message has the cause and a remedy.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Any failure of hexagram.

    Fields that do not apply to a failure are ``None``.
    """

    #: Rank that caused it, in the world.
    rank: int | None = None
    #: Name of its host.
    host: str | None = None
    #: Process id of the rank on that host.
    pid: int | None = None
    #: Operation of this rank in which it occurred: ``all_reduce(12 × f32, mean)``.
    operation: str | None = None
    #: Number of that operation in its lane, from 0.
    sequence: int | None = None


class PeerFailed(Error):
    """Another rank died, left early or failed: ``rank``, ``host`` and ``pid`` identify it.

    Communicators of its world cannot be used any more; restart the job.
    """

    #: Cause of its failure: ``died (its connection closed)``.
    cause: str = ""


class MembershipChanged(Error):
    """The members of an elastic job change: ``rank``, ``host`` and ``pid`` identify the rank that died or left, if one did.

    Communicators of its world cannot be used any more. Continue with ``World.next``.
    """

    #: Number of the generation that ends.
    generation: int = 0
    #: Cause of the change: ``a process waits to join``.
    cause: str = ""


class DeadlineExceeded(Error, TimeoutError):
    """An operation did not end in time although no rank has failed. The communicator cannot be used any more."""

    #: Stragglers, the root cause first; empty if they are not known.
    stragglers: list[int] = []
    #: Waiting time of this rank, in seconds.
    seconds: float = 0.0


class Mismatch(Error):
    """Two ranks disagree about the next operation. The communicator cannot be used any more.

    ``operation`` is the call of this rank, ``theirs`` the call of ``rank``.
    """

    #: Operation of the other rank.
    theirs: str = ""


class NotFinite(Error):
    """A value of ``rank`` is NaN or infinite, and the codec refuses it."""

    #: Name of the tensor, if the caller has named it.
    tensor: str | None = None
    #: Index of the element.
    index: int = 0
    #: The value.
    value: float = float("nan")


class Poisoned(Error):
    """The communicator was used after an operation on it had failed."""


class Busy(Error):
    """Memory is in use by an operation that has not ended. Wait for that operation first."""


class UsageError(Error):
    """The call is invalid. Nothing was sent: correct the call and continue."""


class SetupError(Error):
    """Start-up failed: variables, rendezvous, launch. No world exists."""


class SystemFailure(Error):
    """An error of the operating system."""

    #: Error number of the system.
    errno: int | None = None
