"""What a caller holds of an operation in flight: `Work`, in the three forms that PyTorch needs.

- `Finished`: a synchronous call has ended when it returns, so this holds its result only.
- `Posted`: a send or a receive, waited for by whoever posted it.
- `future_work`: an asynchronous collective. Its Work is PyTorch's own, around a future: C++ may keep it longer than
  Python does, and would find nothing behind a Python class then.

The native layer keeps the memory of an operation until it ends, whoever drops the Work before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import Work
from torch.futures import Future

from hexagram import Error, _native

from .errors import in_job

NO_TIME = timedelta(0)


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

    def is_done(self) -> bool:
        """Returns whether all native works have ended."""
        return all(native.is_done() for native in self.natives)

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end, `seconds` at most for each native work; raises what went wrong there.

        Raises `TimeoutError` if the time is up; the operation goes on then.
        """
        try:
            for native in self.natives:
                if not native.wait(seconds):
                    raise TimeoutError(f"the operation is under way after {seconds} s; wait for longer")
        except Error as error:
            raise in_job(error, self.ranks)
        with self.lock:
            finishes, self.finishes = self.finishes, ()
            for finish in finishes:
                finish()


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


class Posted(Work):
    """Work of a send or a receive. Whoever waits drives it; nobody has to."""

    def __init__(self, operation: Operation, result: list[Tensor], source: int | None = None):
        super().__init__()
        self.operation = operation
        self.outcome = result
        self.source = source
        self.error: Exception | None = None
        self.future: Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self.operation.wait(seconds(timeout))
        except Exception as error:
            self.error = error
            raise
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.operation.is_done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Returns what went wrong, or None: also while the operation is in flight."""
        if self.error is None and self.is_completed():
            try:
                self.wait()
            except Exception:  # noqa: BLE001  (wait has kept it)
                pass
        return self.error

    def result(self) -> list[Tensor]:
        return self.outcome

    def source_rank(self) -> int:
        """Returns the rank, in the group, that a receive from any rank was served by."""
        if self.source is None:
            self.source = self.operation.natives[0].result()
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        if self.future is None:
            self.future = future_of(self.operation, self.outcome)
        return self.future


def seconds(timeout: timedelta | None) -> float | None:
    """Returns a timeout of PyTorch in seconds; None where there is none, which PyTorch writes as 0 or below, too."""
    if timeout is None or timeout <= NO_TIME:
        return None
    return timeout.total_seconds()


def future_of(operation: Operation, result: list[Tensor]) -> Future:
    """Returns a future of `result`, done when the operation has ended.

    What went wrong is raised inside of a callback: a future whose exception is set from Python holds a value that C++
    takes for tensors.
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


def future_work(operation: Operation, result: list[Tensor]) -> Work:
    """Returns the Work of an asynchronous collective, which C++ may keep."""
    return _create_work_from_future(future_of(operation, result))
