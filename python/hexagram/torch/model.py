"""Trained parts of a model: its parameters in the order of the forward pass, and its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hexagram import UsageError

from . import streams
from .tensors import DTYPES, is_reachable


def ignored(module: nn.Module) -> set[str]:
    """Returns the names that DDP ignores, which are local to each rank."""
    return set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))


def model_parameters(module: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """Returns names and parameters to train: those that require gradients and are not ignored.

    Raises `UsageError` for one that is not a dense tensor of floats on the CPU or on a CUDA GPU, and without any.
    """
    left_out = ignored(module)
    named = [(name, one) for name, one in module.named_parameters() if one.requires_grad and name not in left_out]
    for name, parameter in named:
        check_place(f"parameter `{name}`", parameter)
        if not parameter.is_floating_point():
            raise UsageError(f"parameter `{name}` of {parameter.dtype} cannot be trained; freeze it, or make it floats")
    if not named:
        raise UsageError(
            f"the model, a {type(module).__name__}, has no parameter to train; leave requires_grad on at those that are, and "
            "use World.communicator for what is not a training"
        )
    return [name for name, _ in named], [parameter for _, parameter in named]


def model_buffers(module: nn.Module) -> list[Tensor]:
    """Returns the buffers of the model, such as running statistics, except those to ignore.

    Raises `UsageError` for one that is not a dense tensor on the CPU or on a CUDA GPU.
    """
    return list(named_buffers(module).values())


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Returns the result of :func:`model_buffers` by name."""
    left_out = ignored(module)
    named = {name: buffer for name, buffer in module.named_buffers() if name not in left_out}
    for name, buffer in named.items():
        check_place(f"buffer `{name}`", buffer)
    return named


def model_frozen(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters of the model that are not trained, by name, except those to ignore.

    All ranks have those of rank 0, as under DDP. Tensors that are not dense, or on other devices than the CPU and CUDA GPUs,
    stay local to each rank.
    """
    left_out = ignored(module)
    named = ((name, one) for name, one in module.named_parameters() if not one.requires_grad and name not in left_out)
    return {name: one.detach() for name, one in named if is_supported(one) and not one.is_quantized}


def check_apart(names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    """Raises `UsageError` for two parameters in the same memory: the engine would separate them."""
    places = []
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.numel():
            strides = zip(parameter.shape, parameter.stride(), strict=True)
            elements = 1 + sum((size - 1) * stride for size, stride in strides)
            start = parameter.data_ptr()
            places.append((start, start + elements * parameter.element_size(), name))
    places.sort()
    for (_, end, name), (start, _, other) in pairwise(places):
        if start < end:
            raise UsageError(
                f"parameters `{name}` and `{other}` lie in the same memory, and would be trained apart from each other; make "
                "them one nn.Parameter, or let one be a clone"
            )


def gpu_of_model(names: Sequence[str], parameters: Sequence[Tensor]) -> int | None:
    """Returns the number of the GPU that has the parameters; None on the CPU.

    Raises `UsageError` if they are on several devices.
    """
    gpus = [streams.gpu_of(parameter) for parameter in parameters]
    for name, parameter, gpu in zip(names, parameters, gpus, strict=True):
        if gpu != gpus[0]:
            raise UsageError(
                f"parameter `{name}` is on {parameter.device}, and `{names[0]}` on {parameters[0].device}; move the model to "
                "one device, or use DistributedDataParallel with hexagram.torch.hook"
            )
    return gpus[0]


def is_supported(tensor: Tensor) -> bool:
    """Returns whether a tensor is dense, and on the CPU or on a CUDA GPU."""
    return is_reachable(tensor) and tensor.layout is torch.strided


def check_place(name: str, tensor: Tensor) -> None:
    """Raises `UsageError` for a tensor that is not dense, or neither on the CPU nor on a CUDA GPU."""
    if not is_reachable(tensor):
        raise UsageError(
            f"{name} is on {tensor.device}, and the engine works on the CPU and on CUDA GPUs; move the model to one of them"
        )
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"{name} is of layout {str(tensor.layout).removeprefix('torch.')}, and the engine works on dense tensors; make "
            "it one by to_dense(), or name it in _ddp_params_and_buffers_to_ignore"
        )


def described(names: Sequence[str], parameters: Sequence[Tensor]) -> list[tuple[str, str, list[int]]]:
    """Returns name, element type and shape of each parameter, in the form for the engine."""
    pairs = zip(names, parameters, strict=True)
    return [(name, DTYPES[parameter.dtype], list(parameter.shape)) for name, parameter in pairs]
