"""Primitives in which no rank waits for another's step.

================= =========================== ==========================================================
class             made by                     what ranks do
================= =========================== ==========================================================
`Window`          `Service.window`            put, get, accumulate, update: gossip without a common step
`PairExchange`    `Service.pair_exchange`     two of them average at a time: AD-PSGD
`Clock`           `Service.clock`             go on unless they are too far ahead of the slowest
`Server`          `Service.server`            push to and pull from shards on all ranks: parameter server
`Background`      `World.background`          average a snapshot beside what they compute
================= =========================== ==========================================================

A `Service` (`World.service`) is a thread of a rank that answers the others, whose programs take no part in it. All ranks
start services, and make the same things of them, in the same order; values are copied, so that nobody writes into an
array of yours. Close a service on all ranks, by ``with`` or :meth:`Service.close`; the world closes what is left.

Example: on a ring, everyone hands half of what it has to the next, until all have the mean:

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
