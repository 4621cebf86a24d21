"""Copies of a model under the engine, by ``copy.deepcopy``, ``pickle`` and ``AveragedModel``: the model, to evaluate and to
save. A copy has no part in the communication, for which another `DataParallel` is made of its ``module``.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from hexagram import UsageError


class NoEngine:
    """The engine of a copy, of which everything that is asked raises `UsageError`."""

    def __getattr__(self, name: str) -> Any:
        """Raises `UsageError`, but for what Python asks of every object."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            "this DataParallel is a copy of one, without engine and optimizer; call eval() to use it, or train its .module by "
            "another DataParallel"
        )

    def close(self) -> None:
        """Ends nothing."""


class Copied(nn.Module):
    """The part of :class:`DataParallel` that makes copies."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model in memory of its own, and what every module has."""
        state = {name: self.__dict__[name] for name in nn.Module().__dict__ if name in self.__dict__}
        # Its parameters are views of buckets, each of which pickle would write with every one of them.
        return state | {"_modules": {"module": copy.deepcopy(self.module)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy, which can be evaluated."""
        super().__setstate__(state)
        self._engine = NoEngine()
        self.optimizer = self._overlap = self._driver = self._attached = None
        self._is_closed, self._is_open, self._owes_step, self._require_sync = True, False, False, True
