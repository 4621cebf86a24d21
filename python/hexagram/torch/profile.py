"""Events for the PyTorch profiler, like those of its own backends: `gloo:all_reduce`, from the call to the end.

A profiler shows such an event as asynchronous if it ends on another thread than it began on. Without a profiler, the
usual case, the cost is a check of a flag.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def begin(backend: str, title: str, tensors: Sequence[Tensor]) -> Callable[[], None] | None:
    """Begins the event of an operation; returns the function that ends it, once, and None while no profiler runs."""
    if not torch.autograd._profiler_enabled():
        return None
    handle = torch.autograd._record_function_with_args_enter(f"{backend}:{title}", *tensors)

    def end() -> None:
        thread = threading.Thread(target=torch.autograd._record_function_with_args_exit, args=(handle,))
        thread.start()
        thread.join()

    return end
