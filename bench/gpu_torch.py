"""PyTorch on a GPU over hexagram, as bench/gpu runs it:

    python3 bench/gpu_torch.py train DEVICE      two ranks on one device, trained in every way: replicas have to be equal
    python3 bench/gpu_torch.py step DEVICE       one rank: a step of ResNet-50, compared with one of plain PyTorch

DEVICE is cuda:0, or cpu for a try without a GPU. It prints a table, and ends with 1 if replicas differ or a way fails. Without torch
or a GPU it says "skipped" and why."""
import contextlib
import datetime
import hashlib
import pathlib
import statistics
import sys
import tempfile
import time
import traceback

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    print("skipped: no torch")
    sys.exit(0)

from hexagram.torch import DataParallel, hook, sync_batch_norm

STEPS, ROUNDS = 12, 15
#: Longest wait of a rank for the other.
LIMIT = datetime.timedelta(seconds=30)


def small_model(rank, device):
    torch.manual_seed(rank)
    features = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(9216, 10)).to(device)


def train(model, optimizer, device, scaler=None, dtype=torch.float32):
    """Trains on random pictures; returns the first and the last loss."""
    values = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(16, 3, 16, 16, generator=values).to(device, dtype)
    y = torch.randint(10, (16,), generator=values).to(device)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16) if scaler else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(x), y)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return float(losses[0]), float(losses[-1])


def by_engine(device, algorithm, own=None, amp=False, synchronized=False, dtype=torch.float32, **options):
    """Trains by DataParallel, with an optimizer of PyTorch or the engine's `own`, and evaluates the mean."""
    net = small_model(dist.get_rank(), device).to(dtype)
    net = sync_batch_norm(net) if synchronized else net
    optimizer = own or torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    model = DataParallel(net, optimizer, algorithm, learning_rate=1e-3 if own else None, **options)
    losses = train(model, model.optimizer, device, torch.amp.GradScaler(device.type) if amp else None, dtype)
    model.restore(model.checkpoint())
    with torch.no_grad():
        model.evaluate_mean(lambda: float(net(torch.ones(2, 3, 16, 16, dtype=dtype, device=device)).sum()))
    model.settle()
    model.average()
    model.close()
    return list(net.parameters()), losses


def by_ddp(device, algorithm=None):
    """Trains by DDP, with the algorithm as a hook."""
    model = DistributedDataParallel(small_model(dist.get_rank(), device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    if algorithm:
        state, communicate = hook(algorithm, optimizer=optimizer)
        model.register_comm_hook(state, communicate)
    losses = train(model, optimizer, device)
    if algorithm:
        state.close()
    return list(model.parameters()), losses


def by_fsdp(device):
    """Trains by FSDP2, whose shards are gathered and reduced by the process group."""
    from torch.distributed.fsdp import fully_shard

    net = small_model(0, device)
    fully_shard(net)
    losses = train(net, torch.optim.SGD(net.parameters(), lr=0.02), device)
    return [parameter.full_tensor() for parameter in net.parameters()], losses


#: Ways to train: name, function, and its arguments by position and by name.
WAYS = [
    ("DataParallel, gradient-allreduce", by_engine, ["gradient-allreduce"], {}),
    ("DataParallel, gradient-allreduce, adamw of the engine", by_engine, ["gradient-allreduce", "adamw"], {}),
    ("DataParallel, bytegrad", by_engine, ["bytegrad"], {}),
    ("DataParallel, local-sgd", by_engine, ["local-sgd(period=4)"], {}),
    ("DataParallel, choco-sgd", by_engine, ["choco-sgd"], {}),
    ("DataParallel, async-model-average", by_engine, ["async-model-average"], {}),
    ("DDP", by_ddp, [], {}),
    ("DDP with the hook bytegrad", by_ddp, ["bytegrad"], {}),
    ("DataParallel, AMP and GradScaler", by_engine, ["gradient-allreduce"], {"amp": True}),
    ("DataParallel, parameters of bf16", by_engine, ["local-sgd(period=2)"], {"dtype": torch.bfloat16}),
    ("DataParallel, overlap with the forward pass", by_engine, ["gradient-allreduce", "adamw"], {"overlap": "forward"}),
    ("DataParallel, sync_batch_norm", by_engine, ["gradient-allreduce"], {"synchronized": True}),
    ("FSDP2", by_fsdp, [], {}),
]


def rank_of_two(rank, first, place, folder):
    """Trains in all ways from the first on, and writes how each went."""
    device = torch.device(place)
    dist.init_process_group("hexagram", init_method=f"file://{folder}/store{first}", rank=rank, world_size=2, timeout=LIMIT)
    for way, (_, work, positional, named) in enumerate(WAYS):
        if way < first:
            continue
        parameters, losses = work(device, *positional, **named)
        numbers = [parameter.detach().cpu().contiguous() for parameter in parameters]
        digest = hashlib.sha256(b"".join(bytes(one.untyped_storage()) for one in numbers)).hexdigest()
        place_of(folder, way, rank).write_text(f"{digest} {losses[0]} {losses[1]}")
        dist.barrier()
    dist.destroy_process_group()


def place_of(folder, way, rank):
    return pathlib.Path(folder, f"way{way}rank{rank}")


def trainings(place):
    """Prints how each way to train went; returns the number of those that failed. A way that fails ends both ranks; two others
    continue with the next way."""
    print("| way to train | loss of rank 0 | outcome |\n|---|---|---|", flush=True)
    failed = way = 0
    while way < len(WAYS):
        with tempfile.TemporaryDirectory() as folder:
            ranks = torch.multiprocessing.spawn(rank_of_two, (way, place, folder), nprocs=2, join=False)
            while way < len(WAYS) and have_trained(ranks, folder, way):
                failed += not report(folder, way)
                way += 1
            for process in ranks.processes:
                process.kill() if way < len(WAYS) else process.join(60)
        if way < len(WAYS):
            print(f"| {WAYS[way][0]} | | **failed** |", flush=True)
            failed, way = failed + 1, way + 1
    return failed


def have_trained(ranks, folder, way):
    """Waits until both ranks have trained in a way; returns false if they have failed, or take too long."""
    places = [place_of(folder, way, rank) for rank in range(2)]
    end = time.monotonic() + 2 * LIMIT.total_seconds()
    try:
        while not all(map(pathlib.Path.exists, places)) and time.monotonic() < end and not ranks.join(timeout=0.1):
            pass
    except Exception:
        traceback.print_exc()
    return all(map(pathlib.Path.exists, places))


def report(folder, way):
    """Prints how a way to train went; returns whether the replicas are equal, and have learned."""
    (first, before, after), (second, *_) = (place_of(folder, way, rank).read_text().split() for rank in range(2))
    told = [] if first == second else ["**replicas differ**"]
    told += [] if float(after) < float(before) else ["**the loss does not fall**"]
    words = ", ".join(told) or "replicas equal"
    print(f"| {WAYS[way][0]} | {float(before):.3f} → {float(after):.3f} | {words} |", flush=True)
    return not told


class Bottleneck(nn.Module):
    def __init__(self, width, channels, stride):
        super().__init__()
        kernels = [(width, channels, 1, 1), (channels, channels, 3, stride), (channels, 4 * channels, 1, 1)]
        layers = []
        for inside, outside, kernel, step in kernels:
            layers += [nn.Conv2d(inside, outside, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        self.path = nn.Sequential(*layers[:-1])
        self.skip = nn.Identity()
        if stride > 1 or width != 4 * channels:
            self.skip = nn.Sequential(nn.Conv2d(width, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels))

    def forward(self, x):
        return torch.relu(self.path(x) + self.skip(x))


def resnet(blocks):
    layers, width = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for at, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(width, 64 << at, 2 if at and not block else 1))
            width = 256 << at
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def step_time(model, optimizer, x, y):
    """Returns the time of a step in ms, with the work of the GPU."""
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None
    synchronize()
    begun = time.perf_counter()
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    synchronize()
    return (time.perf_counter() - begun) / 3 * 1e3


def steps(name):
    """Prints the time of a step of one rank in several ways, in turn; each compared with plain PyTorch in the same round."""
    device = torch.device(name)
    blocks, batch, side, rounds = ((3, 4, 6, 3), 64, 224, ROUNDS) if device.type == "cuda" else ((1, 1, 1, 1), 2, 32, 2)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("hexagram", init_method=f"file://{folder}/store", rank=0, world_size=1)
        x, y = torch.randn(batch, 3, side, side, device=device), torch.randint(1000, (batch,), device=device)
        nets = [resnet(blocks).to(device) for _ in range(3)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9) for net in nets]
        models = {"plain": nets[0], "DataParallel": DataParallel(nets[1], optimizers[1]), "DDP": DistributedDataParallel(nets[2])}
        times = {way: [] for way in models}
        for at in range(-2, rounds):
            for (way, model), optimizer in zip(models.items(), optimizers, strict=True):
                took = step_time(model, optimizer, x, y)
                if at >= 0:
                    times[way].append(took)
        models["DataParallel"].close()
        dist.destroy_process_group()
    print(f"ResNet of {blocks} blocks, batch of {batch}, one rank: {statistics.median(times['plain']):.1f} ms by plain PyTorch {torch.__version__}")
    for way in ("DataParallel", "DDP"):
        more = [100 * (one / plain - 1) for one, plain in zip(times[way], times["plain"], strict=True)]
        print(f"step by {way}: {statistics.median(more):+.1f} % of the plain step ({min(more):+.1f} to {max(more):+.1f})")
    return 0


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if place != "cpu" and not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
    else:
        sys.exit(min({"train": trainings, "step": steps}[kind](place), 1))
