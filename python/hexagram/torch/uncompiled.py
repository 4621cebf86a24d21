"""Keeps `torch.compile` away from the functions of a process group.

Compiled code that calls a group, as DDP inside of it does, leaves its graph for that: C++ then calls the group's functions,
which are Python's. The compiler would take them for more code to compile, and cannot: they hand memory to the native layer.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


def uncompiled(kind: Kind) -> Kind:
    """Returns a class whose functions the compiler leaves alone, and all that they call.

    Unlike `torch.compiler.disable`, this does not import the compiler, which takes seconds. Where PyTorch does not offer it,
    nothing is done.
    """
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            _leave_alone(function)
    return kind


def _leave_alone(function: FunctionType) -> None:
    """Has the compiler run a function, and what it calls, as it is."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
