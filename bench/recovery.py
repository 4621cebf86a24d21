"""Trainings whose ranks are killed, on one machine: hexagram in place and by restart, torchrun by restart, and torchft.

    python3 bench/recovery.py                  # goodput, and the time from a death until the next finished step
    python3 bench/recovery.py --accuracy       # the digits with kills against without, for every algorithm
    python3 bench/recovery.py --pause          # what checkpoints and --elastic cost without kills

Each prints a Markdown table. All train the digits with a hidden layer of 128, on 4 ranks with batches of 16. Build before, in
release: `-p hexagram-cli`, and `--example train -p hexagram-lab`. `--python` names a Python with torch and torchft; without it,
only hexagram is measured. bench/recovery_torch.py has the programs in PyTorch.

Goodput is the number of samples in the model at the end of a fixed time over that of the undisturbed run of the same system. The
time begins at the first finished steps. hexagram reports steps at the end of an epoch, so its times until the next finished step
include the rest of an epoch."""
import argparse
import itertools
import json
import os
import random
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = str(ROOT / "bench/recovery_torch.py")
RANKS, BATCH, SAVE_EVERY, MANY = 4, 16, 2.0, "1000"
# Milliseconds that the lighthouse of torchft waits for replicas, and without a heartbeat: of its README, and shorter.
FROM_README, SHORT = (10000, 5000), (1000, 1000)
CONTINUES = re.compile(r"continues at step (\d+) with (\d+) ranks")
ALL_RANKS = re.compile(f"with {RANKS} ranks")
RESTARTS = re.compile(r"; restart \d+")
EPOCH = re.compile(r"epoch +\d+/\d+")
ENDLESS = ["--epochs", "100000000"]


class Process:
    """A process, whose lines of output get the time at which they arrive."""

    def __init__(self, command, environment=None, errors=subprocess.STDOUT):
        self.lines = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def end(self):
        """Interrupts the process, and kills it with all that it has started if it does not end."""
        started = descendants(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, command in started.items():
            if parent_and_command(pid)[1] == command:
                kill(pid)
        self.reader.join(5)


def parent_and_command(pid):
    """Returns the parent and the command line of a process; `None` for both if it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None, None
    return int(status.rpartition(")")[2].split()[1]), command


def descendants(root):
    """Returns the command lines of the processes that a process has started, by their number."""
    known = {int(name): parent_and_command(name) for name in os.listdir("/proc") if name.isdigit()}
    found, parents = {}, {root}
    while parents:
        children = {pid: command for pid, (parent, command) in known.items() if parent in parents and pid not in found}
        found.update(children)
        parents = set(children)
    return found


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Launched:
    """A training of 4 ranks by one launcher, which starts killed ranks again."""

    def __init__(self, command, program, environment=None):
        self.launcher, self.program = Process(command, environment), program

    def lines(self):
        return self.launcher.lines

    def ranks(self):
        started = descendants(self.launcher.process.pid)
        return [pid for pid, command in started.items() if self.program in command[:3]]

    def has_ended(self):
        return self.launcher.process.poll() is not None

    def end(self):
        self.launcher.end()


class Replicas:
    """A training by torchft: a lighthouse and 4 replicas, each in a loop that starts it again."""

    def __init__(self, python, timeouts):
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        join, heartbeat = timeouts
        lighthouse = f"{Path(python).parent}/torchft_lighthouse"
        options = f"--min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms {join} --heartbeat_timeout_ms {heartbeat}"
        # It prints several lines a step, as the replicas do on standard error.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.lighthouse = subprocess.Popen([lighthouse, "--bind", f"[::]:{port}", *options.split()], **quiet)
        self.python, self.environment = python, {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}
        self.ended, self.past = threading.Event(), []
        self.present = [self.replica(number) for number in range(RANKS)]
        self.keeper = threading.Thread(target=self.keep, daemon=True)
        self.keeper.start()

    def replica(self, number):
        return Process([self.python, TORCH, "torchft", str(number)], self.environment, subprocess.DEVNULL)

    def keep(self):
        while not self.ended.wait(0.05):
            for number, replica in enumerate(self.present):
                if replica.process.poll() is not None:
                    self.past.append(replica)
                    self.present[number] = self.replica(number)

    def lines(self):
        return sorted(itertools.chain(*(list(replica.lines) for replica in [*self.past, *self.present])))

    def ranks(self):
        # A replica that still starts is no member yet.
        return [replica.process.pid for replica in self.present if replica.lines]

    def has_ended(self):
        return self.lighthouse.poll() is not None

    def end(self):
        self.ended.set()
        self.keeper.join()
        for replica in self.present:
            replica.process.kill()
        for replica in self.present:
            replica.end()
        self.lighthouse.kill()
        self.lighthouse.wait()


def train(options, folder, launcher, arguments):
    """Starts a training by hexagram, with its figures in a folder."""
    program = f"{options.target}/release/examples/train"
    command = [f"{options.target}/release/hexagram", "run", "-n", str(RANKS), *launcher, "--", program]
    return Launched([*command, "--out", f"{folder}/figures", *arguments], program)


def torchrun(options, arguments):
    """Starts a training in PyTorch by torchrun."""
    launcher = f"-m torch.distributed.run --standalone --nproc-per-node {RANKS} --max-restarts {MANY}"
    # In a store that outlives a restart, gloo finds the addresses of the ranks before, and fails after 7 s.
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Launched([options.python, *launcher.split(), TORCH, "torchrun", *arguments], TORCH, environment)


def figures(folder, event):
    """Returns the figures of a kind that a training has written last; an empty dictionary if there are none."""
    try:
        with open(f"{folder}/figures/metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    start = f'{{"event":"{event}"'.encode()
    return next((json.loads(line) for line in reversed(lines) if line.startswith(start)), {})


def samples_of_figures(training, folder):
    """Returns the samples in the model of hexagram: the members have changed at the steps of some lines."""
    changes = [(int(match[1]), int(match[2])) for _, line in training.lines() if (match := CONTINUES.search(line))]
    changes = [(0, RANKS), *changes]
    ends = [step for step, _ in changes[1:]] + [max(figures(folder, "step").get("step", 0), changes[-1][0])]
    return sum((end - step) * ranks * BATCH for (step, ranks), end in zip(changes, ends, strict=True))


def samples_of_batches(training, _):
    """Returns the samples in the model of PyTorch: the last line counts, since a restart takes batches back."""
    batches = [int(match[1]) for _, line in training.lines() if (match := re.search(r"(\d+) batches", line))]
    return batches[-1] * BATCH if batches else 0


@dataclass
class System:
    """A way to train, undisturbed or with kills."""

    name: str
    start: Callable  # the training, in a folder
    first: re.Pattern  # the line with which its time begins
    again: re.Pattern  # the line with which it continues after a kill
    finished: re.Pattern  # the next line after that, or that line itself, tells a finished step
    samples: Callable
    base: str = ""  # the undisturbed system of a system with kills

    def recovered(self, lines, killed):
        """Returns the time at which the first step after a kill was finished; `None` if there is none."""
        after = [(at, line) for at, line in lines if at > killed]
        continued = itertools.dropwhile(lambda line: not self.again.search(line[1]), after)
        return next((at for at, line in continued if self.finished.search(line)), None)


def systems(options, every):
    """Returns what is measured, with the base before its systems with kills. `every` holds the steps between checkpoints."""
    elastic = ["--elastic", "2", "--max-restarts", MANY]
    ours = (EPOCH, CONTINUES, EPOCH, samples_of_figures)
    yield System("hexagram", lambda folder: train(options, folder, [], ENDLESS), *ours)
    yield System("hexagram, in place", lambda folder: train(options, folder, elastic, ENDLESS), *ours, "hexagram")

    def restart(folder):
        saves = ["--checkpoint", f"{folder}/saved", "--every", str(every[0])]
        return train(options, folder, ["--max-restarts", MANY], [*ENDLESS, *saves])

    ours = (EPOCH, RESTARTS, EPOCH, samples_of_figures)
    yield System("hexagram, by restart", restart, *ours, "hexagram")
    if not options.python:
        return
    theirs = (CONTINUES, CONTINUES, CONTINUES, samples_of_batches)
    yield System("torchrun", lambda _: torchrun(options, []), *theirs)
    yield System("torchrun, by restart", lambda folder: torchrun(options, [folder]), *theirs, "torchrun")
    theirs = (ALL_RANKS, CONTINUES, CONTINUES, samples_of_batches)
    yield System("torchft", lambda _: Replicas(options.python, FROM_README), *theirs)
    yield System("torchft, README", lambda _: Replicas(options.python, FROM_README), *theirs, "torchft")
    yield System("torchft, 1 s", lambda _: Replicas(options.python, SHORT), *theirs, "torchft")


def wait(condition, seconds, what, training):
    until = time.monotonic() + seconds
    while not condition():
        if training.has_ended() or time.monotonic() > until:
            last = "\n".join(line for _, line in training.lines()[-20:])
            raise RuntimeError(f"{what}\n{last}")
        time.sleep(0.02)


def sleep_until(at):
    time.sleep(max(0.0, at - time.monotonic()))


def kill_one(training, chance):
    """Kills one rank, and returns the time."""
    wait(training.ranks, 60, "no rank to kill", training)
    kill(chance.choice(sorted(training.ranks())))
    return time.monotonic()


def measure(system, options, chance):
    """Returns samples/s of a training in a fixed time, and the seconds from each kill to the next finished step."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        training = system.start(folder)
        lines = training.lines
        try:
            started = lambda: any(system.first.search(line) for _, line in lines())  # noqa: E731
            wait(started, 180, f"{system.name}: no first step", training)
            begin, before, killed = time.monotonic(), system.samples(training, folder), []
            for nth in range(int(options.seconds / options.kill_every) if system.base else 0):
                sleep_until(begin + (nth + 0.5) * options.kill_every)
                killed.append(kill_one(training, chance))
            sleep_until(begin + options.seconds)
            if killed:
                # Otherwise the steps that the last kill takes back would count.
                recovered = lambda: system.recovered(lines(), killed[-1])  # noqa: E731
                wait(recovered, 120, f"{system.name}: no step after a kill", training)
            samples = system.samples(training, folder) - before
            return samples / options.seconds, [system.recovered(lines(), at) - at for at in killed]
        finally:
            training.end()


def spread(values, digits):
    """Returns median and range."""
    if not values:
        return "–"
    numbers = statistics.median(values), min(values), max(values)
    return "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(*numbers, d=digits)


def goodput(options):
    chance, every, speeds, shares, times = random.Random(options.seed), [1000], {}, {}, {}
    for nth in range(options.rounds):
        for system in systems(options, every):
            if options.only and not any(re.fullmatch(only, system.name) for only in options.only):
                continue
            speed, deaths = measure(system, options, chance)
            say(f"{nth + 1}: {system.name}: {speed:.0f} samples/s; {' '.join(f'{death:.2f}' for death in deaths)}")
            speeds.setdefault(system.name, []).append(speed)
            times.setdefault(system.name, []).extend(deaths)
            if system.name == "hexagram":
                every[0] = max(1, round(SAVE_EVERY * speed / RANKS / BATCH))
            elif system.base in speeds:
                shares.setdefault(system.name, []).append(100 * speed / speeds[system.base][-1])
    table = [
        [name, spread(speed, 0), spread(shares.get(name), 0), str(len(times[name])), spread(times[name], 2)]
        for name, speed in speeds.items()
    ]
    show(["", "samples/s", "goodput, %", "kills", "s to the next finished step"], table)


def run(options, folder, launcher, arguments, kill_every=None, chance=None):
    """Runs a training to its end, with kills; returns its last epoch and summary, and the number of kills."""
    training = train(options, folder, launcher, arguments)
    kills = 0
    try:
        wait(lambda: figures(folder, "epoch"), 120, "no first epoch", training)
        at = time.monotonic()
        while not training.has_ended():
            if kill_every and time.monotonic() >= at + (kills + 1) * kill_every and training.ranks():
                kill_one(training, chance)
                kills += 1
            time.sleep(0.02)
        if training.launcher.process.returncode != 0:
            last = "\n".join(line for _, line in training.lines()[-20:])
            raise RuntimeError(f"{' '.join(arguments)}\n{last}")
        return figures(folder, "epoch"), figures(folder, "summary"), kills
    finally:
        training.end()


def run_in_scratch(*arguments, **keywords):
    options, launcher, train_arguments = arguments
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        given = [argument.replace("FOLDER", folder) for argument in train_arguments]
        return run(options, folder, launcher, given, **keywords)


def epochs_in(options, seconds, arguments):
    """Returns the number of epochs that take so long."""
    epoch, _, _ = run_in_scratch(options, [], [*arguments, "--epochs", "20"])
    return max(20, round(20 * seconds / epoch["seconds"]))


def accuracy(options):
    listed = subprocess.run([f"{options.target}/release/examples/train", "--algorithm", "list"], capture_output=True)
    names = options.only or re.findall(r"^ *([a-z][a-z0-9-]+)", listed.stdout.decode(), re.M)
    chance, table = random.Random(options.seed), []
    elastic = ["--elastic", "2", "--max-restarts", MANY]
    for name in names:
        chosen = ["--algorithm", name]
        try:
            epochs = epochs_in(options, options.seconds, chosen)
            chosen += ["--epochs", str(epochs)]
            plain = [run_in_scratch(options, [], [*chosen, "--seed", str(seed)])[1] for seed in range(3)]
            plain = [100 * summary["test_accuracy"] for summary in plain]
            given = {"kill_every": options.kill_every, "chance": chance}
            _, summary, kills = run_in_scratch(options, elastic, chosen, **given)
            killed = 100 * summary["test_accuracy"]
            within = "yes" if killed >= min(plain) - (max(plain) - min(plain)) else "no"
            row = [name, str(epochs), spread(plain, 2), f"{killed:.2f}", str(kills), within]
        except (RuntimeError, KeyError) as error:
            say(f"{name}: {error}")
            row = [name, "failed", "", "", "", "no"]
        say(" | ".join(row))
        table.append(row)
    show(["algorithm", "epochs", "accuracy of 3 seeds, %", "with kills, %", "kills", "within the spread"], table)


def pause(options):
    saves = ["--checkpoint", "FOLDER/saved", "--every", "100"]
    variants = [("checkpoint every 100 steps", [], saves), ("elastic", ["--elastic", "2"], [])]
    table = []
    for task in ["digits", "text"]:
        chosen = ["--task", task]
        chosen += ["--epochs", str(epochs_in(options, options.seconds, chosen))]
        for name, launcher, arguments in variants:
            pairs = []
            for nth in range(options.rounds):
                # The first of a pair alternates, too.
                order = [([], []), (launcher, arguments)][:: 1 if nth % 2 == 0 else -1]
                taken = [run_in_scratch(options, with_, [*chosen, *more])[0]["seconds"] for with_, more in order]
                pairs.append(taken if nth % 2 == 0 else taken[::-1])
                say(f"{task}, {name}: {pairs[-1][0]:.2f} s without, {pairs[-1][1]:.2f} s with")
            ratios = [100 * (given / plain - 1) for plain, given in pairs]
            table.append([task, name, spread([plain for plain, _ in pairs], 2), spread(ratios, 1)])
    show(["task", "option", "s without", "longer with it, %"], table)


def say(text):
    print(f"recovery.py: {text}", file=sys.stderr, flush=True)


def show(header, rows):
    """Prints the command and a table in Markdown."""
    print(f"\n`python3 bench/recovery.py {shlex.join(sys.argv[1:])}`\n")
    for row in [header, ["-"] * len(header), *rows]:
        print(f"| {' | '.join(row)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--accuracy", action="store_true", help="accuracy with kills against without")
    mode.add_argument("--pause", action="store_true", help="cost of checkpoints and --elastic without kills")
    parser.add_argument("--target", default=str(ROOT / "target"), help="folder of cargo's builds [%(default)s]")
    parser.add_argument("--python", help="Python with torch and torchft")
    parser.add_argument("--seconds", type=float, help="time of each training [120; accuracy 16, pause 6]")
    parser.add_argument("--kill-every", type=float, help="seconds between kills [15; accuracy 5]")
    parser.add_argument("--rounds", type=int, help="repetitions [1; pause 5]")
    parser.add_argument("--seed", type=int, default=0, help="chooses the ranks that are killed")
    parser.add_argument("--only", action="append", help="only this system (a regular expression) or algorithm; may be repeated")
    options = parser.parse_args()
    defaults = (16, 5, 1) if options.accuracy else (6, 0, 5) if options.pause else (120, 15, 1)
    # So that a training in progress ends, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.seconds = options.seconds or defaults[0]
    options.kill_every = options.kill_every or defaults[1]
    options.rounds = options.rounds or defaults[2]
    (accuracy if options.accuracy else pause if options.pause else goodput)(options)


if __name__ == "__main__":
    main()
