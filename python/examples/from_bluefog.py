"""Bluefog's example `examples/pytorch_mnist.py` over hexagram: the same program, with the digits of this repository.

    hexagram run -n 4 -- python python/examples/from_bluefog.py --algorithm "d-psgd(graph=one-peer-exponential)"

Its kinds of optimizers and its topologies are options of algorithms here. ``neighbor_allreduce`` is ``d-psgd``, with
``graph=ring``, ``torus`` or another; if neighbours change with every step, the graph is a schedule, not code of the
program. ``--atc-style`` is ``adapt-then-combine=true``; ``allreduce`` is ``local-sgd(period=1)``; ``win_put``, without
waits, is ``ad-psgd``; ``gradient_allreduce`` has its own name. ``DataParallel`` broadcasts parameters and optimizer
state. Not included: CUDA and progress within an epoch; the net is for images of 8 × 8.
"""

import argparse

import torch
import torch.nn.functional as F
from my_algorithm import batches, load
from torch import nn, optim

import hexagram
from hexagram.torch.data_parallel import DataParallel


def main():
    """Trains, and prints the distance of the replicas, and the accuracy of their mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--algorithm", default="d-psgd(graph=one-peer-exponential)")
    args = parser.parse_args()

    with hexagram.init() as world:
        torch.set_num_threads(1)
        train_images, train_labels, test_images, test_labels = load()
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
        optimizer = optim.Adam(net.parameters(), lr=args.lr * world.size)
        model = DataParallel(net, optimizer, args.algorithm, process_group=world)

        def accuracy():
            net.eval()
            with torch.no_grad():
                return (net(test_images).argmax(1) == test_labels).float().mean().item()

        for epoch in range(args.epochs):
            net.train()
            for index in batches(world, epoch, args.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(train_images[index]), train_labels[index]).backward()
                optimizer.step()
            hits, distance = model.evaluate_mean(accuracy)
            if world.rank == 0:
                print(f"epoch {epoch + 1}: accuracy of the mean {hits:.1%}, apart {distance:.2g}", flush=True)
        model.settle()


if __name__ == "__main__":
    main()
