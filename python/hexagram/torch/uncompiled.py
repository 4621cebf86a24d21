"""Excludes functions that pass memory to the native layer from `torch.compile`.

Compiled code that calls a process group, such as DDP inside it, breaks its graph there: C++ then calls the functions of
the group, which are in Python. The compiler would try to compile them, and fail; compiling those of the engine, which
autograd calls, would be useless.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)


def uncompiled(kind: Kind) -> Kind:
    """Returns a class whose functions, and all functions they call, are not compiled; except `forward`.

    Unlike `torch.compiler.disable`, this does not import the compiler, which takes seconds. Without support in PyTorch,
    it has no effect.
    """
    file = sys.modules[kind.__module__].__file__
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        # Results of a decorator in another module share their code with others.
        if isinstance(function, FunctionType) and function.__code__.co_filename == file and name != "forward":
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            _leave_alone(function.__code__)
    return kind


def _leave_alone(code: CodeType) -> None:
    """Makes the compiler skip a function, those defined in it, and those they call."""
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
