"""An elastic job that a test starts, follows by the lines of its ranks, and disturbs; and the numbers that it must reach.

A rank prints `joined GENERATION RANK PID TARGETS…` when it begins a generation, with the targets of all members, and
`step GENERATION STEP VALUE` after each step.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

#: Longest wait for an event of the job, in seconds.
LIMIT = 120.0

#: Learning rate and momentum of the trainings.
RATE, MOMENTUM = 0.125, 0.5


class Job:
    """Processes of `hexagram run --elastic`, each of which runs a program with a folder as its last argument."""

    def __init__(self, folder: Path, *program: object, ranks: int = 4, least: int = 1):
        run = [sys.executable, "-m", "hexagram", "run", "--no-prefix", "-n", str(ranks), "--elastic", str(least)]
        command = [*run, "--max-restarts", "20", "--", sys.executable, *map(str, program), str(folder)]
        self.folder = folder
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.errors: list[str] = []
        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True).start()
        #: Process ids by rank, and targets, by generation.
        self.members: dict[int, dict[int, int]] = {}
        self.targets: dict[int, list[float]] = {}
        #: For each step, the newest generation that has made it, and its value there on each rank.
        self.steps: dict[int, tuple[int, set[float]]] = {}
        #: Other lines.
        self.said: list[str] = []

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, condition) -> None:
        """Reads lines until `condition()` is true."""
        until = time.monotonic() + LIMIT
        while not condition():
            if (line := self._line(until)) is None:
                raise AssertionError(f"the job has ended: {self.members} {self.said} {''.join(self.errors)}")
            self._note(line.split())

    def _line(self, until: float) -> str | None:
        """Returns the next line; None at the end of the job."""
        try:
            return self.lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            self.process.kill()
            raise AssertionError(f"the job does not go on: {self.members} {self.said} {''.join(self.errors)}") from None

    def _note(self, words: list[str]) -> None:
        match words:
            case ["joined", generation, rank, pid, *targets]:
                self.members.setdefault(int(generation), {})[int(rank)] = int(pid)
                self.targets[int(generation)] = [float(target) for target in targets]
            case ["step", generation, step, value]:
                newest, values = self.steps.get(int(step), (0, set()))
                if int(generation) >= newest:
                    same = values if int(generation) == newest else set()
                    self.steps[int(step)] = int(generation), same | {float(value)}
            case _:
                self.said.append(" ".join(words))

    def next(self, last: int, size: int) -> tuple[int, list[int]]:
        """Waits for two steps of a generation after `last` with `size` ranks; returns its number, and the pids by rank."""

        def whole() -> int | None:
            numbers = [number for number, targets in self.targets.items() if number > last and len(targets) == size]
            made = [number for number, _ in self.steps.values()]
            return next((number for number in reversed(numbers) if made.count(number) >= 2), None)

        self.wait_for(lambda: (number := whole()) is not None and len(self.members[number]) == size)
        number = whole()
        return number, [pid for _, pid in sorted(self.members[number].items())]

    def stop(self) -> None:
        """Ends the job after a step, and checks that it was a success."""
        (self.folder / "stop").touch()
        until = time.monotonic() + LIMIT
        while (line := self._line(until)) is not None:
            self._note(line.split())
        assert self.process.wait(LIMIT) == 0, self.errors

    def check(self, tolerance: float) -> None:
        """Compares every step with the training of a program that knows the members of each."""
        value, velocity = 0.0, 0.0
        for step in range(1, max(self.steps) + 1):
            generation, found = self.steps[step]
            targets = self.targets[generation]
            gradient = sum(value - target for target in targets) / len(targets)
            velocity = MOMENTUM * velocity + gradient
            value -= RATE * velocity
            assert all(abs(one - value) <= tolerance for one in found), (step, generation, targets, found, value)


def kill(pid: int) -> None:
    """Kills a rank."""
    os.kill(pid, signal.SIGKILL)


def disturb(job: Job) -> None:
    """Kills rank 0, then two ranks at the same moment, and stops the job after processes have started in their places."""
    first, pids = job.next(0, 4)
    kill(pids[0])
    second, now = job.next(first, 4)
    assert now[:3] == pids[1:] and now[3] not in pids, (pids, job.members, job.targets)
    kill(now[0])
    kill(now[3])
    _, last = job.next(second, 4)
    assert last[:2] == now[1:3]
    job.stop()
