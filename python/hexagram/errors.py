"""What can go wrong: one class for each kind of failure, with the rank that is to blame as fields.

Catch :class:`Error` for all of them. What a program may still do after each is said in its class; the message says the
cause and what to do about it.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Any failure of hexagram.

    Fields that a failure does not have are ``None``.
    """

    #: Rank that is to blame, in the world.
    rank: int | None = None
    #: Name of its host.
    host: str | None = None
    #: Its process on that host.
    pid: int | None = None
    #: Operation during which it happened, as this rank called it: ``all_reduce(12 × f32, mean)``.
    operation: str | None = None
    #: Number of that operation in its lane, from 0.
    sequence: int | None = None


class PeerFailed(Error):
    """Another rank died, left early or gave up: ``rank``, ``host`` and ``pid`` say which.

    Its communicators cannot be used any more; restart the job.
    """

    #: What happened to it: ``died (its connection closed)``.
    cause: str = ""


class DeadlineExceeded(Error, TimeoutError):
    """An operation did not end in time although no rank has failed. The communicator cannot be used any more."""

    #: Ranks for which everyone waits in the end, the root cause first; empty if they are not known.
    stragglers: list[int] = []
    #: Time that this rank waited, in seconds.
    seconds: float = 0.0


class Mismatch(Error):
    """Two ranks disagree about which operation comes next. The communicator cannot be used any more.

    ``operation`` is what this rank calls, ``theirs`` what ``rank`` calls.
    """

    #: What the other rank calls.
    theirs: str = ""


class NotFinite(Error):
    """A codec that refuses NaN and infinity was to encode such a value, of ``rank``."""

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
    """The call cannot be carried out. Nothing was sent: correct the call and go on."""


class SetupError(Error):
    """Start-up failed: variables, rendezvous, launch. No world exists."""


class SystemFailure(Error):
    """The operating system refused something."""

    #: Number of the system's error.
    errno: int | None = None
