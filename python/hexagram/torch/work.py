"""What a caller holds of an operation: `Work`, in the two forms that PyTorch needs.

- `Finished`: a synchronous call has ended when it returns, so this holds its result only.
- `Pending`: anything else, in flight until it is waited for or found to have ended.

The native layer keeps the memory of an operation until it ends, whoever drops the Work before.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from hexagram import Error, _native

from .errors import StillUnderWay, in_job
from .uncompiled import uncompiled

NO_TIME = timedelta(0)
#: Works that the program dropped without a wait. C++ may hold what is beneath one and wait for it, as DDP does while
#: ranks join with uneven inputs, and would find nothing once the Python object is gone. It holds one at a time.
_dropped: deque[Pending] = deque(maxlen=64)


@uncompiled
class Operation:
    """Native works that end together, and what is to be done then: once, by whoever comes first.

    `ranks` are the numbers in the job of the group's members, for errors; `end` ends an event of the profiler.
    """

    def __init__(
        self,
        natives: Sequence[_native.Work],
        finishes: Sequence[Callable[[], object]],
        ranks: Sequence[int],
        end: Callable[[], None] | None = None,
    ):
        self.natives = natives
        self.finishes = [*finishes, end] if end is not None else finishes
        self.ranks = ranks
        self.lock = threading.Lock()
        #: What went wrong in a finish, for all who wait.
        self.error: Exception | None = None

    def is_done(self) -> bool:
        """Returns whether all native works have ended."""
        return all(native.is_done() for native in self.natives)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end, `seconds` at most for each native work; raises what went wrong there.

        Raises `StillUnderWay` if the time is up; the operation goes on then.
        """
        try:
            for native in self.natives:
                if not native.wait(seconds):
                    raise StillUnderWay(
                        f"[hexagram] Timed out waiting for {seconds} s: the operation goes on; wait for it again"
                    )
        except Error as error:
            raise in_job(error, self.ranks)
        with self.lock:
            finishes, self.finishes = self.finishes, ()
            try:
                for finish in finishes:
                    finish()
            except Exception as error:
                self.error = error
            if self.error is not None:
                raise self.error

    def finish_alone(self) -> None:
        """Has what follows the end done then, also if nobody waits."""
        if self.finishes and self.natives:
            self.natives[-1].on_done(self.finish_quietly)

    def finish_quietly(self, _: object) -> None:
        """Does what follows the end. A failure of the operation is for who waits, and for what is called next, to tell."""
        try:
            self.wait()
        except Error:
            pass


@uncompiled
class Finished(Work):
    """Work of a synchronous call that has succeeded."""

    def __init__(self, result: list[Tensor]):
        super().__init__()
        self.outcome = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self.outcome

    def get_future(self) -> Future:
        future: Future = Future()
        future.set_result(self.outcome)
        return future


@uncompiled
class Pending(Work):
    """Work of an operation in flight, which goes on whether anybody waits or not.

    `source` is the rank that a receive is from; None if any rank may send it.
    """

    def __init__(self, operation: Operation, result: list[Tensor], source: int | None = None):
        super().__init__()
        self.operation = operation
        self.outcome = result
        self.source = source
        self.error: Exception | None = None
        self.future: Future | None = None
        self.waited = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end, and for `timeout` at most; returns True. Raises what went wrong.

        Raises `StillUnderWay` if the time is up; the operation goes on, and may be waited for again.
        """
        try:
            self.operation.wait(seconds(timeout))
        except StillUnderWay:
            raise
        except Exception as error:
            self.waited = True
            self.error = error
            raise
        self.waited = True
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the operation has ended: its result is there then, or `exception` says why not."""
        if not self.operation.is_done():
            return False
        if self.error is None:
            try:
                self.wait()
            except Exception:  # noqa: BLE001  (wait has kept it)
                pass
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> Exception | None:
        """Returns what went wrong, or None: also while the operation is in flight."""
        return self.error if self.is_completed() else None

    def result(self) -> list[Tensor]:
        return self.outcome

    def source_rank(self) -> int:
        """Returns the rank, in the group, that a receive from any rank was served by."""
        if self.source is None:
            self.source = self.operation.natives[0].result()
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Returns a future of the result. In a backward pass, the pass raises what went wrong, as `end_with_pass` says."""
        if self.future is None:
            self.future = future_of(self.operation, self.outcome)
            end_with_pass(self.operation)
        return self.future

    def __del__(self) -> None:
        if not self.waited and self.future is None and not sys.is_finalizing():
            self.waited, self.outcome = True, []
            _dropped.append(self)


def seconds(timeout: timedelta | None) -> float | None:
    """Returns a timeout of PyTorch in seconds; None where there is none, which PyTorch writes as 0 or below, too."""
    if timeout is None or timeout <= NO_TIME:
        return None
    return timeout.total_seconds()


def future_of(operation: Operation, result: list[Tensor]) -> Future:
    """Returns a future of `result`, done when the operation has ended.

    What went wrong is raised inside of a callback: a future whose exception is set from Python holds a value that C++
    takes for tensors. PyTorch keeps its text only; `errors.original` finds the exception.
    """
    ended: Future = Future()

    def outcome(_: Future) -> list[Tensor]:
        operation.wait()
        return result

    future = ended.then(outcome)
    if operation.is_done():
        ended.set_result(None)
    else:
        operation.natives[-1].on_done(lambda _: ended.set_result(None))
    return future


def end_with_pass(operation: Operation) -> None:
    """Has the backward pass that runs on this thread, if one does, end with the operation, and raise what went wrong.

    DDP asks for a future of each bucket and waits for it in C++ at the end of the pass, where only an error's text is
    left. What is queued here comes before that. Not in a pass inside of another, as checkpoints with `use_reentrant` have
    them: its end is too early to wait, and there DDP raises a `RuntimeError` with the text.
    """
    if torch._C._current_graph_task_id() != -1 and passes_on_stack() == 1:
        torch.autograd.Variable._execution_engine.queue_callback(operation.wait)


def passes_on_stack() -> int:
    """Returns how many backward passes this thread is in, by the functions of PyTorch that run them."""
    passes = 0
    frame = sys._getframe(1)
    while frame is not None:
        passes += frame.f_code is _RUN.__code__
        frame = frame.f_back
    return passes


_RUN = torch.autograd.graph._engine_run_backward
