"""Programs of elastic jobs: `python elastic_programs.py NAME FOLDER`."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy
from elastic_job import MOMENTUM, RATE

import hexagram

#: Target of this process: a different number for each.
TARGET = float(os.environ["HEXAGRAM_RANK"]) + 10.0 * hexagram.restarts()


def say(*words):
    """Prints a line in one write."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def joined(world):
    """Reports that this rank begins a generation."""
    targets = numpy.zeros(world.size)
    world.communicator.all_gather(numpy.array([TARGET]), targets)
    say("joined", world.generation, world.rank, os.getpid(), *targets)


def stops(folder):
    """Returns 1 if the test asks for the end."""
    return float((Path(folder) / "stop").exists())


def train(world, state, folder):
    """Minimizes the mean square distance to the targets of all members."""
    assert world.deadline == 100.0
    comm = world.communicator
    states = numpy.zeros((world.size, 3))
    comm.all_gather(state, states)
    # A step that failed may have ended on some of the ranks.
    state[:] = max(states.tolist())
    joined(world)
    while True:
        gradient = numpy.array([state[1] - TARGET, stops(folder)])
        comm.all_reduce(gradient, "mean")
        velocity = MOMENTUM * state[2] + gradient[0]
        state[:] = state[0] + 1, state[1] - RATE * velocity, velocity
        say("step", world.generation, int(state[0]), float(state[1]))
        if gradient[1] > 0:
            comm.barrier()
            return


def quadratic(folder):
    """Trains with the members that are left or arrive."""
    hexagram.as_member(hexagram.init(deadline=100.0), train, numpy.zeros(3), folder)


def refused(call, words):
    """Checks that a call raises `UsageError` with these words."""
    try:
        call()
    except hexagram.UsageError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words} was expected")


def old_objects(folder):
    """Uses everything of a generation after it has ended."""
    world = hexagram.init()
    assert (world.generation, world.changed, hexagram.joined()) == (1, False, world)
    comm, service, background = world.communicator, world.service(), world.background()
    group, work = comm.split(0), None
    if world.rank == 0:
        for other in range(1, world.size):
            comm.recv(numpy.zeros(1), other)
        # The others do not take part.
        work = comm.all_reduce(numpy.ones(3), async_op=True)
    else:
        with contextlib.suppress(hexagram.MembershipChanged):
            comm.send(numpy.zeros(1), 0)
        while not world.changed:
            time.sleep(0.001)
    following = world.next()
    assert (following.generation, following.size, hexagram.joined()) == (2, 3, following)
    assert world.is_closed and not following.is_closed and following.rank == comm.rank
    if work is not None:
        error = work.exception()
        assert isinstance(error, hexagram.MembershipChanged) and error.generation == 1, error
    ended = "this generation of the world has ended; use the world that `World.next` returns"
    for call in (comm.barrier, group.barrier, world.next, world.service, lambda: world.rank, lambda: comm.split(0)):
        refused(call, ended)
    refused(lambda: service.window(numpy.zeros(3)), "closed")
    refused(lambda: background.mean(numpy.zeros(3)), "closed")
    for one in (service, background, world):
        one.close()
    ones = numpy.ones(3)
    following.communicator.all_reduce(ones)
    assert ones.tolist() == [3.0] * 3
    following.communicator.barrier()
    say("done")


def held():
    """Returns the numbers of threads, descriptors and shared mappings of this process."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line or "hexagram-" in line]
    return [len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), len(maps)]


def turns(folder):
    """Goes through generations, and checks that nothing is left of them."""
    world, before = hexagram.init(), []
    while world.generation < 16:
        with contextlib.suppress(hexagram.MembershipChanged, hexagram.Poisoned):
            service, background, group = world.service(), world.background(), world.communicator.split(0)
            service.window(numpy.zeros(3))
            background.mean(numpy.zeros(3))
            group.barrier()
        world = world.next()
        if world.generation == 4:
            before = held()
    # Threads that have ended may stay in the system for a moment.
    until = time.monotonic() + 30
    while any(now > then for now, then in zip(held(), before, strict=True)) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(now <= then for now, then in zip(held(), before, strict=True)), (held(), before)
    say("done")


def interrupted(folder):
    """Is interrupted while it waits for a rank that does not join the next generation."""
    world = hexagram.init()
    if world.rank == 1:
        with contextlib.suppress(hexagram.MembershipChanged):
            world.communicator.send(numpy.zeros(1), 0)
        time.sleep(1000)
    world.communicator.recv(numpy.zeros(1), 1)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    ticks = []
    ticker = threading.Thread(target=lambda: [ticks.append(time.sleep(0.01)) for _ in range(20)])
    ticker.start()
    try:
        world.next()
    except KeyboardInterrupt:
        ticker.join()
        say("interrupted", world.is_closed, len(ticks))
    time.sleep(1000)


if __name__ == "__main__":
    programs = {"quadratic": quadratic, "old_objects": old_objects, "turns": turns, "interrupted": interrupted}
    programs[sys.argv[1]](sys.argv[2])
