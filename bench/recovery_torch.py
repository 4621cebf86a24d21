"""The digits in PyTorch, as `bench/recovery.py` trains them: under torchrun with DDP over gloo, or as a replica of torchft.

`python3 bench/recovery_torch.py torchrun [FOLDER]` is a rank that torchrun has started. With a folder, rank 0 saves a checkpoint
every 2 s, and each rank resumes from it. `python3 bench/recovery_torch.py torchft NUMBER` is a replica of one process, whose
lighthouse is in TORCHFT_LIGHTHOUSE. Model and batch are those of `train`: 64-128-10, batch 16 a rank, plain SGD, one thread.

The output is `continues at step S with N ranks: B batches` after the first step among new members, and `B batches` every 0.1 s.
B is the number of batches in the model, of all ranks."""
import gzip
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

DATA = Path(__file__).parent.parent / "lab/data/digits.csv.gz"
RANKS, BATCH, SAVE_EVERY, SAY_EVERY = 4, 16, 2.0, 0.1


class Samples:
    """The training images, and the batch of each rank and step, in a new order in each epoch."""

    def __init__(self):
        with gzip.open(DATA, "rt") as lines:
            rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
        # Every fifth image is held out, as in `train`.
        rows = rows[[at for at in range(len(rows)) if at % 5 != 4]]
        self.images, self.digits = rows[:, :64] / 16, rows[:, 64].long()
        self.steps, self.epoch, self.order = len(rows) // (RANKS * BATCH), None, None

    def batch(self, step, rank):
        epoch, at = divmod(step, self.steps)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, torch.randperm(len(self.digits), generator=torch.Generator().manual_seed(epoch))
        chosen = self.order[(at * RANKS + rank) * BATCH :][:BATCH]
        return self.images[chosen], self.digits[chosen]


class Output:
    """Prints the progress, at most ten times a second."""

    def __init__(self):
        self.members, self.said = None, 0.0

    def step(self, step, batches, members, ranks):
        """Reports a finished step; `members` is anything that differs from one set of members to the next."""
        if members != self.members:
            self.members = members
            print(f"continues at step {step} with {ranks} ranks: {batches} batches", flush=True)
        elif time.monotonic() - self.said >= SAY_EVERY:
            self.said = time.monotonic()
            print(f"{batches} batches", flush=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def save(file, model, optimizer, step):
    """Saves a checkpoint, which replaces the last one when it is whole."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{file}.new")
    os.replace(f"{file}.new", file)


def torchrun(folder):
    dist.init_process_group("gloo")
    model, samples, output, step = network(), Samples(), Output(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    file = Path(folder) / "checkpoint.pt" if folder else None
    if file and file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    replica = nn.parallel.DistributedDataParallel(model)
    saved_at = time.monotonic()
    while True:
        images, digits = samples.batch(step, dist.get_rank())
        optimizer.zero_grad()
        nn.functional.cross_entropy(replica(images), digits).backward()
        optimizer.step()
        step += 1
        if dist.get_rank() > 0:
            continue
        output.step(step, step * RANKS, True, dist.get_world_size())
        if file and time.monotonic() - saved_at >= SAVE_EVERY:
            save(file, model, optimizer, step)
            saved_at = time.monotonic()


def torchft(number):
    # As train_ddp.py of torchft 0.2.0 does it, with a store in this process instead of torchrun's.
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model, samples, output = network(), Samples(), Output()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"digits_{number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="localhost",
        timeout=timedelta(seconds=30),
    )
    replica, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    while True:
        step = manager.current_step()
        images, digits = samples.batch(step, number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(replica(images), digits).backward()
        optimizer.step()
        if manager.current_step() > step:
            # A replica takes part some steps after it has joined the quorum.
            ranks = manager.num_participants()
            output.step(step + 1, manager.batches_committed(), (manager._quorum_id, ranks), ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "torchrun":
        torchrun(sys.argv[2] if len(sys.argv) > 2 else None)
    else:
        torchft(int(sys.argv[2]))
