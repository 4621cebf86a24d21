"""Programs of elastic jobs, whose ranks continue when one of them dies or another one arrives.

Example, started by ``hexagram run -n 4 --elastic 2 --max-restarts 10 -- python program.py``::

    import hexagram

    def train(world):
        ...  # load the state that the ranks have in common, and train

    hexagram.as_member(hexagram.init(), train)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hexagram._native import World

_Result = TypeVar("_Result")


def as_member(world: World, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Returns the result of ``function(world, *arguments)``, which is called in each generation of an elastic job.

    It is called again, with the next world, if it has raised an exception after the members have changed. The exception
    is logged. In a job whose members stay, it is called once.
    """
    while True:
        try:
            return function(world, *arguments)
        except Exception as error:  # noqa: BLE001  (not every error that follows from a change has its type)
            if world.is_closed or not world.changed:
                raise
            logging.getLogger("hexagram").info("%s", error)
        # Without the exception, whose traceback keeps the objects of the old world.
        world = world.next()
