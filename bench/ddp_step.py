"""Training steps of PyTorch's DistributedDataParallel over Gloo, beside its own local step: what bench/step compares with.

Under torchrun's variables, as bench/hosts sets them:
`python3 bench/ddp_step.py STEPS HOOK...`, each HOOK one of local, none, fp16; `local=FILE` also writes the CPU time of every
layer, as `hexagram step --profile` reads it. The model is that of the comparison: 8 square layers of 1024 with ReLU, f32,
batch 32 a rank, plain SGD, one thread. Means over all steps, of the rank that took longest."""
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, BATCH, WARMUP = 1024, 8, 32, 5


class Clock:
    """CPU seconds of each layer, forwards and backwards, summed over steps."""

    def __init__(self, layers):
        self.forward, self.backward, self.last = [0.0] * len(layers), [0.0] * len(layers), 0.0
        for at, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_: self.tick())
            layer.register_forward_hook(lambda *_, at=at: self.lap(self.forward, at))
            # The gradient of the weight is the last that a layer computes.
            layer[0].weight.register_post_accumulate_grad_hook(lambda _, at=at: self.lap(self.backward, at))

    def tick(self):
        self.last = time.thread_time()

    def lap(self, sums, at):
        sums[at] += time.thread_time() - self.last
        self.tick()


def run(steps, hook):
    hook, _, profile = hook.partition("=")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH)]
    model = nn.Sequential(*layers)
    clock = Clock(layers) if profile else None
    if hook != "local":
        model = DistributedDataParallel(model)
        if hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    for step in range(-WARMUP, steps):
        if step == 0:
            dist.barrier()
            begun = time.perf_counter()
            if clock:
                clock.forward, clock.backward = [0.0] * DEPTH, [0.0] * DEPTH
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if clock:
            clock.tick()
        loss.backward()
        optimizer.step()
    taken = torch.tensor([(time.perf_counter() - begun) / steps])
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"ddp-{hook} on {dist.get_world_size()} ranks: step {taken.item() * 1e3:.2f} ms, mean of {steps} steps", flush=True)
        if profile:
            with open(profile, "w") as file:
                for at in range(DEPTH):
                    times = f"{clock.forward[at] / steps:.6f} {clock.backward[at] / steps:.6f}"
                    file.write(f"layer{at} {WIDTH}x{WIDTH},{WIDTH} {times}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for hook in sys.argv[2:]:
        run(int(sys.argv[1]), hook)
        dist.barrier()
    dist.destroy_process_group()
