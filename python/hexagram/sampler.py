"""Samplers: the assignment of the samples of a data set to ranks.

They equal those of ``torch.utils.data.distributed`` and of Bagua, index for index, and take the same arguments: pass
one to a ``torch.utils.data.DataLoader``, or to torchdata's ``StatefulDataLoader``, or iterate over it. Ranks do not
communicate, since the order depends only on seed and epoch.

====================================== =================================================================
sampler                                purpose
====================================== =================================================================
`DistributedSampler`                   PyTorch's: the samples of an epoch, divided evenly
`DistributedWeightedRandomSampler`     PyTorch's `WeightedRandomSampler`, divided evenly
`LoadBalancingDistributedSampler`      Bagua's: at each step, samples of similar complexity on all ranks
`LoadBalancingDistributedBatchSampler` Bagua's: batches of these, the same number on every rank
`ElasticSampler`                       batches that are the same for any number of ranks
`CostBalancedSampler`                  batches with the same duration on all ranks, even of unequal speed
====================================== =================================================================

The last three draw whole batches: pass them as ``batch_sampler``.

``num_replicas`` and ``rank`` default to those of ``torch.distributed``, if it is initialized, otherwise to those of the
world that this process has joined. Without either, `UsageError` is raised.

Example:

    >>> from hexagram.sampler import DistributedSampler
    >>> list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, Literal, TypeVar

from hexagram._native import Sampler, SamplerIterator, joined
from hexagram.errors import UsageError

_Draw = TypeVar("_Draw")
_Tail = Literal["drop", "pad", "exact"]

#: Seeds are interpreted as in `torch.Generator.manual_seed`: negative ones wrap around.
_SEEDS = (1 << 64) - 1


class _Draws(Generic[_Draw]):
    """An order on one rank: of samples, or of batches."""

    _native: Sampler

    def __init__(self, num_replicas: int | None, rank: int | None):
        if num_replicas is None or rank is None:
            size, own = _place()
            num_replicas = size if num_replicas is None else num_replicas
            rank = own if rank is None else rank
        #: Number of ranks that share the data set.
        self.num_replicas = num_replicas
        #: Rank of this process.
        self.rank = rank
        self._start = 0
        self._last: tuple[int, SamplerIterator] | None = None

    def __iter__(self) -> Iterator[_Draw]:
        """Returns the draws of this rank in the epoch, in order: samples, or batches of them as lists.

        After :meth:`load_state_dict`, the first iteration starts at the position of that state.
        """
        start, self._start = self._start, 0
        draws = self._native.iter_from(start)
        self._last = start, draws
        return draws

    def __len__(self) -> int:
        """Returns the number of draws of this rank in an epoch."""
        return len(self._native)

    @property
    def epoch(self) -> int:
        """Number of the epoch whose order is drawn."""
        return self._native.epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch. Call it before each, on every rank; without it all epochs have the same order.

        It does not restart the epoch that :meth:`load_state_dict` continues.
        """
        if epoch != self._native.epoch:
            self._native.set_epoch(epoch)
            self._start, self._last = 0, None

    def iter_from(self, position: int) -> Iterator[_Draw]:
        """Returns the draws of this rank from a position on: the number of samples that all ranks have drawn together.

        >>> sampler = DistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler.iter_from(2))
        [2, 4]
        """
        return self._native.iter_from(position)

    def state_dict(self, drawn: int | None = None) -> dict[str, Any]:
        """Returns the state to resume the epoch after this rank has made ``drawn`` draws in the current iteration.

        Default: all draws that the last iterator has returned. A ``DataLoader`` with workers draws ahead of the
        training loop: pass ``drawn`` then, or use a ``StatefulDataLoader``, which gets the state of each batch from the
        iterator.
        """
        native = self._native
        start, last = self._last or (self._start, None)
        if drawn is None and last is not None:
            return last.state_dict()
        return native.state_at(start + (drawn or 0) * native.stride)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from ``state``, on the present number of ranks: the next iteration draws the remaining samples.

        It is the state of any rank: positions count the samples of all ranks together. If the order depends on the number
        of ranks, they share the remaining samples in a new order, which depends on the seed, the epoch and the state.

        Raises ``ValueError`` if it belongs to a sampler with a different order, or if its position and parts contradict each
        other.
        """
        self._native.load_state_dict(state)
        self._start, self._last = state["position"], None

    def resume(self, state: dict[str, Any]) -> Iterator[_Draw]:
        """Returns the remaining draws of ``state``, like :meth:`load_state_dict` and one iteration."""
        self.load_state_dict(state)
        return iter(self)


class DistributedSampler(_Draws[int]):
    """PyTorch's ``DistributedSampler``: the samples of an epoch, divided evenly among the ranks.

    ``dataset`` has a length. If the samples cannot be divided evenly, ranks repeat the first ones, drop the last ones
    (``drop_last``), or some draw one more than others (``exact``, for evaluation). Raises :class:`hexagram.UsageError`
    for invalid options.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        exact: bool = False,
    ):
        super().__init__(num_replicas, rank)
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self._native = Sampler.distributed(
            len(dataset), self.num_replicas, self.rank, shuffle, int(seed) & _SEEDS, drop_last, exact
        )

    @property
    def num_samples(self) -> int:
        """Number of draws of this rank in an epoch."""
        return len(self)

    @property
    def total_size(self) -> int:
        """Number of draws of all ranks in an epoch; with ``exact``, as if all ranks had the number of this rank."""
        return len(self) * self.num_replicas


class DistributedWeightedRandomSampler(_Draws[int]):
    """PyTorch's ``WeightedRandomSampler``, divided evenly among the ranks.

    All ranks together draw ``num_samples`` samples by ``weights``, one weight per sample of the data set; with
    ``replacement``, a sample may be drawn several times. If draws cannot be divided evenly, ranks repeat the first
    ones, or drop the last ones (``drop_last``). Raises :class:`hexagram.UsageError` for invalid options.

    >>> drawn = list(DistributedWeightedRandomSampler([0.0, 1.0, 3.0], 10, num_replicas=2, rank=0))
    >>> len(drawn), 0 in drawn
    (5, False)
    """

    def __init__(
        self,
        weights: Iterable[float],
        num_samples: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        replacement: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        super().__init__(num_replicas, rank)
        self._native = Sampler.weighted(
            [float(weight) for weight in weights],
            num_samples,
            self.num_replicas,
            self.rank,
            replacement,
            int(seed) & _SEEDS,
            "drop" if drop_last else "pad",
        )


class LoadBalancingDistributedSampler(_Draws[int]):
    """Bagua's ``LoadBalancingDistributedSampler``: at each step, all ranks have samples of similar complexity.

    ``complexity_fn`` is a function of a sample, or a list with one number per sample. ``random_level`` is the
    randomness, from 0 (best balanced) to 1. Raises :class:`hexagram.UsageError` for invalid options.

    >>> complexities = [7, 8, 11, 4, 5, 2, 9, 10, 0, 6, 1, 3]
    >>> for rank in range(2):
    ...     print(list(LoadBalancingDistributedSampler(complexities, float, 2, rank, random_level=0.5)))
    [8, 7, 6, 5, 4, 0]
    [3, 2, 1, 11, 10, 9]
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        complexity_fn: Callable[[Any], float] | Sequence[float],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0.0,
    ):
        super().__init__(num_replicas, rank)
        self.dataset, self.drop_last = dataset, drop_last
        complexities = _numbers(dataset, complexity_fn)
        self._options = (
            complexities,
            self.num_replicas,
            self.rank,
            shuffle,
            int(seed) & _SEEDS,
            drop_last,
            float(random_level),
        )
        self._native = Sampler.load_balancing(*self._options)


class LoadBalancingDistributedBatchSampler(_Draws[list[int]]):
    """Bagua's ``LoadBalancingDistributedBatchSampler``: batches of a load-balanced order, the same number on each rank.

    ``batch_fn`` takes the samples of one rank, in training order, and returns or yields batches. It is called for every
    rank, on every rank, once per epoch, so it must depend only on the samples. Ranks with fewer batches repeat their
    first ones; with ``drop_last``, the others drop their last ones.

    >>> sampler = LoadBalancingDistributedSampler([5, 1, 3, 7], float, 2, 0, shuffle=False)
    >>> pairs = LoadBalancingDistributedBatchSampler(sampler, lambda samples: [samples[:2], samples[2:]])
    >>> list(pairs)
    [[1, 0]]
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], Iterable[Sequence[int]]],
        drop_last: bool = False,
    ):
        super().__init__(sampler.num_replicas, sampler.rank)
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self._native = Sampler.load_balancing_batches(*sampler._options, batch_fn, drop_last, sampler.epoch)


class ElasticSampler(_Draws[list[int]]):
    """Batches that are the same for any number of ranks: a job may stop on four and continue on three.

    At each step all ranks together have ``global_batch`` samples, divided evenly: an average over ranks must weight
    each rank by its number of samples. ``tail`` is the treatment of samples that do not fill a step: ``"drop"``,
    ``"pad"`` (repeat the first ones) or ``"exact"`` (a smaller step, for evaluation). The order takes no memory. Raises
    :class:`hexagram.UsageError` for invalid options.

    >>> list(ElasticSampler(range(10), 2, 1, global_batch=5, shuffle=False))
    [[3, 4], [8, 9]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        global_batch: int,
        shuffle: bool = True,
        seed: int = 0,
        tail: _Tail = "drop",
    ):
        super().__init__(num_replicas, rank)
        self.dataset = dataset
        self._native = Sampler.elastic(
            len(dataset), self.num_replicas, self.rank, global_batch, shuffle, int(seed) & _SEEDS, tail
        )


class CostBalancedSampler(_Draws[list[int]]):
    """Batches with the same duration on all ranks, even if samples differ a hundredfold, and ranks in ``speeds``.

    ``cost`` is a function of a sample, or a list with one number per sample: its duration, in any unit. Ranks have
    different shares of the ``global_batch`` samples of a step: an average over ranks must weight each rank by its
    number of samples. ``mix`` is the number of cost classes in a step, ``random_level`` the blurring of costs, from 0
    to 1; for ``tail`` see :class:`ElasticSampler`. Raises :class:`hexagram.UsageError` for invalid options.

    >>> list(CostBalancedSampler(range(4), [3, 1, 1, 1], 2, 1, global_batch=4, shuffle=False))
    [[1, 2, 3]]
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        cost: Callable[[Any], float] | Sequence[float],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        global_batch: int,
        speeds: Sequence[float] = (),
        shuffle: bool = True,
        seed: int = 0,
        tail: _Tail = "drop",
        mix: int = 2,
        random_level: float = 0.1,
    ):
        super().__init__(num_replicas, rank)
        self.dataset = dataset
        self._native = Sampler.cost_balanced(
            _numbers(dataset, cost),
            self.num_replicas,
            self.rank,
            global_batch,
            list(speeds),
            shuffle,
            int(seed) & _SEEDS,
            tail,
            mix,
            random_level,
        )


def _place() -> tuple[int, int]:
    """Returns the number of ranks and this rank, in ``torch.distributed`` or in the joined world."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    world = joined()
    if world is None:
        raise UsageError(
            "this process has neither a process group nor a world, so the sampler's rank is not known; call "
            "torch.distributed.init_process_group() or hexagram.init() before, or pass num_replicas and rank"
        )
    return world.size, world.rank


def _numbers(dataset: Sequence[Any], numbers: Callable[[Any], float] | Sequence[float]) -> list[float]:
    """Returns one number per sample, from a function or a list."""
    if callable(numbers):
        return [float(numbers(dataset[index])) for index in range(len(dataset))]
    return [float(number) for number in numbers]
