"""Copies of a model under the engine, by ``copy.deepcopy``, ``pickle`` and ``AveragedModel``: the model, for evaluation
and saving. A copy does not communicate; create another `DataParallel` from its ``module`` for that.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from hexagram import UsageError


class NoEngine:
    """The engine of a copy; every access raises `UsageError`."""

    def __getattr__(self, name: str) -> Any:
        """Raises `UsageError`, except for names that Python requests of every object."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            "this DataParallel is a copy of one, without engine and optimizer; call eval() to use it, or train its .module by "
            "another DataParallel"
        )

    def close(self) -> None:
        """Has no effect."""


class Copied(nn.Module):
    """The part of :class:`DataParallel` that makes copies."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model in its own memory, and the state of every module."""
        state = {name: self.__dict__[name] for name in nn.Module().__dict__ if name in self.__dict__}
        # Its parameters are views of buckets; pickle would write the whole bucket for each of them.
        return state | {"_modules": {"module": copy.deepcopy(self.module)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Creates a copy, for evaluation."""
        super().__setstate__(state)
        self._engine = NoEngine()
        self.optimizer = self._overlap = self._driver = self._attached = None
        self._is_closed, self._is_open, self._owes_step, self._require_sync = True, False, False, True
