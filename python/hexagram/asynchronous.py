"""Primitives in which ranks do not wait for each other's steps.

================= =========================== ==========================================================
class             created by                  use
================= =========================== ==========================================================
`Window`          `Service.window`            put, get, accumulate, update: gossip without a common step
`PairExchange`    `Service.pair_exchange`     two ranks average at a time: AD-PSGD
`Clock`           `Service.clock`             wait if too far ahead of the slowest rank
`Server`          `Service.server`            push to and pull from shards on all ranks: parameter server
`Background`      `World.background`          average a snapshot in the background
================= =========================== ==========================================================

A `Service` (`World.service`) is a thread of a rank that answers the others while the program of the rank computes. All
ranks must start services, and create the same objects from them, in the same order. Values are copied, so no other rank
writes into your arrays. Close a service on all ranks, by ``with`` or :meth:`Service.close`; the world closes the rest.

Example: on a ring, every rank sends half of its value to the next, until all have the mean:

>>> import numpy
>>> from hexagram.testing import alone
>>> with alone() as world, world.service() as service:
...     rank, size = world.rank, world.size
...     previous = [(rank - 1) % size] if size > 1 else []
...     window = service.window(numpy.array([float(rank)]), previous)
...     for _ in range(60):
...         window.accumulate()
...         world.communicator.barrier()
...         window.collect()
...     mean = numpy.zeros(1)
...     window.estimate(mean)
>>> mean.tolist()
[0.0]
"""

from hexagram._native import Average, Background, Clock, PairExchange, Server, Service, Window

__all__ = ["Average", "Background", "Clock", "PairExchange", "Server", "Service", "Window"]
