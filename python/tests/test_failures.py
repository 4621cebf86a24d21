"""Ranks that die, disagree, are interrupted, fork, or end at the wrong time: always a named error, never a hang."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest

import hexagram
from hexagram.testing import RankFailed, alone, outcomes_of, spawn


def die(world):
    comm = world.communicator
    comm.barrier()
    pids = numpy.zeros(comm.size, "int64")
    comm.all_gather(numpy.array([os.getpid()]), pids)
    if comm.rank == 1:
        # Not before the others have reached it: they may still be processing the gathered values.
        for other in range(comm.size):
            if other != comm.rank:
                comm.recv(numpy.zeros(1), other)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hexagram.PeerFailed) as caught:
        comm.send(numpy.zeros(1), 1)
        while True:
            comm.all_reduce(numpy.ones(1000))
    error = caught.value
    assert (error.rank, error.pid) == (1, pids[1]) and error.host and "rank 1" in str(error)
    with pytest.raises(hexagram.Error):
        comm.barrier()
    return error.rank


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_is_named(transport):
    outcomes = outcomes_of(3, die, transport=transport)
    assert [outcome.value for outcome in outcomes] == [1, None, 1], outcomes
    assert outcomes[1].exitcode == -signal.SIGKILL


def stop(world):
    world.communicator.barrier()
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        world.communicator.all_reduce(numpy.ones(1000))


def test_a_stopped_rank_is_killed_once_another_has_told_of_it():
    with pytest.raises(RankFailed, match="rank 1 raised") as caught:
        spawn(2, stop, deadline=10.0)
    # Its own error is the last line, and names the stopped rank.
    assert re.match(r"hexagram\.\S*: rank 0 ", str(caught.value).splitlines()[-1])


def disagree(world):
    comm = world.communicator
    with pytest.raises(hexagram.Error) as caught:
        comm.all_reduce(numpy.ones(5 if comm.rank == 0 else 6, "float32"))
    error = caught.value
    assert "ranks disagree about operation #0" in str(error)
    if isinstance(error, hexagram.Mismatch):
        return error.rank, error.sequence, error.operation, error.theirs
    # The other rank has noticed it first, and reported it.
    assert isinstance(error, hexagram.PeerFailed) and error.rank == 1 - comm.rank
    return None


def test_ranks_that_disagree_learn_what_the_other_calls():
    five, six = "all_reduce(5 × f32, sum)", "all_reduce(6 × f32, sum)"
    expected = [(1, 0, five, six), (0, 0, six, five)]
    learned = spawn(2, disagree, transport="tcp")
    assert any(learned)
    for rank in range(2):
        assert learned[rank] in (None, expected[rank])


def late(world):
    comm = world.communicator
    if comm.rank == 0:
        with pytest.raises(hexagram.DeadlineExceeded) as caught:
            comm.barrier(timeout=0.3)
        assert isinstance(caught.value, TimeoutError)
        return caught.value.operation.split("(")[0], caught.value.sequence
    with pytest.raises(hexagram.Error):
        # Begins only after the other rank has failed.
        comm.recv(numpy.zeros(1), 0)
    return None


def test_an_operation_has_a_deadline_of_its_own():
    assert spawn(2, late)[0] == ("barrier", 0)


def interrupted(world):
    comm = world.communicator
    if comm.rank == 1:
        # Sends only after the other rank was interrupted.
        signalled = numpy.zeros(1)
        comm.recv(signalled, 0)
        comm.send(numpy.ones(1), 0)
        return signalled[0].item()
    answer = numpy.zeros(1)
    receive = comm.recv(answer, 1, async_op=True)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        receive.wait()
    comm.send(numpy.full(1, 7.0), 1)
    # The receive continues after its wait was interrupted.
    assert receive.wait()
    return answer[0].item()


def test_ctrl_c_ends_a_wait():
    assert spawn(2, interrupted) == [1.0, 7.0]


def fork(world):
    comm = world.communicator
    comm.barrier()
    child = os.fork()
    if child == 0:
        try:
            comm.all_reduce(numpy.ones(1))
        except hexagram.UsageError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    total = numpy.ones(1)
    comm.all_reduce(total)
    return os.waitstatus_to_exitcode(status), total[0].item()


def test_a_forked_child_is_refused_and_its_parent_goes_on():
    assert spawn(2, fork) == [(0, 2.0)] * 2


def die_with_a_child(world, told):
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    Path(told).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_died_is_not_waited_for_while_a_child_of_it_runs(tmp_path):
    told = tmp_path / "child"
    (outcome,) = outcomes_of(1, die_with_a_child, str(told))
    assert outcome.exitcode == -signal.SIGKILL
    child = int(told.read_text())
    assert runs(child)
    os.kill(child, signal.SIGKILL)


GARBAGE = {
    "not contiguous": lambda: numpy.ones((4, 4))[:, 1],
    "read-only": lambda: b"123",
    "type `Zf`": lambda: numpy.ones(3, "complex64"),
    "type `H`": lambda: numpy.ones(3, "uint16"),
    "type `>f`": lambda: numpy.ones(3, ">f4"),
    "neither DLPack": lambda: 5,
    "unknown reduction": lambda: None,
}


def refused(world):
    comm = world.communicator
    for expected, make in GARBAGE.items():
        with pytest.raises(hexagram.UsageError) as caught:
            if make() is None:
                comm.all_reduce(numpy.ones(1), "average")
            else:
                comm.all_reduce(make())
        message = str(caught.value)
        assert expected in message and ";" in message and "\n" not in message, message
    with pytest.raises(hexagram.UsageError, match="rank 7 does not exist"):
        comm.broadcast(numpy.ones(1), root=7)
    with pytest.raises(hexagram.UsageError, match="unknown codec"):
        hexagram.Encoding("toq-k")
    with pytest.raises(hexagram.UsageError, match="unknown graph"):
        comm.gossip(numpy.ones(1), "rung", 0)
    # Nothing of it was sent.
    total = numpy.ones(1)
    comm.all_reduce(total)
    assert total[0] == 1
    world.close()
    with pytest.raises(hexagram.UsageError, match="closed"):
        comm.barrier()


def test_what_cannot_be_is_refused_in_one_line():
    spawn(1, refused)


def test_a_number_that_cannot_be_is_refused_by_its_role():
    with alone() as world:
        comm, one = world.communicator, numpy.ones(1)
        for call, role in (
            (lambda: comm.broadcast(one, -1), "-1 cannot be used as a rank; use ranks from 0"),
            (lambda: comm.reduce(one, root=-1), "rank"),
            (lambda: comm.send(one, -1), "rank"),
            (lambda: comm.send(one, 0, tag=1 << 32), "4294967296 cannot be used as a tag"),
            (lambda: comm.subgroup([0, -1]), "rank"),
            (lambda: comm.all_gather_v(one, one, [-1]), "count"),
            (lambda: comm.gossip(one, "ring", -1), "count"),
        ):
            with pytest.raises(hexagram.UsageError, match=role):
                call()


def name_transport(world):
    return world.transport


def test_a_variable_names_the_transport_where_the_program_does_not(monkeypatch):
    monkeypatch.setenv("HEXAGRAM_TRANSPORT", "tcp")
    assert spawn(2, name_transport) == ["tcp"] * 2
    assert spawn(2, name_transport, transport="shm") == ["shm"] * 2
    monkeypatch.setenv("HEXAGRAM_TRANSPORT", "pigeon")
    with pytest.raises(hexagram.SetupError, match="HEXAGRAM_TRANSPORT=pigeon"):
        alone()


def joined(world):
    first = hexagram.joined()
    with alone() as other:
        assert hexagram.joined() is first is world
    assert other.is_closed
    world.close()
    return hexagram.joined()


def test_the_world_that_was_joined_is_known_until_it_is_left():
    assert hexagram.joined() is None
    assert spawn(2, joined) == [None, None]


def never_end(world):
    threading.Event().wait()


def test_ranks_of_a_test_have_a_limit_of_time():
    for start in (spawn, outcomes_of):
        with pytest.raises(TimeoutError, match="within 3.5 s, and were killed"):
            start(2, never_end, timeout=3.5)


class Unreadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return fail_to_read, ()


def fail_to_read():
    raise ValueError("not for you")


def return_what_cannot_travel(world, unreadable):
    return Unreadable() if unreadable else lambda: None


@pytest.mark.parametrize("unreadable, reason", [(False, "pickle"), (True, "ValueError: not for you")])
def test_a_result_that_cannot_travel_is_an_error_with_its_reason(unreadable, reason):
    with pytest.raises(RankFailed, match=f"(?s)rank 0 raised:.*{reason}"):
        spawn(1, return_what_cannot_travel, unreadable)


def refused_tensors(world):
    import torch

    tensors = {
        "not contiguous": torch.ones(2, 3).t(),
        "complex64": torch.ones(3, dtype=torch.complex64),
        "gradient": torch.ones(3, requires_grad=True),
        "layout": torch.ones(3).to_sparse(),
    }
    for expected, tensor in tensors.items():
        with pytest.raises(hexagram.UsageError, match=expected):
            world.communicator.all_reduce(tensor)


def test_tensors_that_cannot_be_are_refused():
    pytest.importorskip("torch")
    spawn(1, refused_tensors, timeout=500)


ENDS = """
import numpy, hexagram, sys
from hexagram.testing import spawn
def leave(world):
    # Neither waited for nor kept, at the end of the interpreter.
    for _ in range(20):
        world.communicator.all_reduce(numpy.ones(10_000), async_op=True).on_done(lambda work: None)
if __name__ == "__main__":
    spawn(2, leave)
    print("ended")
"""


def test_the_interpreter_ends_with_operations_in_flight(tmp_path):
    program = tmp_path / "ends.py"
    program.write_text(ENDS)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


RAISES = """
import hexagram, numpy
world = hexagram.init()
if world.rank == 1:
    raise ValueError("bad sample")
try:
    world.communicator.all_reduce(numpy.ones(3))
except hexagram.PeerFailed as error:
    print(f"rank {error.rank} {error.cause}", flush=True)
"""


def test_an_uncaught_exception_is_told_to_the_others(two_ranks):
    done = two_ranks(RAISES, 100)
    assert done.returncode == 1
    assert "[1] ValueError: bad sample" in done.stderr, done.stderr
    assert done.stdout == "[0] rank 1 raised ValueError: bad sample\n"


@pytest.mark.parametrize(("level", "is_said"), [(None, True), ("error", False)])
def test_warnings_of_the_library_are_printed(level, is_said):
    # An unknown variable causes one warning; one about a straggler would take 10 s.
    text = "import hexagram; hexagram.init().close()"
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "HEXAGRAM_TYPO": "1"}
    environment = os.environ | place | ({"HEXAGRAM_LOG": level} if level else {})
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0 and ("HEXAGRAM_TYPO" in done.stderr) == is_said, done.stderr


def test_an_exception_without_a_text_is_told_by_its_class(two_ranks):
    inside = "    with world:\n        raise KeyboardInterrupt"
    for raises in ("    raise KeyboardInterrupt", inside):
        done = two_ranks(RAISES.replace('    raise ValueError("bad sample")', raises), 100)
        assert done.stdout == "[0] rank 1 raised KeyboardInterrupt\n", done.stderr


ORPHANS = """
import os, sys, time
from pathlib import Path
from hexagram.testing import spawn

def waits(world, folder):
    new = Path(folder, f"{world.rank}.new")
    new.write_text(str(os.getpid()))
    new.rename(Path(folder, str(world.rank)))
    time.sleep(500)

if __name__ == "__main__":
    spawn(2, waits, sys.argv[1], timeout=500.0)
"""


def runs(pid):
    """Returns whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(holds):
    """Waits until a condition holds; fails after 100 s."""
    last = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.05)


def test_ranks_end_with_the_process_that_started_them(tmp_path):
    program = tmp_path / "orphans.py"
    program.write_text(ORPHANS)
    parent = subprocess.Popen([sys.executable, program, tmp_path])
    files = [tmp_path / str(rank) for rank in range(2)]
    until(lambda: all(file.exists() for file in files))
    pids = [int(file.read_text()) for file in files]
    assert all(map(runs, pids))
    parent.kill()
    parent.wait()
    until(lambda: not any(map(runs, pids)))
