"""Programs of 2 ranks that use libraries on torch.distributed, unchanged: each returns numbers to compare.

Each is `program(rank)`, called in a process group of any backend.
"""

from __future__ import annotations

import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Sequential:
    """Returns a small model, the same on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 4))


def train(net: nn.Module, rank: int, optimizer=None, steps: int = 5) -> None:
    """Trains for some steps, each rank on its own data."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(50 + rank)
    for _ in range(steps):
        inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
        nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def numbers(net: nn.Module) -> list[float]:
    """Returns all parameters as numbers."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole]).tolist()


def ddp(rank: int) -> list[float]:
    net = DistributedDataParallel(model())
    train(net, rank)
    return numbers(net)


def ddp_small_buckets(rank: int) -> list[float]:
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001, gradient_as_bucket_view=True, static_graph=True)
    train(net, rank)
    return numbers(net)


def ddp_sparse(rank: int) -> list[float]:
    torch.manual_seed(7)
    net = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True, mode="sum"), nn.Linear(4, 4)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        net(torch.arange(rank + step, rank + step + 8).reshape(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(net)


def fsdp1(rank: int) -> list[float]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    train(net, rank)
    with FullyShardedDataParallel.summon_full_params(net):
        return numbers(net)


def fsdp2(rank: int) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, net = init_device_mesh("cpu", (dist.get_world_size(),)), model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, rank)
    return numbers(net)


def zero(rank: int) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DistributedDataParallel(model())
    train(net, rank, ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1))
    return numbers(net)


def hook_that_chains(rank: int) -> list[float]:
    net = DistributedDataParallel(model(), gradient_as_bucket_view=True)

    def hook(_, bucket):
        buffer = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda _: buffer)

    net.register_comm_hook(None, hook)
    train(net, rank)
    return numbers(net)


def hook_bf16(rank: int) -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    net = DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    train(net, rank)
    return numbers(net)


def hook_power_sgd(rank: int) -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    net = DistributedDataParallel(model())
    net.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    train(net, rank)
    return numbers(net)


def join(rank: int) -> list[float]:
    from torch.distributed.algorithms.join import Join

    net = DistributedDataParallel(model())
    with Join([net]):
        train(net, rank, steps=3 + 2 * rank)
    return numbers(net)


def objects(rank: int) -> list:
    size = dist.get_world_size()
    gathered, shared, mine = [None] * size, [{"of": 0} if rank == 0 else None], [None]
    dist.all_gather_object(gathered, {"rank": rank})
    dist.broadcast_object_list(shared)
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    return [gathered, shared]


def groups(rank: int) -> list:
    sums = []
    for ranks in ([0], [1], [1, 0]):
        group = dist.new_group(ranks)
        total = torch.full((3,), float(rank + 1))
        if rank in ranks:
            dist.all_reduce(total, group=group)
            assert dist.get_group_rank(group, rank) == sorted(ranks).index(rank)
            dist.destroy_process_group(group)
        gathered = [torch.empty(3) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, total)
        sums.append(torch.stack(gathered).tolist())
    return sums


def messages(rank: int) -> list:
    size = dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    sent, received = torch.full((4,), float(rank)), torch.empty(4)
    posts = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(posts):
        work.wait()
    assert received.tolist() == [before] * 4
    dist.barrier()
    return [received.numel()]


def functional(rank: int) -> list:
    import torch.distributed._functional_collectives as collectives

    world = dist.group.WORLD
    return [
        collectives.all_reduce(torch.ones(2) * rank, "sum", world).tolist(),
        collectives.all_gather_tensor(torch.ones(2) * rank, 0, world).tolist(),
        collectives.reduce_scatter_tensor(torch.ones(4), "sum", 0, world).tolist(),
        [part.tolist() for part in collectives.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", world)],
        collectives.broadcast(torch.ones(2) * (rank + 1), 0, world).tolist(),
    ]


def compiled(rank: int) -> list:
    import torch.distributed._functional_collectives as collectives

    double = torch.compile(lambda x: collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
    return double(torch.ones(2) * rank).tolist()


def compiled_ddp(rank: int) -> list[float]:
    """Trains under the compiler, with buffers: C++ calls the group from the backward pass and the synchronization."""
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    torch.manual_seed(7)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    train(torch.compile(DistributedDataParallel(net), backend="aot_eager"), rank)
    return numbers(net)


def compiled_calls(rank: int) -> list:
    """Calls functions that break the graph from compiled code."""

    def gather(tensor: Tensor) -> Tensor:
        parts = [torch.zeros(4) for _ in range(2)]
        dist.all_gather(parts, tensor)
        return parts[0] + 2 * parts[1]

    def broadcast(tensor: Tensor) -> Tensor:
        dist.broadcast(tensor, 1, async_op=True).wait()
        dist.barrier()
        return tensor + 1

    def message(tensor: Tensor) -> Tensor:
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        return tensor + 1

    results = []
    for call in (gather, broadcast, message):
        results.append(torch.compile(call, backend="aot_eager")(torch.full((4,), rank + 1.0)).tolist())
    return results


def dtensor(rank: int) -> list:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
    right = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(1)])
    product = (left @ right).redistribute(mesh, [Replicate()]).to_local()
    return [left.sum().full_tensor().item(), product.tolist()]


def mesh_of_two(rank: int) -> list:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
    value = torch.ones(2) * (rank + 1)
    dist.all_reduce(value, group=mesh["shard"].get_group())
    dist.all_reduce(value, group=mesh["replicate"].get_group())
    return value.tolist()


def checkpoint(rank: int) -> list[float]:
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    net = model()
    dcp.save(net.state_dict(), checkpoint_id=folder[0])
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    dcp.load(net.state_dict(), checkpoint_id=folder[0])
    return numbers(net)


def rare_tensors(rank: int) -> list:
    """Sends tensors that are strided, complex, sparse or empty, and elements without arithmetic."""
    strided = torch.arange(12.0).reshape(3, 4).t().contiguous() + rank
    dist.all_reduce(strided)
    compound = torch.tensor([1 + 2j, 3j]) * (rank + 1)
    dist.all_reduce(compound)
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
    dist.all_reduce(sparse)
    rare = torch.tensor([rank + 1, 7], dtype=torch.bool)
    dist.broadcast(rare, 0)
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    results: list[Tensor] = [strided, torch.view_as_real(compound), sparse.to_dense(), rare, empty]
    return [result.tolist() for result in results]


def beyond_gloo(rank: int) -> list:
    """Sends tensors that Gloo refuses; two ranks. Returns the values of `BEYOND_GLOO`."""
    strided = (torch.arange(4.0).reshape(2, 2) + rank).t()
    dist.all_reduce(strided)
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, op=dist.ReduceOp.BOR)
    bits = torch.tensor([0b1100, 0b1010], dtype=torch.int16) >> rank
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    wide = torch.tensor([rank + 1, 2**40], dtype=torch.uint64)
    dist.broadcast(wide, 0)
    parts = [torch.empty(1), torch.empty(2)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    return [strided.tolist(), flags.tolist(), bits.tolist(), wide.tolist(), [part.tolist() for part in parts]]


BEYOND_GLOO = [[[1.0, 5.0], [3.0, 7.0]], [True, True, False], [0b1010, 0b1111], [1, 2**40], [[0.0], [1.0, 1.0]]]

ALL = [
    ddp, ddp_small_buckets, ddp_sparse, fsdp1, fsdp2, zero, hook_that_chains, hook_bf16, hook_power_sgd, join, objects,
    groups, messages, functional, compiled, compiled_ddp, compiled_calls, dtensor, mesh_of_two, checkpoint, rare_tensors,
]  # fmt: skip


#: PyTorch before 2.14 does not support groups of several devices with a backend in Python.
HAS_DEVICES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
OURS = ["hexagram", "cpu:hexagram_device"] if HAS_DEVICES else ["hexagram"]


def run_all(rank: int, folder: str) -> dict[str, dict[str, object]]:
    """Runs all programs over all backends, each in a process group; returns results by backend and name."""
    import hexagram.torch  # noqa: F401

    results: dict[str, dict[str, object]] = {backend: {} for backend in ["gloo", *OURS]}
    # Gloo aborts the process if its group is freed on its own thread, by a callback that held the last reference.
    groups = []
    for program in [*ALL, beyond_gloo]:
        for backend in results if program is not beyond_gloo else OURS:
            dist.init_process_group(
                backend,
                init_method=f"file://{folder}/{backend.replace(':', '-')}-{program.__name__}",
                rank=rank,
                world_size=2,
                timeout=timedelta(seconds=30),
            )
            groups.append(dist.group.WORLD)
            try:
                results[backend][program.__name__] = program(rank)
            except Exception:  # noqa: BLE001  (the test of this program shows it)
                results[backend][program.__name__] = traceback.format_exc()
            dist.destroy_process_group()
    return results
