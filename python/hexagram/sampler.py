"""Samplers: which sample of a data set goes to which rank.

They are those of ``torch.utils.data.distributed`` and of Bagua, index for index, without either: pass one to a
``torch.utils.data.DataLoader``, or iterate over it. Ranks never talk to each other, since the order follows from the
seed and the epoch alone.

Example:

    >>> from hexagram.sampler import DistributedSampler
    >>> list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

from hexagram._native import RankSampler


class _Sampler:
    """A sampler of one rank."""

    _native: RankSampler

    def __iter__(self) -> Iterator[int]:
        """Returns the samples of this rank in the epoch, in order."""
        return iter(self._native)

    def __len__(self) -> int:
        """Returns the number of samples of this rank in an epoch."""
        return len(self._native)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch. Call it before each, on every rank; without it all epochs have the same order."""
        self._native.set_epoch(epoch)

    def iter_from(self, position: int) -> Iterator[int]:
        """Returns this rank's samples from a position on: the number of samples that all ranks have drawn together.

        >>> sampler = DistributedSampler(range(6), num_replicas=2, rank=0, shuffle=False)
        >>> list(sampler.iter_from(2))
        [2, 4]
        """
        return self._native.iter_from(position)

    def state_dict(self, drawn: int = 0) -> dict[str, int]:
        """Returns what resumes the epoch after this rank has drawn so many samples; see :meth:`resume`."""
        native = self._native
        return {"epoch": native.epoch, "position": drawn * native.stride, "fingerprint": native.fingerprint}

    def resume(self, state: dict[str, int]) -> Iterator[int]:
        """Returns the samples that were left when ``state`` was made, on as many ranks as there are now.

        Raises ``ValueError`` if it is of a sampler with another order.
        """
        if state["fingerprint"] != self._native.fingerprint:
            raise ValueError("this state is of a sampler with another order; use the same data, seed and options")
        self.set_epoch(state["epoch"])
        return self._native.iter_from(state["position"])


class DistributedSampler(_Sampler):
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
        self._native = RankSampler.distributed(len(dataset), num_replicas, rank, shuffle, seed, drop_last, exact)


class LoadBalancingDistributedSampler(_Sampler):
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
        self._native = RankSampler.load_balancing(
            list(complexity), num_replicas, rank, shuffle, seed, drop_last, random_level
        )
