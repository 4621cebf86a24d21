"""Starts ranks of torch.distributed as separate processes, for tests.

results = run("hexagram", 2, program, argument)    # the results of program(rank, argument) by rank
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any


class Failed(Exception):
    """Raised by `run` when a rank raised, died or did not end in time; contains the outcome of each rank."""


def run(
    backend: str | None, ranks: int, program: Callable, *arguments: Any, seconds: float = 300, timeout: float = 30
) -> list:
    """Runs `program(rank, *arguments)` on each rank in a process group; returns the results.

    Without a `backend` there is no process group, and the program creates its own. `seconds` is the total limit,
    `timeout` that of the group. Raises `Failed`.
    """
    outcomes = run_each(backend, ranks, program, *arguments, seconds=seconds, timeout=timeout)
    if any(kind != "returned" for kind, _ in outcomes):
        raise Failed("\n".join(f"rank {rank} {kind}: {value}" for rank, (kind, value) in enumerate(outcomes)))
    return [value for _, value in outcomes]


def run_each(
    backend: str | None, ranks: int, program: Callable, *arguments: Any, seconds: float = 300, timeout: float = 30
) -> list[tuple[str, Any]]:
    """Runs a program like `run`; returns the outcome of each rank: "returned", "raised", "died" or "hung", and a value.

    A rank has "hung" if it has not exited in time, even after its program ended.
    """
    # Importing torch takes seconds, so one process does it for all ranks. But variables for malloc, or its replacement,
    # are read when a program starts.
    is_special = "MALLOC_PERTURB_" in os.environ or "LD_PRELOAD" in os.environ
    context = multiprocessing.get_context("spawn" if is_special else "forkserver")
    multiprocessing.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])
    outcomes: list[tuple[str, Any]] = [("hung", None)] * ranks
    with tempfile.TemporaryDirectory() as folder:
        processes, connections = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            setting = (backend, rank, ranks, os.path.join(folder, "store"), timeout)
            process = context.Process(target=enter, args=(theirs, setting, program, arguments))
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        end = time.monotonic() + seconds
        pending = dict(zip(connections, range(ranks), strict=True))
        while pending and (ready := wait(list(pending), max(0, end - time.monotonic()))):
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    outcomes[rank] = connection.recv()
                except EOFError:
                    outcomes[rank] = ("died", None)
        for rank, process in enumerate(processes):
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                outcomes[rank] = ("hung", outcomes[rank])
                process.kill()
                process.join()
            elif outcomes[rank][0] == "died":
                outcomes[rank] = ("died", process.exitcode)
    return outcomes


def enter(connection, setting: tuple, program: Callable, arguments: tuple) -> None:
    """Runs the program on one rank, and sends its outcome."""
    import torch
    import torch.distributed as dist

    backend, rank, ranks, store, timeout = setting
    torch.set_num_threads(1)
    torch.manual_seed(1)
    try:
        if backend is not None:
            import hexagram.torch  # noqa: F401

            dist.init_process_group(
                backend,
                init_method=f"file://{store}",
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=timeout),
            )
        value = program(rank, *arguments)
        connection.send(("returned", value))
        if backend is not None:
            dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001  (the test judges it)
        connection.send(
            ("raised", f"{type(error).__module__}.{type(error).__name__}: {error}\n{traceback.format_exc()}")
        )
    connection.close()
