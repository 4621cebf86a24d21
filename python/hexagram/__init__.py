"""Communication for distributed SGD: every rank, any transport, errors instead of hangs.

Start a program as several ranks with ``hexagram run -n 4 -- python program.py`` (or torchrun, mpirun, srun), and join
the others::

    import hexagram, numpy

    with hexagram.init() as world:
        gradient = numpy.full(3, float(world.rank), "float32")
        world.communicator.all_reduce(gradient, "mean")
        print(gradient)
"""

from __future__ import annotations

import atexit
import sys

from hexagram import _native, asynchronous
from hexagram._native import (
    Communicator,
    Encoding,
    Hierarchy,
    LinearEncoding,
    Memory,
    Span,
    Work,
    World,
    __version__,
    joined,
    make_stream_wait,
    restarts,
)
from hexagram.elastic import as_member
from hexagram.errors import (
    Busy,
    DeadlineExceeded,
    Error,
    MembershipChanged,
    Mismatch,
    NotFinite,
    PeerFailed,
    Poisoned,
    SetupError,
    SystemFailure,
    UsageError,
)
from hexagram.sampler import (
    CostBalancedSampler,
    DistributedSampler,
    DistributedWeightedRandomSampler,
    ElasticSampler,
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)
from hexagram.tools import bench, check

init = World.join

__all__ = [
    "Busy",
    "Communicator",
    "CostBalancedSampler",
    "DeadlineExceeded",
    "DistributedSampler",
    "DistributedWeightedRandomSampler",
    "ElasticSampler",
    "Encoding",
    "Error",
    "Hierarchy",
    "LinearEncoding",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "MembershipChanged",
    "Memory",
    "Mismatch",
    "NotFinite",
    "PeerFailed",
    "Poisoned",
    "SetupError",
    "Span",
    "SystemFailure",
    "UsageError",
    "Work",
    "World",
    "__version__",
    "as_member",
    "asynchronous",
    "bench",
    "check",
    "init",
    "joined",
    "make_stream_wait",
    "restarts",
]


@atexit.register
def _leave() -> None:
    """Leaves all worlds before the interpreter ends, and notifies the others if an exception ended this program."""
    raised = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    _native.shut_down(None if raised is None else f"raised {type(raised).__name__}: {raised}".removesuffix(": "))
