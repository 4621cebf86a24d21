"""Keeps `torch.compile` away from functions that hand memory to the native layer.

Compiled code that calls a process group, as DDP inside of it does, leaves its graph for that: C++ then calls the functions
of the group, which are Python's. The compiler would take them for more code to compile, and cannot; those of the engine,
which autograd calls, it would compile in vain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


def uncompiled(kind: Kind) -> Kind:
    """Returns a class whose functions the compiler leaves alone, and all that they call; except `forward`.

    Unlike `torch.compiler.disable`, this does not import the compiler, which takes seconds. Where PyTorch does not offer it,
    nothing is done.
    """
    file = sys.modules[kind.__module__].__file__
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        # What a decorator of another module has returned shares its code with others.
        if isinstance(function, FunctionType) and function.__code__.co_filename == file and name != "forward":
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            _leave_alone(function.__code__)
    return kind


def _leave_alone(code: CodeType) -> None:
    """Has the compiler run a function, those defined in it, and what they call as they are."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return
    for one in _codes(code):
        set_code_exec_strategy(one, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Returns the code of a function and that of all functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
