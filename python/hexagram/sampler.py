"""Samplers: which sample of a data set goes to which rank.

They are those of ``torch.utils.data.distributed`` and of Bagua, index for index, and take their arguments: pass one to a
``torch.utils.data.DataLoader``, or to torchdata's ``StatefulDataLoader``, or iterate over it. Ranks never talk to each
other, since the order follows from the seed and the epoch alone.

====================================== =================================================================
sampler                                what it is for
====================================== =================================================================
`DistributedSampler`                   PyTorch's: an epoch's samples, divided evenly
`DistributedWeightedRandomSampler`     PyTorch's `WeightedRandomSampler`, divided evenly
`LoadBalancingDistributedSampler`      Bagua's: at each step, samples of similar complexity on all ranks
`LoadBalancingDistributedBatchSampler` Bagua's: batches of these, the same number on every rank
`ElasticSampler`                       batches that are the same for any number of ranks
`CostBalancedSampler`                  batches that take all ranks equally long, also ranks of unequal speed
====================================== =================================================================

The last three draw whole batches: pass them as ``batch_sampler``.

``num_replicas`` and ``rank`` are by default those of ``torch.distributed``, if that is initialized, and otherwise those of the
world that this process has joined. Without either, `UsageError` says so.

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

#: Seeds are taken as `torch.Generator.manual_seed` does: negative ones from the other end.
_SEEDS = (1 << 64) - 1


class _Draws(Generic[_Draw]):
    """An order of one rank: of samples, or of batches."""

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
        """Returns what this rank draws in the epoch, in order: samples, or batches of them as lists.

        After :meth:`load_state_dict` it begins where that state was taken, once.
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

        The epoch that :meth:`load_state_dict` goes on with is not begun anew.
        """
        if epoch != self._native.epoch:
            self._native.set_epoch(epoch)
            self._start, self._last = 0, None

    def iter_from(self, position: int) -> Iterator[_Draw]:
        """Returns this rank's draws from a position on: the number of samples that all ranks have drawn together.

        >>> sampler = DistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler.iter_from(2))
        [2, 4]
        """
        return self._native.iter_from(position)

    def state_dict(self, drawn: int | None = None) -> dict[str, int]:
        """Returns what resumes the epoch after this rank has drawn ``drawn`` times since it began to iterate.

        By default, after all that the last iterator has returned. A ``DataLoader`` with workers draws ahead of the training
        loop: say ``drawn`` then, or use a ``StatefulDataLoader``, which asks the iterator of each batch.
        """
        native = self._native
        start, last = self._last or (self._start, None)
        if drawn is None and last is not None:
            return last.state_dict()
        position = start + (drawn or 0) * native.stride
        return {"epoch": native.epoch, "position": position, "fingerprint": native.fingerprint}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where ``state`` was taken, on as many ranks as there are now: the next iteration draws what was left.

        Raises ``ValueError`` if it is of a sampler with another order.
        """
        self._native.load_state_dict(state)
        self._start, self._last = state["position"], None

    def resume(self, state: dict[str, int]) -> Iterator[_Draw]:
        """Returns the draws that were left when ``state`` was taken, as :meth:`load_state_dict` and iterating do."""
        self.load_state_dict(state)
        return iter(self)


class DistributedSampler(_Draws[int]):
    """PyTorch's ``DistributedSampler``: an epoch's samples, divided evenly among the ranks.

    ``dataset`` has a length. Ranks that cannot have equally many samples repeat the first ones, leave the last ones out
    (``drop_last``), or draw once more than others (``exact``, for evaluation). Raises :class:`hexagram.UsageError` for
    options that cannot be.
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
        """Number of draws of all ranks in an epoch; with ``exact``, of as many ranks as this one."""
        return len(self) * self.num_replicas


class DistributedWeightedRandomSampler(_Draws[int]):
    """PyTorch's ``WeightedRandomSampler``, divided evenly among the ranks.

    All ranks together draw ``num_samples`` samples by ``weights``, one for each sample of the data set; with ``replacement``
    the same one again and again. Ranks that cannot have equally many repeat the first ones, or leave the last ones out
    (``drop_last``). Raises :class:`hexagram.UsageError` for options that cannot be.

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

    ``complexity_fn`` is a function of a sample, or one number for each sample. ``random_level`` is the randomness, from 0
    (best balanced) to 1. Raises :class:`hexagram.UsageError` for options that cannot be.

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
    """Bagua's ``LoadBalancingDistributedBatchSampler``: batches of a load-balanced order, equally many on every rank.

    ``batch_fn`` makes the batches of one rank's samples, which come in the order to train on them, and returns or yields
    them; it is called for every rank, on every rank, once an epoch, so it must depend on the samples alone. Ranks with fewer
    batches repeat their first ones; with ``drop_last`` the others leave out their last ones.

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
    """Returns the number of ranks and this one, of ``torch.distributed`` or of the joined world."""
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
    """Returns one number for each sample, as a function or a list says it."""
    if callable(numbers):
        return [float(numbers(dataset[index])) for index in range(len(dataset))]
    return [float(number) for number in numbers]
