"""The state of an algorithm in Python after ranks of an elastic job have died or arrived: all ranks compute it from the states
of the ranks that are left."""

from __future__ import annotations

import io
import secrets
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hexagram import Communicator, UsageError

from .algorithm import Algorithm, Driver
from .broadcast_state import is_plain, with_tensors
from .checkpoint import as_bytes, as_tensor
from .tensors import span

#: A state that can be sent.
PLAIN = "numbers, texts and dense tensors"

#: Rank that has kept a state, and the number of ranks at that step.
Place = tuple[int, int]

#: Identity of this process, in the states that it has kept itself.
PROCESS = secrets.randbits(62)


def kept(driver: Driver) -> dict[str, Any]:
    """Returns step and states of an algorithm, without copies, and the place of this rank.

    Raises `UsageError` for a state from which other ranks could not continue.
    """
    driver.follow()
    if any(state is not None for state in driver.states):
        name = driver.algorithm.spelling()
        if type(driver.algorithm).regroup is Algorithm.regroup:
            raise UsageError(
                f"{name} has a state, but no method `regroup`; implement it, or restart the job from checkpoints"
            )
        if not is_plain(driver.states):
            raise UsageError(f"the state of {name} has more than {PLAIN}; convert it, for example to a list")
    place = driver.context.rank, driver.context.size
    states = with_tensors(driver.states, without_others)
    return {"step": driver.context.step, "states": states, "place": place, "process": PROCESS}


def without_others(tensor: Tensor) -> Tensor:
    """Returns a tensor whose storage contains no other elements, which would be saved, too."""
    return tensor.detach().clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def restore(driver: Driver, saved: dict[str, Any]) -> None:
    """Restores the result of :func:`kept`, which a new rank has from another one. A collective call.

    If the ranks are the processes that have kept the states, each continues with its own. Otherwise all continue with the
    results of `Algorithm.regroup`.
    """
    driver.restore(saved)
    comm = driver.context.comm
    has_state = any(state is not None for state in saved["states"])
    numbers = torch.tensor([*saved["place"], has_state, saved["process"] == PROCESS])
    every = gathered(comm, numbers, [len(numbers)] * comm.size).view(comm.size, -1).tolist()
    if not any(has_state for _, _, has_state, _ in every):
        return
    places = [(rank, size) for rank, size, _, _ in every]
    is_unchanged = all(numbers[:2] == [rank, comm.size] and numbers[3] for rank, numbers in enumerate(every))
    for bucket, own in zip(driver.buckets, saved["states"], strict=True):
        states = [own] if is_unchanged else states_of_all(comm, own, places)
        states = with_tensors(states, partial(Tensor.to, device=bucket.gradients.device))
        regrouped = states[0] if is_unchanged else driver.algorithm.regroup(driver.context, states, bucket)
        driver.states[bucket.index] = regrouped


def states_of_all(comm: Communicator, own: Any, places: list[Place]) -> list[Any]:
    """Returns the different states of a bucket, in the order of their places. A collective call."""
    # Others with the same place are copies on new ranks, which count if the first has died.
    is_copy = places.index(places[comm.rank]) < comm.rank
    file = io.BytesIO()
    if not is_copy:
        torch.save(own, file)
    content = as_tensor(file.getvalue())
    counts = gathered(comm, torch.tensor([len(content)]), [1] * comm.size).tolist()
    pieces = zip(places, gathered(comm, content, counts).split(counts), strict=True)
    present = sorted((place, as_bytes(piece)) for place, piece in pieces if len(piece))
    return [torch.load(io.BytesIO(piece), map_location="cpu", weights_only=True) for _, piece in present]


def gathered(comm: Communicator, mine: Tensor, counts: list[int]) -> Tensor:
    """Returns the elements of all ranks, of which each has as many as its count."""
    every = mine.new_empty(sum(counts))
    comm.all_gather_v(span(mine), span(every), counts)
    return every
