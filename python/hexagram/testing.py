"""Ranks as processes of one program, for experiments and for tests of programs that use hexagram.

Example::

    import numpy
    from hexagram.testing import spawn

    def total(world):
        mine = numpy.array([world.rank + 1.0])
        world.communicator.all_reduce(mine)
        return mine[0]

    if __name__ == "__main__":
        assert spawn(3, total) == [6.0, 6.0, 6.0]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from hexagram._native import World


class RankFailed(Exception):
    """A rank of :func:`spawn` raised an exception or died. The message contains its traceback."""


class Outcome:
    """The outcome of one rank: ``value`` if it returned, ``error`` (text) if it raised, ``exitcode`` if it died."""

    def __init__(self, value: Any = None, error: str | None = None, exitcode: int | None = None):
        self.value = value
        self.error = error
        self.exitcode = exitcode

    def __repr__(self) -> str:
        return f"Outcome(value={self.value!r}, error={self.error!r}, exitcode={self.exitcode!r})"


def spawn(
    ranks: int,
    function: Callable[..., Any],
    *arguments: Any,
    transport: str | None = None,
    timeout: float = 300.0,
    deadline: float | None = 30.0,
    hosts: Sequence[int] | None = None,
) -> list[Any]:
    """Runs ``function(world, *arguments)`` as several ranks, each a new process, and returns the results by rank.

    ``function`` and its result must be picklable: use a function of a module, not a lambda. ``timeout`` is the time
    after which all ranks are killed (300), ``deadline`` that of their operations (30), both in seconds. With ``hosts``,
    rank r acts as if it were on the host ``hosts[r]``; hosts are connected by TCP. Use it to test hierarchical
    communication. After a rank has failed, the others have twice `deadline` to notice it and end, before they are
    killed: a stopped one would never end.

    Raises :class:`RankFailed` if a rank raised or died; ``TimeoutError`` after `timeout`.
    """
    outcomes = outcomes_of(
        ranks, function, *arguments, transport=transport, timeout=timeout, deadline=deadline, hosts=hosts
    )
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None:
            raise RankFailed(f"rank {rank} raised:\n{outcome.error}")
    # Their errors are more informative than the exit codes of ranks that died, which they name.
    for rank, outcome in enumerate(outcomes):
        if outcome.exitcode is not None:
            raise RankFailed(f"rank {rank} died with exit code {outcome.exitcode}")
    return [outcome.value for outcome in outcomes]


def outcomes_of(
    ranks: int,
    function: Callable[..., Any],
    *arguments: Any,
    transport: str | None = None,
    timeout: float = 300.0,
    deadline: float | None = 30.0,
    hosts: Sequence[int] | None = None,
) -> list[Outcome]:
    """Runs like :func:`spawn`, and returns the outcome of each rank, including those that failed."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(ranks)]
    processes = []
    for rank, (_, theirs) in enumerate(pairs):
        options = {"transport": transport, "deadline": deadline}
        host = None if hosts is None else hosts[rank]
        process = context.Process(target=_rank, args=(theirs, rank, ranks, host, options, function, arguments))
        process.start()
        # Only the process has its end of the pipe, so the other end closes when it dies.
        theirs.close()
        processes.append(process)
    store = _Store()
    outcomes = [Outcome() for _ in range(ranks)]
    servers = []
    for (ours, _), outcome in zip(pairs, outcomes, strict=True):
        server = threading.Thread(target=_serve, args=(ours, store, outcome), daemon=True)
        server.start()
        servers.append(server)
    try:
        _wait_for(processes, timeout, None if deadline is None else 2 * deadline)
    finally:
        for process in processes:
            process.kill()
            process.join()
    for server in servers:
        server.join()
    for outcome, process in zip(outcomes, processes, strict=True):
        if outcome.error is None and process.exitcode != 0:
            outcome.exitcode = process.exitcode
    return outcomes


def alone(*, deadline: float | None = 30.0) -> World:
    """Returns a world of this process alone, for experiments without other ranks.

    >>> with alone() as world:
    ...     world.size
    1
    """
    return World.join_through(_Face(_Store().answer), 0, 1, deadline=deadline)


def _wait_for(processes: Sequence[Any], timeout: float, grace: float | None) -> None:
    """Waits until all processes have ended, or for `grace` seconds after one failed, if that is less.

    Raises ``TimeoutError`` after `timeout`.
    """
    # Does not use the sentinels of the processes: these are pipes that child processes of a rank also have open.
    left: dict[int, Any] = {}
    last, failed = time.monotonic() + timeout, False

    def has_ended(process: Any) -> None:
        nonlocal last, failed
        if process.exitcode != 0 and not failed and grace is not None:
            failed, last = True, min(last, time.monotonic() + grace)

    try:
        for process in processes:
            # Starting the next processes may have reaped one that has ended: its number is invalid then.
            if process.exitcode is None:
                left[os.pidfd_open(process.pid)] = process
            else:
                has_ended(process)
        while left:
            ended = wait(list(left), max(0.0, last - time.monotonic()))
            if not ended and failed:
                return
            if not ended:
                raise TimeoutError(f"the ranks did not end within {timeout} s, and were killed")
            for end in [end for end in left if end in ended]:
                process = left.pop(end)
                os.close(end)
                process.join()
                has_ended(process)
    finally:
        for end in left:
            os.close(end)


class _Store:
    """Keys and values of the ranks, for the rendezvous."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, seconds: float) -> bytes | None:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, seconds)
            return self.values.get(key)

    def remove(self, key: str) -> None:
        with self.changed:
            self.values.pop(key, None)

    def answer(self, method: str, *arguments: Any) -> Any:
        """Returns the result of a method that a rank calls by name."""
        return getattr(self, method)(*arguments)


def _serve(connection: Connection, store: _Store, outcome: Outcome) -> None:
    """Answers requests of one rank to the store, until its result arrives, possibly an unreadable one, or it dies."""
    with connection:
        try:
            while True:
                kind, *arguments = connection.recv()
                if kind in ("value", "error"):
                    setattr(outcome, kind, *arguments)
                    return
                connection.send(store.answer(kind, *arguments))
        except (EOFError, ConnectionError):
            return
        except Exception:  # noqa: BLE001  (who started the rank raises it)
            outcome.error = f"what it returned cannot be read:\n{traceback.format_exc()}"


class _Face:
    """A store as a rank sees it, called by ``ask(method, *arguments)``: here, or in the parent."""

    def __init__(self, ask: Callable[..., Any]):
        self.ask = ask

    def put(self, key: str, value: bytes) -> None:
        self.ask("put", key, value)

    def get(self, key: str, seconds: float) -> bytes:
        value = self.ask("get", key, seconds)
        if value is None:
            raise TimeoutError(f"no rank has put {key} within {seconds} s")
        return value

    def remove(self, key: str) -> None:
        self.ask("remove", key)


def _ask(connection: Connection, *question: Any) -> Any:
    """Sends a request to the store of the parent, and returns the answer."""
    connection.send(question)
    return connection.recv()


def _rank(
    connection: Connection,
    rank: int,
    size: int,
    host: int | None,
    options: dict,
    function: Callable[..., Any],
    arguments: tuple,
) -> None:
    """Runs one rank."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The parent considers this rank alive while its end of the pipe is open: forked children must close it.
    os.register_at_fork(after_in_child=connection.close)
    if host is not None:
        os.environ["HEXAGRAM_HOST"] = f"host-{host}"
    try:
        with World.join_through(_Face(partial(_ask, connection)), rank, size, **options) as world:
            value = function(world, *arguments)
        # The value may not be picklable.
        connection.send(("value", value))
    except BaseException:  # noqa: BLE001  (the parent raises it)
        connection.send(("error", traceback.format_exc()))
        sys.exit(1)


def _end_with_parent() -> None:
    """Ends this process when its parent has ended: no process would take its result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
