"""Programs of ranks in the tests of training: each runs as a rank in a separate process."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import digits
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hexagram
from hexagram.torch import regroup
from hexagram.torch.algorithm import Algorithm
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.hooks import hook
from hexagram.torch.snapshots import Snapshots
from hexagram.torch.sync_batch_norm import sync_batch_norm


def flat(net: nn.Module) -> torch.Tensor:
    """Returns a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def same(world: hexagram.World, tensor: torch.Tensor) -> bool:
    """Returns whether all ranks have the same tensor, bit for bit."""
    first = tensor.detach().clone()
    world.communicator.broadcast(first, 0)
    equal = torch.tensor([int(torch.equal(tensor, first))], dtype=torch.int32)
    world.communicator.all_reduce(equal, "min")
    return bool(equal.item())


def identical(world: hexagram.World, net: nn.Module) -> bool:
    """Returns whether all ranks have the same parameters, bit for bit."""
    return same(world, flat(net))


def gloo(world: hexagram.World, folder: str) -> None:
    """Opens a process group of Gloo with the same ranks."""
    torch.set_num_threads(1)
    store = f"file://{folder}/gloo"
    dist.init_process_group("gloo", init_method=store, rank=world.rank, world_size=world.size)


def steps(net, optimizer, world, count, loss_of=None, accumulate=1):
    """Makes steps on the digits, each with `accumulate` passes."""
    images, labels, _, _ = digits.load()
    own = iter(digits.batches(world.rank, world.size, 1000))
    for _ in range(count):
        optimizer.zero_grad()
        for at in range(accumulate):
            index = next(own)
            last = at + 1 == accumulate
            with torch.enable_grad() if last or not hasattr(net, "no_sync") else net.no_sync():
                loss = cross_entropy(net(images[index]), labels[index])
                (loss if loss_of is None else loss_of(loss)).backward()
        optimizer.step()


def made(seed=0, momentum=0.9):
    """Returns a net and a PyTorch optimizer for it."""
    net = digits.model(seed)
    return net, torch.optim.SGD(net.parameters(), 0.05, momentum=momentum)


def beside_ddp(world, folder):
    """Trains with DDP on Gloo, with the engine and with a hook, with and without accumulation: equal, bit for bit?"""
    gloo(world, folder)
    equal = []
    for accumulate in (1, 3):
        net, optimizer = made()
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.01)
        steps(ddp, optimizer, world, 8, accumulate=accumulate)
        expected = flat(net)

        for order in ("observed", "listed"):
            # Different initial parameters on rank 1, which the engine and DDP replace by those of rank 0.
            net, optimizer = made(seed=world.rank)
            small = {"first_bucket_bytes": 1 << 10, "bucket_bytes": 1 << 10}
            ours = DataParallel(net, optimizer, process_group=world, order=order, **small)
            steps(ours, optimizer, world, 8, accumulate=accumulate)
            equal.append(torch.equal(flat(net), expected))
            views = [
                parameter.grad.data_ptr() == view.data_ptr()
                for parameter, view in zip(net.parameters(), ours._views.gradients, strict=True)
            ]
            equal.append(all(views))

        net, optimizer = made(seed=world.rank)
        hooked = DistributedDataParallel(net, bucket_cap_mb=0.01)
        hooked.register_comm_hook(*hook("gradient-allreduce", process_group=world))
        steps(hooked, optimizer, world, 8, accumulate=accumulate)
        equal.append(torch.equal(flat(net), expected))
    dist.destroy_process_group()
    return equal


def hooks(world, folder):
    """Trains with hooks of several algorithms; returns accuracies, and errors of those that cannot be hooks."""
    gloo(world, folder)
    images, labels, test_images, test_labels = digits.load()
    told = {}
    for algorithm in ("bytegrad", "powersgd(rank=4)", "topk-ef(fraction=5%)", "local-sgd", "magic"):
        net = digits.model(world.rank)
        optimizer = torch.optim.SGD(net.parameters(), 0.15)
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.01)
        try:
            ddp.register_comm_hook(*hook(algorithm, optimizer=optimizer, process_group=world))
        except hexagram.UsageError as error:
            told[algorithm] = str(error)
            continue
        for index in digits.batches(world.rank, world.size, 12):
            optimizer.zero_grad()
            cross_entropy(ddp(images[index]), labels[index]).backward()
            optimizer.step()
        told[algorithm] = (digits.accuracy(net, test_images, test_labels), identical(world, net))
    dist.destroy_process_group()
    return told


def hook_states(world, folder):
    """Trains with hooks, saves after four steps, and continues in a new model; returns whether the result is the same."""
    gloo(world, folder)
    images, labels, _, _ = digits.load()
    equal = {}

    def hooked(net, algorithm, same_buckets=True):
        optimizer = torch.optim.SGD(net.parameters(), 0.15)
        ddp = DistributedDataParallel(net, find_unused_parameters=same_buckets, bucket_cap_mb=0.01)
        state, function = hook(algorithm, optimizer=optimizer, process_group=world)
        ddp.register_comm_hook(state, function)
        return ddp, optimizer, state

    def trained(ddp, optimizer, batches):
        for index in batches:
            optimizer.zero_grad()
            cross_entropy(ddp(images[index]), labels[index]).backward()
            optimizer.step()

    batches = list(islice(digits.batches(world.rank, world.size, 1), 8))
    for algorithm in ("powersgd(rank=4,start=1)", "topk-ef(fraction=5%)"):
        net = digits.model(0)
        ddp, optimizer, state = hooked(net, algorithm)
        trained(ddp, optimizer, batches[:4])
        saved = BytesIO()
        torch.save((net.state_dict(), state.state_dict()), saved)
        trained(ddp, optimizer, batches[4:])

        saved.seek(0)
        model, of_hook = torch.load(saved)
        again = digits.model(1)
        again.load_state_dict(model)
        ddp, optimizer, state = hooked(again, algorithm)
        state.load_state_dict(of_hook)
        trained(ddp, optimizer, batches[4:])
        equal[algorithm] = torch.equal(flat(net), flat(again))
        # DDP recreates these buckets.
        ddp, optimizer, state = hooked(digits.model(1), algorithm, same_buckets=False)
        trained(ddp, optimizer, batches[:4])
        saved = state.state_dict()
        ddp, optimizer, state = hooked(digits.model(1), algorithm, same_buckets=False)
        state.load_state_dict(saved)
        trained(ddp, optimizer, batches[4:])
        equal[f"{algorithm} with other buckets"] = state.state_dict()["facts"]["step"] == "8"
        try:
            state.load_state_dict({"facts": {}})
        except hexagram.UsageError as error:
            equal[str(error)] = True
    dist.destroy_process_group()
    return equal


def first_losses(world, names, count):
    """Trains with each algorithm; returns the first losses (mean over ranks), and whether replicas are identical."""
    torch.set_num_threads(1)
    images, labels, _, _ = digits.load()
    told = {}
    for name in names:
        net = digits.net()
        ours, optimizer = digits.replica(net, name, world)
        losses = []
        for index in islice(digits.order(world.rank, world.size, 0), count):
            optimizer.zero_grad()
            loss = cross_entropy(ours(images[index]), labels[index])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = torch.tensor(losses, dtype=torch.float64)
        world.communicator.all_reduce(mean, "mean")
        ours.settle()
        told[name] = (mean.tolist(), identical(world, net) or not ours._traits["identical"])
        ours.close()
    return told


def every_algorithm(world, names, epochs):
    """Trains the digits with each algorithm; returns by name the accuracy of the mean, and identical replicas."""
    torch.set_num_threads(1)
    images, labels, test_images, test_labels = digits.load()
    told = {}
    for name in names:
        net = digits.net()
        ours, optimizer = digits.replica(net, name, world)
        for epoch in range(epochs):
            for index in digits.order(world.rank, world.size, epoch):
                optimizer.zero_grad()
                cross_entropy(ours(images[index]), labels[index]).backward()
                optimizer.step()
        ours.settle()
        same = identical(world, net)
        ours.average()
        told[name] = (digits.accuracy(net, test_images, test_labels), same or not ours._traits["identical"])
        ours.close()
    return told


def resumed(world, algorithm, optimizer):
    """Trains 7 steps, saves, trains 6 more; does the same again from the checkpoint: equal, bit for bit?"""
    torch.set_num_threads(1)

    def start():
        net = digits.model()
        own = torch.optim.Adam(net.parameters(), 0.01) if optimizer == "torch" else optimizer
        return net, DataParallel(net, own, algorithm, learning_rate=0.01, process_group=world)

    net, ours = start()
    steps(ours, ours.optimizer, world, 7)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(ours.checkpoint(), file.name)
        steps(ours, ours.optimizer, world, 6)
        ours.settle()
        again_net, again = start()
        steps(again, again.optimizer, world, 2)
        again.restore(torch.load(file.name))
    assert again.steps == 7
    steps(again, again.optimizer, world, 6)
    again.settle()
    return torch.equal(flat(net), flat(again_net))


class Branches(nn.Module):
    """A model with two branches, one of which is used in a pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Linear(4, 1)
        self.right = nn.Linear(4, 1)

    def forward(self, x, left):
        """Returns one branch of x."""
        return (self.left if left else self.right)(x)


def unused(world):
    """Uses one branch on each rank, with and without permission: gradients, and the error."""
    net = Branches()
    ours = DataParallel(net, torch.optim.SGD(net.parameters(), 1.0), process_group=world, unused="zero")
    ours(torch.ones(1, 4), world.rank == 0).backward()
    gradients = [net.left.bias.grad.item(), net.right.weight.grad.tolist()]
    ours.close()
    net = Branches()
    try:
        # The error of the other rank may arrive before that of this one.
        DataParallel(net, torch.optim.SGD(net.parameters(), 1.0), process_group=world)(
            torch.ones(1, 4), True
        ).backward()
    except hexagram.Error as error:
        return gradients, str(error)
    return gradients, None


def mixed_precision(world):
    """Trains with autocast and GradScaler, with an overflow; with the scale of the engine; and a model of bfloat16."""
    torch.set_num_threads(1)
    told = {}
    trained = []
    for kind, algorithm in (("rust", "local-sgd(period=1)"), ("python", LocalSgd(1))):
        net, optimizer = made(momentum=0.0)
        ours = DataParallel(net, optimizer, algorithm, process_group=world)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = net_loss(ours, world, step)
            # Every rank overflows once, in different steps: others make their steps meanwhile.
            scaler.scale(loss * (float("inf") if step == 1 + world.rank else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        told[kind] = (ours.steps, scaler.get_scale(), bool(flat(net).isfinite().all()), identical(world, net))
        trained.append(flat(net))
        ours.close()
    told["python as rust"] = torch.equal(*trained)

    net, optimizer = made(momentum=0.0)
    ours = DataParallel(net, "sgd", learning_rate=0.05, process_group=world, loss_scale=2.0**10)
    before = flat(net)
    overflows = []
    for step in range(3):
        ours.scale_loss(net_loss(ours, world, step) * (float("inf") if step == 1 and world.rank == 0 else 1)).backward()
        overflows.append(ours.overflowed)
        ours.optimizer.step()
        ours.optimizer.zero_grad()
    told["loss scale"] = (overflows, ours.steps, identical(world, net), not torch.equal(before, flat(net)))
    ours.close()

    net = digits.model(world.rank).bfloat16()
    ours = DataParallel(net, torch.optim.SGD(net.parameters(), 0.1), "local-sgd(period=2)", process_group=world)
    images, labels, _, _ = digits.load()
    for index in list(digits.batches(world.rank, world.size, 1))[:4]:
        ours.optimizer.zero_grad()
        cross_entropy(ours(images[index].bfloat16()), labels[index]).backward()
        ours.optimizer.step()
    told["bfloat16"] = identical(world, net)
    mean, _ = ours.evaluate_mean(lambda: flat(net))
    told["mean of bfloat16"] = torch.equal(mean, flat(net))
    ours.close()
    return told


def net_loss(net, world, step):
    """Returns the loss of a batch."""
    images, labels, _, _ = digits.load()
    index = torch.arange(16) * world.size + world.rank + 50 * step
    return cross_entropy(net(images[index]), labels[index])


def clipped(world):
    """Trains with the clipping of the engine, with that of PyTorch after the engine, and by hand: norms, and equal?"""
    torch.set_num_threads(1)
    trained = []
    norms = []
    for kind in ("engine", "torch", "by hand"):
        net, optimizer = made(momentum=0.0)
        ours = net
        if kind != "by hand":
            ours = DataParallel(net, optimizer, process_group=world, clip_norm=0.1 if kind == "engine" else None)
        for step in range(4):
            optimizer.zero_grad()
            net_loss(ours, world, step).backward()
            gradients = [parameter.grad for parameter in net.parameters()]
            if kind == "by hand":
                for gradient in gradients:
                    world.communicator.all_reduce(gradient, "mean")
            if kind != "engine":
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            norms.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).norm().item())
            optimizer.step()
        trained.append(flat(net))
    return norms, [torch.allclose(one, trained[-1], rtol=0, atol=1e-7) for one in trained]


def warm(world):
    """Rank 0 starts with an optimizer that has stepped: does rank 1 get its state, options and later parameters?"""
    told = {}
    for kind in ("adam", "momentum"):
        net = digits.model(world.rank)
        rate = 0.01 * (1 + world.rank)
        optimizer = torch.optim.Adam(net.parameters(), rate)
        if kind == "momentum":
            optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
        if world.rank == 0:
            steps(net, optimizer, world, 3)
        ours = DataParallel(net, optimizer, process_group=world)
        state = optimizer.state_dict()["state"]
        values = [value for _, one in sorted(state.items()) for _, value in sorted(one.items())]
        alike = all([same(world, value) for value in values])
        steps(ours, optimizer, world, 3)
        told[kind] = (len(values), alike, optimizer.param_groups[0]["lr"], identical(world, net))
        ours.close()
    return told


def refused(world):
    """Creates invalid engines; returns the error of each, by name."""
    told = {}

    def attempt(name, net, optimizer=None, algorithm="gradient-allreduce", **options):
        optimizer = torch.optim.SGD(net.parameters(), 0.1) if optimizer is None else optimizer
        try:
            DataParallel(net, optimizer, algorithm, process_group=world, **options)
        except hexagram.UsageError as error:
            told[name] = str(error)

    net = digits.model()
    attempt("spelling", net, algorithm="bytegrads")
    attempt("option of an algorithm", net, algorithm="local-sgd(periods=3)")
    attempt("option", net, clip=1.0)
    attempt("value", net, unused="maybe")
    attempt("algorithms", net, algorithm=("bytegrad", "sgp")[world.rank])
    attempt("attributes", net, algorithm=LocalSgd(3 + world.rank))
    attempt("models", digits.model(width=64 + 8 * world.rank))
    kind = (torch.optim.SGD, torch.optim.Adagrad)[world.rank]
    attempt("optimizers", net, kind(net.parameters(), 0.1))
    attempt("groups", net, torch.optim.SGD([*net.parameters()][world.rank :], 0.1))
    attempt("forward hook", net, algorithm=Forward(3), uneven=True)
    return told


def uneven(world):
    """Ranks make 3 and 6 steps: all end, and replicas are identical."""
    told = []
    for algorithm in ("gradient-allreduce", Momentum()):
        net, optimizer = made()
        ours = DataParallel(net, optimizer, algorithm, process_group=world, uneven=True)
        with ours.join():
            steps(ours, optimizer, world, 3 * (1 + world.rank))
        told.append((ours.steps, identical(world, net)))
        ours.close()
    return told


def gossiped(world):
    """Steps on (x − 4·rank)² / 2 with an algorithm that replaces the buffer of the parameters."""
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    ours = DataParallel(net, torch.optim.SGD(net.parameters(), 0.5), "decentralized", process_group=world)
    values = []
    for _ in range(5):
        ours.optimizer.zero_grad()
        ((ours(torch.ones(1, 1)) - 4 * world.rank) ** 2 / 2).sum().backward()
        ours.optimizer.step()
        values.append(net.weight.item())
    return values


def evaluated(world):
    """Evaluates the mean of replicas that differ, and restores them; then switches, settles and averages."""
    net, optimizer = made()
    ours = DataParallel(net, optimizer, "local-sgd(period=100)", process_group=world)
    steps(ours, optimizer, world, 3)
    own = flat(net)
    mean, distance = ours.evaluate_mean(lambda: flat(net))
    expected = own.clone()
    world.communicator.all_reduce(expected, "mean")
    put_back = torch.equal(flat(net), own)
    ours.switch("gradient-allreduce")
    steps(ours, optimizer, world, 2)
    ours.average()
    ours.begin_trace()
    steps(ours, optimizer, world, 2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        report = ours.collect_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"] if file.exists() else []
    # Only rank 0 has the trace of all.
    traced = report, sorted({event["name"] for event in events if event["name"].startswith("step ")})
    return torch.allclose(mean, expected), distance > 0, put_back, ours.algorithm, ours.steps, traced


def normalized(world):
    """Trains a net with batch normalization over all ranks; returns parameters, and running statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 36, 10)).double()
    if world is not None:
        net = sync_batch_norm(net, world)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    ours = net if world is None else DataParallel(net, optimizer, process_group=world)
    images, labels, _, _ = digits.load()
    rank, size = (0, 1) if world is None else (world.rank, world.size)
    for step in range(3):
        index = torch.arange(24)[rank::size] + 24 * step
        optimizer.zero_grad()
        cross_entropy(ours(images[index].double().view(-1, 1, 8, 8)), labels[index]).backward()
        optimizer.step()
    return [value.tolist() for value in net.state_dict().values()]


def killed(world):
    """Rank 1 dies during a training; returns the errors of the others."""
    net, optimizer = made()
    ours = DataParallel(net, optimizer, "bytegrad", process_group=world)
    steps(ours, optimizer, world, 3)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        steps(ours, optimizer, world, 1000)
    except hexagram.PeerFailed as error:
        return error.rank
    return None


class LocalSgd(Algorithm):
    """Local SGD: the mean of the parameters after every `period`-th step."""

    def __init__(self, period: int):
        self.period = period

    def after_step(self, context, state, bucket):
        """Replaces the parameters by their mean."""
        if (context.step + 1) % self.period == 0:
            context.mean(bucket.parameters)


class Momentum(Algorithm):
    """Mean of the gradients, with a momentum that is kept in the state."""

    keeps_replicas_identical = True

    def __init__(self, factor=0.9):
        self.factor = factor

    def state(self, context, bucket):
        """Returns a momentum of zero."""
        return torch.zeros_like(bucket.gradients)

    def gradients_ready(self, context, state, bucket):
        """Steps with a momentum of the mean gradient."""
        context.mean(bucket.gradients)
        state.mul_(self.factor).add_(bucket.gradients)
        bucket.gradients.copy_(state)

    def regroup(self, context, states, bucket):
        """Returns the momentum of any rank."""
        assert all(torch.equal(states[0], state) for state in states)
        return states[0]


class Feedback(Algorithm):
    """A state that differs between ranks, and whose mean stays."""

    def state(self, context, bucket):
        """Returns the number of this rank, in a tensor."""
        return {"values": torch.full_like(bucket.gradients, context.rank), "count": 0}

    def regroup(self, context, states, bucket):
        """Returns the mean, and the ranks of the states."""
        values = [state["values"] for state in states]
        return {"values": sum(values) / len(values), "ranks": [int(value[0]) for value in values]}


class WithoutRegroup(Feedback):
    """A state that no other rank can use."""

    regroup = Algorithm.regroup


class Pair(NamedTuple):
    """A state that cannot be sent."""

    first: int
    second: int


class Tuples(Feedback):
    """A state that is not plain."""

    def state(self, context, bucket):
        """Returns a named tuple."""
        return Pair(1, 2)


class Forward(LocalSgd):
    """Local SGD that averages before the forward pass."""

    after_step = Algorithm.after_step

    def before_forward(self, context, state, bucket):
        """Replaces the parameters by their mean."""
        if context.step % self.period == 0:
            context.mean(bucket.parameters)


def switched(world):
    """Continues with an algorithm in Rust after one in Python, and all in Rust: spellings, and equal?"""
    trained = []
    spellings = []
    for first in (LocalSgd(3), "local-sgd(period=3)"):
        net, optimizer = made()
        ours = DataParallel(net, optimizer, first, process_group=world)
        spellings.append(ours.algorithm)
        steps(ours, optimizer, world, 4)
        ours.switch("gradient-allreduce")
        spellings.append(ours.algorithm)
        steps(ours, optimizer, world, 3)
        trained.append(flat(net))
        ours.close()
    return spellings, torch.equal(*trained)


def in_python(world):
    """Trains with algorithms in Python, with those in Rust, and with a loop by hand: equal?"""
    torch.set_num_threads(1)
    trained = {}
    for kind, algorithm in (("python", LocalSgd(3)), ("rust", "local-sgd(period=3)")):
        net, optimizer = made()
        steps(DataParallel(net, optimizer, algorithm, process_group=world), optimizer, world, 7)
        trained[kind] = flat(net)
    net, optimizer = made()
    images, labels, _, _ = digits.load()
    own = iter(digits.batches(world.rank, world.size, 10))
    for step in range(7):
        optimizer.zero_grad()
        index = next(own)
        cross_entropy(net(images[index]), labels[index]).backward()
        optimizer.step()
        if (step + 1) % 3 == 0:
            for parameter in net.parameters():
                world.communicator.all_reduce(parameter.detach(), "mean")
    by_hand = torch.allclose(trained["python"], flat(net), rtol=0, atol=1e-6)

    net, optimizer = made(momentum=0.0)
    ours = DataParallel(net, optimizer, Momentum(), process_group=world)
    steps(ours, optimizer, world, 4)
    saved = ours.checkpoint()
    steps(ours, optimizer, world, 3)
    expected = flat(net)
    ours.restore(saved)
    steps(ours, optimizer, world, 3)
    return (
        torch.equal(trained["python"], trained["rust"]),
        by_hand,
        torch.equal(flat(net), expected),
        identical(world, net),
    )


def regrouped(world):
    """Continues with the states of an algorithm in Python that ranks of other worlds have kept: the states by case."""
    # Rank and number of ranks of the kept state, and whether this process has kept it.
    cases = {
        "equal": [(0, 2, True), (1, 2, True)],
        "smaller": [(2, 3, True), (1, 3, True)],
        "with a new rank": [(2, 3, True), (2, 3, False)],
        "only new ranks": [(0, 2, False), (1, 2, False)],
    }
    options = {"process_group": world, "bucket_bytes": 1024, "first_bucket_bytes": 1024}
    states = {}
    for case, kept in cases.items():
        net, optimizer = made()
        ours = DataParallel(net, optimizer, Feedback(), **options)
        saved = regroup.kept(ours._driver)
        rank, size, is_own = kept[world.rank]
        saved |= {"place": (rank, size), "process": regroup.PROCESS if is_own else 0}
        for state in saved["states"]:
            state["values"].fill_(rank)
        regroup.restore(ours._driver, saved)
        values = {state["values"].unique().item() for state in ours._driver.states}
        states[case] = values, [state.get("ranks") for state in ours._driver.states]
        ours.close()
    for algorithm in (WithoutRegroup(), Tuples()):
        net, optimizer = made()
        ours = DataParallel(net, optimizer, algorithm, **options)
        try:
            Snapshots().keep(ours)
        except hexagram.UsageError as error:
            states[type(algorithm).__name__] = str(error)
        ours.close()
    return states


def one_after_another(world, folder):
    """Runs the programs of two ranks; returns the result of each, by name."""
    told = {"beside_ddp": beside_ddp(world, folder)}
    optimizers = {"gradient-allreduce": "torch", "topk-ef": "adamw", "choco-sgd": "torch", "slowmo(period=3)": "adamw"}
    told["resumed"] = {name: resumed(world, name, optimizer) for name, optimizer in optimizers.items()}
    programs = (
        gossiped,
        mixed_precision,
        clipped,
        warm,
        uneven,
        evaluated,
        normalized,
        in_python,
        switched,
        refused,
        regrouped,
    )
    for program in programs:
        told[program.__name__] = program(world)
    # Ranks cannot continue after the error that this one provokes.
    told["unused"] = unused(world)
    return told
