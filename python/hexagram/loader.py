"""The loader: batches of a data set, made by threads ahead of the training loop.

Its parameters are those of ``torch.utils.data.DataLoader``, with workers that are threads of this process: a data set is
opened once, nothing is pickled, and nothing is forked. Each holds the interpreter's lock while Python runs in it, so that
workers help as far as a data set reads, decodes or computes in code that releases the lock, as NumPy, torch, PIL and
files do.

Example:

>>> from hexagram.loader import DataLoader
>>> loader = DataLoader(range(10), batch_size=4, workers=2, collate=list)
>>> list(loader)
[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

Ranks get different samples by a sampler of ``hexagram.sampler``. Every ``for`` over a loader is the next epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from hexagram._native import Loader
from hexagram.errors import LoaderError, UsageError
from hexagram.sampler import _BatchSampler, _Sampler

__all__ = ["DataLoader", "LoaderError", "stack"]


class DataLoader:
    """Batches of a data set, epoch after epoch.

    ``dataset`` is anything with a length and samples by their index; or a function of an index, with the number of samples
    as ``length``. It is called by several threads at once if there are several ``workers``, and by the thread that asks
    for a batch if there are none. ``collate`` makes a batch of a list of samples (:func:`stack`), in the worker.

    The order of samples is that of ``sampler`` or ``batch_sampler`` (of ``hexagram.sampler``), of the data set, or with
    ``shuffle`` a random one that follows from ``seed`` and the epoch; batches come in this order, whatever the number of
    workers, unless ``in_order`` is false. Each worker prepares ``prefetch_factor`` (2) batches ahead.
    ``persistent_workers`` stay from one epoch to the next, and begin it early. ``worker_init`` is called once by each
    worker, with its number.

    A sample that cannot be loaded is tried ``retries`` times more, ``retry_pause`` seconds apart. Then it ends the epoch
    with :class:`hexagram.LoaderError`, or with ``on_failure="skip"`` is left out and counted in :attr:`skipped`. So does a
    batch that does not come within ``timeout`` seconds (300). Raises :class:`hexagram.UsageError` for options that
    contradict each other.

    >>> squares = DataLoader(lambda index: index * index, length=4, batch_size=2, shuffle=True, collate=sum)
    >>> sum(squares)
    14
    """

    def __init__(
        self,
        dataset: Sequence[Any] | Callable[[int], Any],
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        sampler: _Sampler | None = None,
        batch_sampler: _BatchSampler | None = None,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        worker_init: Callable[[int], object] | None = None,
        seed: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        on_failure: Literal["fail", "skip"] = "fail",
        retries: int = 0,
        retry_pause: float = 0.1,
        length: int | None = None,
    ):
        if sampler is not None and not isinstance(sampler, _Sampler):
            raise UsageError("a loader cannot resume the order of this sampler; use one of hexagram.sampler")
        if batch_sampler is not None and not isinstance(batch_sampler, _BatchSampler):
            raise UsageError("a loader cannot resume the order of this batch sampler; use one of hexagram.sampler")
        if hasattr(dataset, "__getitem__"):
            indexed: Any = dataset
            fetch, length = indexed.__getitem__, len(indexed) if length is None else length
        elif callable(dataset) and length is not None:
            fetch = dataset
        else:
            raise UsageError("a data set has __getitem__ and __len__, or is a function and comes with a length")
        options = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "sampler": None if sampler is None else sampler._native,
            "batch_sampler": None if batch_sampler is None else batch_sampler._native,
            "workers": workers,
            "drop_last": drop_last,
            "timeout": timeout,
            "worker_init": worker_init,
            "seed": seed,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "in_order": in_order,
            "on_failure": on_failure,
            "retries": retries,
            "retry_pause": retry_pause,
        }
        self._native = Loader(fetch, length, stack if collate is None else collate, options)

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, and returns its batches. An iterator of an earlier epoch ends."""
        return iter(self._native)

    def __len__(self) -> int:
        """Returns the number of batches of this rank in an epoch."""
        return len(self._native)

    @property
    def skipped(self) -> int:
        """Returns the number of samples that were left out because they could not be loaded."""
        return self._native.skipped

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that comes next; without it epochs follow each other."""
        self._native.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Returns the position behind the last batch that was handed out: four numbers, whatever the data set.

        >>> loader = DataLoader(range(6), 2, collate=list)
        >>> batches = iter(loader)
        >>> next(batches)
        [0, 1]
        >>> again = DataLoader(range(6), 2, collate=list)
        >>> again.load_state_dict(loader.state_dict())
        >>> list(again)
        [[2, 3], [4, 5]]
        """
        return dict(zip(_STATE, self._native.state(), strict=True))

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where :meth:`state_dict` was called, at once, with any number of workers.

        With another number of ranks all of them together get what was left, if the sampler's order does not depend on
        it. Raises :class:`hexagram.UsageError` if the state is of another order or seed.
        """
        self._native.resume(tuple(state[name] for name in _STATE))

    def close(self) -> None:
        """Ends the workers, each after the sample that it is loading."""
        self._native.close()


_STATE = ("seed", "epoch", "position", "order")


def stack(samples: list[Any]) -> Any:
    """Makes a batch: tuples and dictionaries of samples become those of batches, arrays and numbers NumPy arrays with one
    more dimension, tensors of torch one tensor. Whatever else there is stays a list.

    >>> stack([(1.5, "a"), (2.5, "b")])
    (array([1.5, 2.5]), ['a', 'b'])
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        columns = [stack(list(column)) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.stack(samples)
    if isinstance(first, (bool, int, float)) or hasattr(first, "__array__"):
        import numpy

        return numpy.stack([numpy.asarray(sample) for sample in samples])
    return samples
