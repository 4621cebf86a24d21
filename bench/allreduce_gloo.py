"""All-reduce of f32 by Gloo, as PyTorch's users get it: under torchrun's variables, as bench/hosts sets them, or alone:
`python3 bench/allreduce_gloo.py 2` starts so many ranks here. Medians of rank 0, as `hexagram bench` takes them."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def run():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in [8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 64 << 20]:
        x = torch.ones(size // 4)
        times = 200 if size <= 262144 else 20 if size <= 16 << 20 else 5
        took = []
        for turn in range(-3, times):
            if size > 262144:
                dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            if turn >= 0:
                took.append(time.perf_counter() - start)
        if dist.get_rank() == 0:
            print(f"{size} B median {statistics.median(took) * 1e6:.2f} us", flush=True)
    dist.destroy_process_group()


def rank(number, size, port):
    os.environ.update(RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    run()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        size = int(sys.argv[1])
        torch.multiprocessing.spawn(rank, args=(size, 20000 + os.getpid() % 20000), nprocs=size)
    else:
        run()
