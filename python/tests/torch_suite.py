"""Runs the tests of torch.distributed in PyTorch over a backend, with the installed wheel, unchanged.

The tests are the 285 of `torch.testing._internal.distributed.distributed_test`. PyTorch starts new processes for every
test, which takes most of an hour on two cores; here the ranks stay alive from test to test, and restart only after a
test that failed. Use it after changes to the backend or the core beneath it:

    python torch_suite.py --backend gloo --ranks 3                    # the reference: the backend of PyTorch
    python torch_suite.py --backend hexagram --ranks 3                # under our own name
    python torch_suite.py --backend gloo --hexagram --ranks 3         # ours under the name of theirs
    python torch_suite.py --backend mpi --hexagram all_to_all         # only the tests with this in their name
    python torch_suite.py --backend gloo --ranks 3 --store            # writes the passed tests to torch_suite.json
    python torch_suite.py --backend gloo --hexagram --compare         # fails where the stored run passed and this did not

With a name other than that of Gloo, `--compare` ignores tests that PyTorch skips there.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from dataclasses import dataclass
from datetime import timedelta

STORED = pathlib.Path(__file__).with_name("torch_suite.json")
#: Tests that pass with Gloo and fail with hexagram under its name, each with the reason.
DIFFERENCES = {
    "test_ddp_logging_data_cpu": "asks C++ for the group's name, which has to be hexagram there: behind the name gloo C++ "
    "looks for Gloo's own class",
}
#: From worst to best: the outcome of a test is the worst of its ranks.
OUTCOMES = ("died", "hung", "failed", "passed", "skipped")


@dataclass
class Run:
    """Run configuration: backend name, whether hexagram takes that name, ranks, transport, seconds for one test.

    `folder` is for the rendezvous and the output of the ranks; `port` is for the one test with a rendezvous at a port.
    """

    backend: str
    hexagram: bool
    ranks: int
    transport: str | None
    seconds: float
    folder: str
    port: int

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a rank for the tests of PyTorch and hexagram."""
        variables = {
            "BACKEND": self.backend,
            "WORLD_SIZE": str(self.ranks),
            "TEMP_DIR": self.folder,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "OMP_NUM_THREADS": "1",
        }
        if self.hexagram and self.backend != "hexagram":
            variables["HEXAGRAM_AS"] = self.backend
        if self.transport:
            variables["HEXAGRAM_TRANSPORT"] = self.transport
        return variables


def load_tests(run: Run):
    """Imports the tests of PyTorch with `run.backend` as the backend under test; returns their class."""
    os.environ.update(run.environment())
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases

    torch.set_num_threads(1)
    if run.hexagram:
        import hexagram.torch  # noqa: F401  (registers the backend)

        for feature in DistTestCases.backend_feature.values():
            feature.add(run.backend)
        if run.backend == "mpi":  # The wheel does not include MPI; the tests check that before they run.
            dist.is_mpi_available = lambda: True
    from torch.testing._internal.distributed import distributed_test

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Tests


def run_test(tests, run: Run, rank: int, name: str, store: str) -> tuple[str, str]:
    """Runs one test on this rank, in a separate process group; returns the outcome and the reason of a failure."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_utils
    from torch.testing._internal.distributed import distributed_test

    skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    distributed_test.Barrier.barrier_id = 0
    outcome = ("passed", "")
    try:
        test = tests(name)
        test.rank, test.file_name = rank, store
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
        dist.init_process_group(
            run.backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=run.ranks,
            timeout=timedelta(seconds=min(seconds, run.seconds)),
        )
        test._barrier()
        common_utils.set_rng_seed(1234)
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest as skip:
        outcome = ("skipped", str(skip))
    except SystemExit as exit:
        outcome = ("skipped", skips[exit.code]) if exit.code in skips else ("failed", f"exit code {exit.code}")
    except BaseException as error:  # noqa: BLE001  (whatever a test raises is its outcome)
        traceback.print_exc()
        outcome = ("failed", describe(error))
    try:
        if dist.is_initialized() and outcome[0] != "failed":
            dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        outcome = ("failed", f"after the test: {describe(error)}")
    return outcome


def describe(error: BaseException) -> str:
    """Returns the type of an error, the start of its text, and its innermost stack frames."""
    frames = traceback.extract_tb(error.__traceback__)[::-1][:3]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {str(error)[:200]!r} at {places}"


def serve(run: Run, rank: int, connection) -> None:
    """Runs the tests that the parent names on a rank, one after another, until it sends None."""
    log = os.open(os.path.join(run.folder, f"log{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["RANK"] = str(rank)
    tests = load_tests(run)
    connection.send("ready")
    while (task := connection.recv()) is not None:
        name, store = task
        print(f"== {name}", file=sys.stderr, flush=True)
        connection.send(run_test(tests, run, rank, name, store))
    os._exit(0)


class Ranks:
    """The processes that run tests; started when a test needs them, and killed after one that failed."""

    def __init__(self, run: Run):
        self.run = run
        self.processes: list = []

    def start(self) -> None:
        """Starts all ranks and waits until they have imported the tests."""
        context = multiprocessing.get_context("spawn")
        for rank in range(self.run.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(self.run, rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append((process, ours))
        for _, connection in self.processes:
            connection.recv()

    def stop(self) -> None:
        """Kills all ranks."""
        for process, _ in self.processes:
            process.kill()
            process.join()
        self.processes.clear()

    def test(self, name: str) -> tuple[str, str]:
        """Runs one test on all ranks; returns the worst outcome and its reason."""
        if not self.processes:
            self.start()
        for folder in ("barrier", "init_dir", "test_dir"):
            shutil.rmtree(os.path.join(self.run.folder, folder), ignore_errors=True)
            os.makedirs(os.path.join(self.run.folder, folder))
        store = tempfile.mktemp(dir=self.run.folder)
        for _, connection in self.processes:
            connection.send((name, store))
        end = time.monotonic() + self.run.seconds
        outcomes = [self.outcome(process, connection, end) for process, connection in self.processes]
        worst = min(outcomes, key=lambda outcome: OUTCOMES.index(outcome[0]))
        if "passed" in {outcome[0] for outcome in outcomes} and worst[0] == "skipped":
            worst = ("passed", "")
        if worst[0] not in ("passed", "skipped"):
            self.stop()
        return worst

    @staticmethod
    def outcome(process, connection, end: float) -> tuple[str, str]:
        """Waits for the outcome of one rank until `end`."""
        try:
            if connection.poll(max(0.1, end - time.monotonic())):
                return connection.recv()
            return "hung", "no answer in time"
        except (EOFError, ConnectionError):
            process.join()
            return "died", f"exit code {process.exitcode}"


def free_port() -> int:
    """Returns a port that is currently free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_suite(run: Run, parts: list[str]) -> dict[str, tuple[str, str]]:
    """Runs every test whose name contains one of `parts` (all if empty); returns the outcome of each, by name."""
    os.environ.update(run.environment())
    tests = load_tests(run)
    names = [name for name in dir(tests) if name.startswith("test_")]
    if parts:
        names = [name for name in names if any(part in name for part in parts)]
    ranks, outcomes = Ranks(run), {}
    try:
        for name in names:
            start = time.monotonic()
            if getattr(getattr(tests, name), "__unittest_skip__", False):
                outcomes[name] = ("skipped", getattr(tests, name).__unittest_skip_why__)
            else:
                outcomes[name] = ranks.test(name)
            outcome, reason = outcomes[name]
            if outcome != "skipped":
                print(f"{outcome:7} {time.monotonic() - start:5.1f} s  {name}  {reason}", flush=True)
    finally:
        ranks.stop()
    return outcomes


def gloo_passes(run: Run, parts: list[str]) -> set[str]:
    """Returns the tests that pass with Gloo with this many ranks on this torch: from `--store`, or from a run."""
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    stored = json.loads(STORED.read_text()).get(version, {}).get(str(run.ranks))
    if stored is not None:
        return set(stored)
    print(f"torch {version} over Gloo with {run.ranks} ranks is not stored; running it")
    command = [sys.executable, __file__, "--backend", "gloo", "--ranks", str(run.ranks), *parts]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[3] for line in lines if line.startswith("passed")}


def store_passes(ranks: int, passed: list[str]) -> None:
    """Adds passed tests to the file that `gloo_passes` reads."""
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    stored.setdefault(version, {})[str(ranks)] = sorted(passed)
    STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Runs the suite with the arguments of the command line; returns 1 if `--compare` found a missing test."""
    parser = argparse.ArgumentParser(description="PyTorch's own torch.distributed tests over a backend")
    parser.add_argument("parts", nargs="*", help="run only tests with one of these in their name")
    parser.add_argument("--backend", default="hexagram", help="the name under which the tests ask for the backend")
    parser.add_argument("--hexagram", action="store_true", help="put hexagram under that name")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--transport", help="HEXAGRAM_TRANSPORT of the ranks")
    parser.add_argument("--seconds", type=float, default=60, help="how long one test may take")
    parser.add_argument("--store", action="store_true", help="store what passed as what is expected")
    parser.add_argument("--compare", action="store_true", help="fail if a stored test did not pass, unless it is known")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the ranks' output, and name it")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="torch-suite-")
    hexagram = options.hexagram or options.backend == "hexagram"
    run = Run(options.backend, hexagram, options.ranks, options.transport, options.seconds, folder, free_port())
    start = time.monotonic()
    try:
        outcomes = run_suite(run, options.parts)
    finally:
        if options.keep:
            print("output of the ranks:", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    tally = collections.Counter(outcome for outcome, _ in outcomes.values())
    print(dict(tally), f"{options.ranks} ranks, {time.monotonic() - start:.0f} s")
    passed = [name for name, (outcome, _) in outcomes.items() if outcome == "passed"]
    if options.store:
        store_passes(options.ranks, passed)
    expected = gloo_passes(run, options.parts) if options.compare else set()
    missing = (expected & outcomes.keys()) - set(passed)
    if options.backend != "gloo":
        # Some tests are only for backends with certain names, and are skipped.
        missing = {name for name in missing if outcomes[name][0] != "skipped"}
    for name in sorted(missing):
        print("different:" if name in DIFFERENCES else "missing:", name, *outcomes[name], DIFFERENCES.get(name, ""))
    return 1 if missing - DIFFERENCES.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
