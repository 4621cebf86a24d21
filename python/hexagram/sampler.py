"""Samplers: which sample of a data set goes to which rank.

They are those of ``torch.utils.data.distributed`` and of Bagua, index for index, without either: pass one to a
``torch.utils.data.DataLoader``, or iterate over it. Ranks never talk to each other, since the order follows from the
seed and the epoch alone.

================================= ======================================================================
sampler                           what it is for
================================= ======================================================================
`DistributedSampler`              PyTorch's: an epoch's samples, divided evenly
`LoadBalancingDistributedSampler` Bagua's: at each step, samples of similar complexity on all ranks
`ElasticSampler`                  batches that are the same for any number of ranks: stop on 4, go on with 3
`CostBalancedSampler`             batches that take all ranks equally long, also ranks of unequal speed
================================= ======================================================================

The last two draw whole batches: pass them as ``batch_sampler``.

Example:

    >>> from hexagram.sampler import DistributedSampler
    >>> list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Generic, Literal, TypeVar

from hexagram._native import Sampler

_Draw = TypeVar("_Draw")


class _Draws(Generic[_Draw]):
    """An order of one rank: of samples, or of batches."""

    _native: Sampler

    def __iter__(self) -> Iterator[_Draw]:
        """Returns what this rank draws in the epoch, in order: samples, or batches of them as lists."""
        return iter(self._native)

    def __len__(self) -> int:
        """Returns the number of draws of this rank in an epoch."""
        return len(self._native)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch. Call it before each, on every rank; without it all epochs have the same order."""
        self._native.set_epoch(epoch)

    def iter_from(self, position: int) -> Iterator[_Draw]:
        """Returns this rank's draws from a position on: the number of samples that all ranks have drawn together.

        >>> sampler = DistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler.iter_from(2))
        [2, 4]
        """
        return self._native.iter_from(position)

    def state_dict(self, drawn: int = 0) -> dict[str, int]:
        """Returns what resumes the epoch after this rank has drawn so many times; see :meth:`resume`."""
        native = self._native
        return {"epoch": native.epoch, "position": drawn * native.stride, "fingerprint": native.fingerprint}

    def resume(self, state: dict[str, int]) -> Iterator[_Draw]:
        """Returns the draws that were left when ``state`` was made, on as many ranks as there are now.

        Raises ``ValueError`` if it is of a sampler with another order.
        """
        if state["fingerprint"] != self._native.fingerprint:
            raise ValueError("this state is of a sampler with another order; use the same data, seed and options")
        self.set_epoch(state["epoch"])
        return self._native.iter_from(state["position"])


class DistributedSampler(_Draws[int]):
    """PyTorch's ``DistributedSampler``: an epoch's samples, divided evenly among the ranks.

    ``dataset`` has a length. Ranks that cannot have equally many samples repeat the first ones, leave the last ones out
    (``drop_last``), or draw once more than others (``exact``, for evaluation). Raises :class:`hexagram.UsageError` for
    options that cannot be.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        exact: bool = False,
    ):
        self._native = Sampler.distributed(len(dataset), num_replicas, rank, shuffle, seed, drop_last, exact)


class LoadBalancingDistributedSampler(_Draws[int]):
    """Bagua's ``LoadBalancingDistributedSampler``: at each step, all ranks have samples of similar complexity.

    ``complexity`` is a function of a sample, or one number for each sample. ``random_level`` is the randomness, from 0
    (best balanced) to 1. Raises :class:`hexagram.UsageError` for options that cannot be.
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        complexity: Callable[[Any], float] | Sequence[float],
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0.0,
    ):
        if callable(complexity):
            complexity = [float(complexity(dataset[index])) for index in range(len(dataset))]
        self._native = Sampler.load_balancing(
            list(complexity), num_replicas, rank, shuffle, seed, drop_last, random_level
        )


class ElasticSampler(_Draws[list[int]]):
    """Batches that are the same for any number of ranks: a job may stop on four and go on with three.

    At each step all ranks together have ``global_batch`` samples, each an equal part of them: whoever averages over ranks
    weighs each by how many it has. ``tail`` says what becomes of the samples that do not fill a step: ``"drop"``,
    ``"pad"`` (repeat the first ones) or ``"exact"`` (a smaller step, for evaluation). The order takes no memory. Raises
    :class:`hexagram.UsageError` for options that cannot be.

    >>> list(ElasticSampler(range(10), 2, 1, global_batch=5, shuffle=False))
    [[3, 4], [8, 9]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        global_batch: int,
        shuffle: bool = True,
        seed: int = 0,
        tail: Literal["drop", "pad", "exact"] = "drop",
    ):
        self._native = Sampler.elastic(len(dataset), num_replicas, rank, global_batch, shuffle, seed, tail)


class CostBalancedSampler(_Draws[list[int]]):
    """Batches that take all ranks equally long, also if samples differ a hundredfold, and ranks in ``speeds``.

    ``cost`` is a function of a sample, or one number for each sample: the time it takes, in any unit. Ranks have
    unequally many of the ``global_batch`` samples of a step: whoever averages over ranks weighs each by how many it has.
    ``mix`` is the number of kinds of cost in a step, ``random_level`` how much costs are blurred, from 0 to 1; ``tail`` is
    as of :class:`ElasticSampler`. Raises :class:`hexagram.UsageError` for options that cannot be.

    >>> list(CostBalancedSampler(range(4), [3, 1, 1, 1], 2, 1, global_batch=4, shuffle=False))
    [[1, 2, 3]]
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        cost: Callable[[Any], float] | Sequence[float],
        num_replicas: int,
        rank: int,
        *,
        global_batch: int,
        speeds: Sequence[float] = (),
        shuffle: bool = True,
        seed: int = 0,
        tail: Literal["drop", "pad", "exact"] = "drop",
        mix: int = 2,
        random_level: float = 0.1,
    ):
        if callable(cost):
            cost = [float(cost(dataset[index])) for index in range(len(dataset))]
        self._native = Sampler.cost_balanced(
            list(cost), num_replicas, rank, global_batch, list(speeds), shuffle, seed, tail, mix, random_level
        )
