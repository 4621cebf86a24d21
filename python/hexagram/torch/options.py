"""The options of `DataParallel`: their names, their values, and valid combinations.

All options are checked before any communication, so that errors name the option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any

from torch.optim import Optimizer

from hexagram import UsageError
from hexagram._native import Engine

from .algorithm import Algorithm


class Kind:
    """Values of an option: a description, and a function that checks a value."""

    def __init__(self, words: str, holds: Callable[[Any], bool]):
        self.words = words
        self.holds = holds


def is_whole(value: Any) -> bool:
    """Returns whether a value is an integer, excluding booleans."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def word(*words: str) -> Kind:
    """Returns the kind of an option whose value is one of several words."""
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


BYTES = Kind("a number of bytes, 1 or more", lambda value: is_whole(value) and value > 0)
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
POSITIVE = Kind("a number above 0", lambda value: is_number(value) and value > 0)

#: Kind of each option of the engine; None stands for its default.
KINDS = {
    "bucket_bytes": BYTES,
    "first_bucket_bytes": BYTES,
    "order": word("observed", "listed"),
    "unused": word("error", "zero"),
    "buffers": word("broadcast", "average", "off"),
    "hierarchical": SWITCH,
    "streams": Kind("a number of buckets from 1 to 65535", lambda value: is_whole(value) and 0 < value < 1 << 16),
    "clip_norm": POSITIVE,
    "loss_scale": POSITIVE,
    "uneven": SWITCH,
    "seed": Kind("a whole number from 0 to 2⁶⁴ - 1", lambda value: is_whole(value) and 0 <= value < 1 << 64),
    "autotune": SWITCH,
    "overlap": word("backward", "forward"),
}

RATE = Kind("a number of 0 or more", lambda value: is_number(value) and value >= 0)


def engine_options(
    options: dict[str, Any],
    optimizer: Optimizer | Sequence[Optimizer] | str | None,
    algorithm: str | Algorithm,
    rate: float | None,
) -> dict[str, Any]:
    """Returns all options of the engine by name, with None for defaults.

    Raises `UsageError` for an unknown name, a value of a wrong kind, and an invalid combination.
    """
    if unknown := set(options) - set(KINDS):
        raise UsageError(f"DataParallel has no option {', '.join(sorted(unknown))}; use some of {', '.join(KINDS)}")
    for name, value in options.items():
        check_kind(name, value, KINDS[name])
    check_kind("learning_rate", rate, RATE)
    check_trained_by(optimizer, algorithm)
    if options.get("overlap") == "forward":
        check_overlap(optimizer, algorithm)
    listed = {}
    if isinstance(algorithm, Algorithm):
        listed = {"order": "listed"}
        if options.get("uneven") and "before_forward" in algorithm.written():
            raise UsageError(
                f"a rank that has run out of data makes no forward pass, for which {algorithm.spelling()} has a hook; "
                "communicate in after_step, or leave out uneven"
            )
    own = {
        "optimizer": optimizer if isinstance(optimizer, str) else None,
        "groups": None,
        # For a GradScaler. If the next forward pass waits for buckets, the optimizer steps on each
        # bucket before all gradients are known.
        "skip_overflows": options.get("loss_scale") is None and options.get("overlap") != "forward",
        # PyTorch optimizers have their own.
        "learning_rate": rate if optimizer is None or isinstance(optimizer, str) else None,
    }
    return own | dict.fromkeys(KINDS) | listed | options


def check_kind(name: str, value: Any, kind: Kind) -> None:
    """Raises `UsageError` for an invalid value of an option."""
    if value is not None and not kind.holds(value):
        raise UsageError(f"{name} is {value!r}; use {kind.words}")


def check_trained_by(optimizer: Any, algorithm: Any) -> None:
    """Raises `UsageError` for an invalid optimizer or algorithm."""
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        raise UsageError(f"algorithm is the class {algorithm.__name__}; make one of it: {algorithm.__name__}()")
    if not isinstance(algorithm, str | Algorithm):
        raise UsageError(f'algorithm is {algorithm!r}; use a spelling such as "local-sgd(period=4)", or an Algorithm')
    if optimizer is None or isinstance(optimizer, str | Optimizer):
        return
    if not isinstance(optimizer, Sequence) or not optimizer or not all(isinstance(one, Optimizer) for one in optimizer):
        raise UsageError(
            f'optimizer is {optimizer!r}; use one of torch.optim, a list of them, or a spelling such as "adamw"'
        )


def check_overlap(optimizer: Any, algorithm: str | Algorithm) -> None:
    """Raises `UsageError` if communication cannot overlap with the next forward pass."""
    if isinstance(algorithm, Algorithm):
        raise UsageError(
            "the hooks of an algorithm in Python run on the training thread, so they cannot overlap with the passes; "
            'leave overlap at "backward"'
        )
    if optimizer is not None and not isinstance(optimizer, str):
        raise UsageError(
            'overlap="forward" needs an optimizer that steps on each bucket separately, and that of PyTorch steps on all '
            'parameters together; pass the name of an engine optimizer, such as "sgd(momentum=0.9)" or "adamw"'
        )


def check_rate(engine: Engine, optimizer: Any, algorithm: str | Algorithm, rate: float | None) -> None:
    """Raises `UsageError`, and ends the engine, if the algorithm needs a learning rate and there is none."""
    traits = engine.traits()
    if optimizer is None and rate is None and traits["needs_learning_rate"] and traits["names_optimizer"] is None:
        engine.close()
        raise UsageError(
            f"{algorithm} asks for the learning rate of its steps; pass optimizer=…, or learning_rate=…, to DataParallel"
        )


def check_takes_groups(groups: Any, optimizer: Any, algorithm: str | Algorithm) -> None:
    """Raises `UsageError` for groups without an engine optimizer."""
    if not groups or isinstance(optimizer, str):
        return
    if optimizer is None:
        raise UsageError(
            f'groups are of the engine\'s optimizer, and none is named; name the one of {algorithm}, such as "adamw"'
        )
    raise UsageError(
        "groups are of the engine's optimizer; give those of PyTorch's to itself, as torch.optim takes them"
    )
