"""Bagua's example `examples/mnist/main.py` over hexagram: the same program, with the digits of this repository.

    hexagram run -n 4 -- python python/examples/from_bagua.py --algorithm bytegrad

``hexagram.init()`` replaces ``bagua.init_process_group()``; ``DataParallel(model, optimizer, algorithm)`` replaces
``model.with_bagua([optimizer], algorithm)``, and accepts every algorithm by its spelling. There is one class for all
algorithms, and the asynchronous one need not be aborted and resumed around an evaluation: ``evaluate_mean`` does that.
Not included: CUDA, progress within an epoch, the fused optimizer, and the file of the model.
"""

import argparse

import torch
import torch.nn.functional as F
from my_algorithm import batches, load
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

import hexagram
from hexagram.torch.data_parallel import DataParallel


class Net(nn.Module):
    """A small convolutional net for images of 8 × 8."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        """Returns the logarithms of the probabilities of the ten digits."""
        x = self.dropout1(F.relu(self.conv2(F.relu(self.conv1(x.view(-1, 1, 8, 8))))))
        x = self.dropout2(F.relu(self.fc1(x.flatten(1))))
        return F.log_softmax(self.fc2(x), dim=1)


def main():
    """Trains, and prints the accuracy on held-out samples after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--algorithm", default="gradient-allreduce")
    args = parser.parse_args()

    with hexagram.init() as world:
        torch.set_num_threads(1)
        train_images, train_labels, test_images, test_labels = load()
        net = Net()
        # QAdam leaves the direction of Adam, with which plain SGD steps.
        kind = optim.SGD if args.algorithm.startswith("qadam") else optim.Adadelta
        optimizer = kind(net.parameters(), lr=args.lr)
        model = DataParallel(net, optimizer, args.algorithm, process_group=world)
        scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
        for epoch in range(args.epochs):
            net.train()
            for index in batches(world, epoch, args.batch_size // world.size):
                optimizer.zero_grad()
                F.nll_loss(model(train_images[index]), train_labels[index]).backward()
                optimizer.step()
            scheduler.step()
            net.eval()
            with torch.no_grad():
                hits, _ = model.evaluate_mean(lambda: (net(test_images).argmax(1) == test_labels).float().mean().item())
            if world.rank == 0:
                print(f"epoch {epoch + 1}: accuracy {hits:.1%}", flush=True)
        model.settle()


if __name__ == "__main__":
    main()
