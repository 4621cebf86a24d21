"""Trains a net on the digits, and continues in the same processes when ranks die or arrive.

    hexagram run -n 4 --elastic 2 --max-restarts 10 -- python python/examples/train_elastic.py
    pkill -9 -n -f "python .*train_elastic"        # in a second terminal, repeatedly

The ranks that are left lose one step at most. A process that starts in place of a dead one gets model, optimizer and
position from them.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from my_algorithm import load
from torch import nn

import hexagram
from hexagram.torch.data_parallel import DataParallel
from hexagram.torch.snapshots import Snapshots


def train(world, net, optimizer, snapshots, epochs):
    """Trains to the end of the last epoch, with the members of this world."""
    images, labels, test_images, test_labels = load()
    model = DataParallel(net, optimizer, process_group=world)
    # 48 samples in each step, divided evenly among 1, 2, 3 or 4 ranks.
    sampler = hexagram.ElasticSampler(images, world.size, world.rank, global_batch=48)
    sampler.load_state_dict(snapshots.load(model, sampler.state_dict()))
    if world.rank == 0:
        print(f"generation {world.generation}: {world.size} ranks, step {model.steps}, pid {os.getpid()}", flush=True)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for index in sampler:
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
            snapshots.keep(model, sampler.state_dict())
    # Until all ranks have finished the last step, they may have to make it again.
    world.communicator.barrier()
    if world.rank == 0:
        hits = (net(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"accuracy {hits:.1%} after {model.steps} steps", flush=True)


def main():
    """Trains, again with the new members after each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.5)
    hexagram.as_member(hexagram.init(), train, net, optimizer, Snapshots(), epochs)


if __name__ == "__main__":
    main()
