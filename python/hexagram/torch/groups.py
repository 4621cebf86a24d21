"""Parameter groups of the engine optimizers: learning rates and weight decays, passed to the engine as factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hexagram import UsageError

#: Valid entries of a group.
NAMES = ("params", "lr", "weight_decay")


def all_groups(
    groups: Sequence[dict[str, Any]] | None, names: Sequence[str], parameters: Sequence[nn.Parameter]
) -> list[dict[str, Any]]:
    """Returns the groups of the parameters of a model; the first group has all parameters outside the given ones.

    Raises `UsageError` for an invalid group, an option that groups do not have, and a parameter that the model does not
    train, or that is in two groups.
    """
    named = {id(parameter): name for name, parameter in zip(names, parameters, strict=True)}
    taken: set[int] = set()
    given = []
    for group in groups or ():
        check_group(group)
        own = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for parameter in own:
            if id(parameter) not in named:
                raise UsageError("a group has a parameter that the model does not train; leave it out, or unfreeze it")
            if id(parameter) in taken:
                raise UsageError(f"parameter `{named[id(parameter)]}` is in two groups; leave it in one")
            taken.add(id(parameter))
        given.append(group | {"params": own})
    rest = [parameter for parameter in parameters if id(parameter) not in taken]
    return [{"params": rest}, *given] if rest else given


def check_group(group: Any) -> None:
    """Raises `UsageError` for an invalid group of an engine optimizer."""
    if not isinstance(group, dict) or "params" not in group:
        raise UsageError(
            f"groups has {group!r}; use dictionaries such as {{'params': …, 'lr': 1e-4, 'weight_decay': 0.0}}"
        )
    if strange := sorted(set(group) - set(NAMES)):
        raise UsageError(f"a group has `{strange[0]}`, and the engine's optimizer has {', '.join(NAMES)} by group")
    for name in NAMES[1:]:
        value = group.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value < float("inf"):
            raise UsageError(f"`{name}` of a group is {value!r}; use a number of 0 or more")


def names_of(
    groups: Sequence[dict[str, Any]], names: Sequence[str], parameters: Sequence[nn.Parameter]
) -> tuple[list[set[str]], float]:
    """Returns the names in each group, and the largest weight decay, in the form for the engine."""
    named = {id(parameter): name for name, parameter in zip(names, parameters, strict=True)}
    members = [{named[id(parameter)] for parameter in group["params"]} for group in groups]
    return members, max(float(group.get("weight_decay", 0.0)) for group in groups)


def factors(
    groups: Sequence[dict[str, Any]], own_decay: float | None, spelled: str
) -> tuple[float | None, list[tuple[float, float]]]:
    """Returns the learning rate of a step, and the factors of each group for it and for the weight decay.

    The rate is that of the first group, or the largest if that is 0. Raises `UsageError` for a weight decay that is not
    a multiple of that of the optimizer.
    """
    rates = [group["lr"] for group in groups]
    if rates[0] is None:
        return None, [(1.0, decay_factor(group, own_decay, spelled)) for group in groups]
    rates = [float(rate) for rate in rates]
    rate = rates[0] or max(rates)
    of_rate = [one / rate if one != rate else 1.0 for one in rates]
    return rate, [(one, decay_factor(group, own_decay, spelled)) for one, group in zip(of_rate, groups, strict=True)]


def decay_factor(group: dict[str, Any], own_decay: float | None, spelled: str) -> float:
    """Returns the factor of a group for the weight decay of the optimizer."""
    decay = float(group["weight_decay"])
    if decay == (own_decay or 0.0):
        return 1.0
    if own_decay:
        return decay / own_decay
    raise UsageError(
        f"a group has weight_decay {decay:g}, and {spelled} has none to change; spell the optimizer with one, as in "
        f"adamw(weight_decay={decay:g}), or name the group with it when DataParallel is made"
    )
