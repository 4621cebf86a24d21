"""The caller's handle of an operation: `Work`, in the two forms that PyTorch needs.

- `Finished`: a synchronous call has ended when it returns, so this contains only its result.
- `Pending`: all others, in flight until a wait or a check finds that they have ended.

The native layer keeps the memory of an operation until it ends, even if the Work is dropped before.
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
from .streams import Position, current_stream, finish_at, follow, future_at
from .uncompiled import uncompiled

NO_TIME = timedelta(0)
#: Works that the program dropped without a wait. C++ may still hold the underlying object and wait for it, as DDP does
#: while ranks join with uneven inputs, and would fail without the Python object. It holds one at a time.
_dropped: deque[Pending] = deque(maxlen=64)


@uncompiled
class Operation:
    """Native works that end together, and the work to do then: once, by the first caller.

    `ranks` are the ranks of the group members in the job, for errors; `end` ends an event of the profiler. `position` is the
    stream from which the operation began, on a GPU: a wait then also makes the current stream wait.
    """

    def __init__(
        self,
        natives: Sequence[_native.Work],
        finishes: Sequence[Callable[[], object]],
        ranks: Sequence[int],
        end: Callable[[], None] | None = None,
        position: Position | None = None,
    ):
        self.natives = natives
        self.finishes = [*finishes, end] if end is not None else finishes
        self.ranks = ranks
        self.position = position
        #: Event after the finishes, on a GPU.
        self.finished: torch.cuda.Event | None = None
        self.lock = threading.Lock()
        #: Error of a finish, for all waiting callers.
        self.error: Exception | None = None

    def is_done(self) -> bool:
        """Returns whether all native works have ended."""
        return all(native.is_done() for native in self.natives)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end, at most `seconds` for each native work; raises its error.

        Raises `StillUnderWay` after the timeout; the operation continues then.
        """
        try:
            for native in self.natives:
                if not native.wait(seconds):
                    raise StillUnderWay(
                        f"[hexagram] Timed out waiting for {seconds} s: the operation continues; wait for it again"
                    )
        except Error as error:
            raise in_job(error, self.ranks)
        follow(self.position)
        with self.lock:
            finishes, self.finishes = self.finishes, ()
            try:
                if finishes:
                    self.finished = finish_at(self.position, finishes)
            except Exception as error:
                self.error = error
            if self.error is not None:
                raise self.error
            if self.finished is not None:
                current_stream(self.position.gpu).wait_event(self.finished)

    def finish_alone(self) -> None:
        """Schedules the work after the end, even without a waiting caller; on a GPU, whose streams wait, the caller does it."""
        if self.finishes and self.natives and self.position is None:
            self.natives[-1].on_done(self.finish_quietly)

    def finish_quietly(self, _: object) -> None:
        """Does the work after the end. A waiting caller, or the next call, raises a failure of the operation."""
        try:
            self.wait()
        except Error:
            pass


@uncompiled
class Finished(Work):
    """Work of a synchronous call that has succeeded."""

    def __init__(self, result: list[Tensor], position: Position | None = None):
        super().__init__()
        self.outcome = result
        self.position = position

    def wait(self, timeout: timedelta | None = None) -> bool:
        follow(self.position)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self.outcome

    def get_future(self) -> Future:
        future = future_at(self.position)
        future.set_result(self.outcome)
        return future


@uncompiled
class Pending(Work):
    """Work of an operation in flight, which continues with or without a waiting caller.

    `source` is the sender of a receive; None for any rank.
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
        """Waits for the end, at most `timeout`; returns True. Raises the error of the operation.

        Raises `StillUnderWay` after the timeout; the operation continues, and may be waited for again.
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
        """Returns whether the operation has ended: with its result, or with an `exception`."""
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
        """Returns the error, or None: also while the operation is in flight."""
        return self.error if self.is_completed() else None

    def result(self) -> list[Tensor]:
        return self.outcome

    def source_rank(self) -> int:
        """Returns the sender of the message, as a rank of the group, for a receive from any rank."""
        if self.source is None:
            self.source = self.operation.natives[0].result()
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Returns a future of the result. In a backward pass, the pass raises the error: see `end_with_pass`."""
        if self.future is None:
            self.future = future_of(self.operation, self.outcome)
            end_with_pass(self.operation)
        return self.future

    def __del__(self) -> None:
        if not self.waited and self.future is None and not sys.is_finalizing():
            self.waited, self.outcome = True, []
            _dropped.append(self)


def seconds(timeout: timedelta | None) -> float | None:
    """Returns a timeout of PyTorch in seconds; None without one, for which PyTorch also passes 0 or below."""
    if timeout is None or timeout <= NO_TIME:
        return None
    return timeout.total_seconds()


def future_of(operation: Operation, result: list[Tensor]) -> Future:
    """Returns a future of `result`, done when the operation has ended.

    Errors are raised inside a callback: a future whose exception is set from Python contains a value that C++
    interprets as tensors. PyTorch keeps only the text; `errors.original` finds the exception.
    """
    ended = future_at(operation.position)

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
    """Makes the backward pass on this thread, if there is one, wait for the operation, and raise its error.

    DDP gets a future of each bucket and waits for it in C++ at the end of the pass, where only the text of an error is
    left. Callbacks queued here run before that. Not in a nested pass, as in checkpoints with `use_reentrant`: its end
    is too early to wait, and DDP raises a `RuntimeError` with the text there.
    """
    if torch._C._current_graph_task_id() != -1 and passes_on_stack(operation.position is not None) == 1:
        torch.autograd.Variable._execution_engine.queue_callback(operation.wait)


def passes_on_stack(on_gpu: bool) -> int:
    """Returns the number of backward passes in which this call is made, by the functions of PyTorch on the stack.

    A pass on a GPU runs on a thread that PyTorch has started, without a frame of the outermost pass.
    """
    passes = int(on_gpu and isinstance(threading.current_thread(), threading._DummyThread))
    frame = sys._getframe(1)
    while frame is not None:
        passes += frame.f_code is _RUN.__code__
        frame = frame.f_back
    return passes


_RUN = torch.autograd.graph._engine_run_backward
