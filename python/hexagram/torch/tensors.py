"""Tensors that can be sent, and their form: their numbers as arguments of the native layer.

This file defines the treatment of tensors that are not contiguous, complex or of a rare element type. A contiguous
tensor is sent from and received in its own memory, on the CPU or on a GPU. A complex one is sent as pairs of real numbers. One that
is not contiguous is copied before the operation and, if it receives, copied back afterwards. All others are refused,
with a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from hexagram import UsageError
from hexagram._native import Span

from .streams import position_of

#: Element types that the native layer reduces, by their names there.
DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}

#: Integer types.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

#: Reductions by their names in the native layer.
REDUCTIONS: dict[ReduceOp.RedOpType, str] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}

#: The same by number: looking up the enum members is slow.
_BY_NUMBER = {kind.value: name for kind, name in REDUCTIONS.items()}

#: Work after the end of an operation: mostly a copy back. None if there is none.
Finish = Callable[[], object] | None


def reduction(op: ReduceOp | ReduceOp.RedOpType, tensor: Tensor) -> str:
    """Returns the native name of a reduction, which must be valid for `tensor`.

    Raises `UsageError` for an unsupported reduction, also for the element type of the tensor.
    """
    kind = getattr(op, "op", op)
    name = _BY_NUMBER.get(kind.value)
    if name is None:
        raise UsageError(f"hexagram has no reduction {kind}; use one of {names(REDUCTIONS)}")
    if tensor.dtype in DTYPES:
        return name
    if not tensor.is_complex():
        raise UsageError(f"hexagram does not reduce {tensor.dtype}; use one of {names(DTYPES)}")
    if name not in ("sum", "mean"):
        raise UsageError(f"complex numbers have no {name}; use sum or avg, or reduce their parts")
    return name


def names(table: dict) -> str:
    """Returns the keys of a table as a readable list."""
    return ", ".join(str(key).rsplit(".", 1)[-1] for key in table)


def readable(tensor: Tensor) -> Tensor:
    """Returns a contiguous tensor of real numbers with the elements of `tensor`: itself, if possible.

    Raises `UsageError` for a tensor that cannot be sent.
    """
    if tensor.dtype in DTYPES and tensor.layout is torch.strided and tensor.is_contiguous():
        return tensor.resolve_neg() if tensor.is_neg() else tensor
    check(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).contiguous()


def writable(tensor: Tensor) -> tuple[Tensor, Finish]:
    """Returns a contiguous tensor of real numbers to receive in, and the function that then copies it to `tensor`.

    It contains the elements of `tensor`, as many operations both read and write. Raises `UsageError` for a tensor that
    cannot be sent, or written to.
    """
    plain = readable(tensor)
    if plain is tensor or plain.data_ptr() == tensor.data_ptr():
        return plain, None
    check_target(tensor)
    return plain, lambda: put(torch.view_as_complex(plain) if tensor.is_complex() else plain, tensor)


def numbers(tensor: Tensor) -> tuple[Tensor, Finish]:
    """Returns the result of :func:`writable`, with 8-bit floats in 32 bits, so that all floats have a mean."""
    if not str(tensor.dtype).startswith("torch.float8"):
        return writable(tensor)
    wide = tensor.detach().float().contiguous()
    return wide, lambda: put(wide, tensor)


def reducible(tensor: Tensor, op: ReduceOp | ReduceOp.RedOpType, size: int) -> tuple[str, Tensor, Finish]:
    """Returns the native name of a reduction over `size` ranks, and the result of :func:`writable`.

    A mean of integers is their sum in 64 bits, divided without a remainder as in NCCL: programs such as Lightning use
    it. Raises `UsageError` for an unsupported reduction, also for the element type of the tensor.
    """
    name = reduction(op, tensor)
    if name != "mean" or tensor.dtype not in INTEGERS:
        return name, *writable(tensor)
    check(tensor)
    check_target(tensor)
    sums = tensor.detach().to(torch.int64, copy=True, memory_format=torch.contiguous_format)
    return "sum", sums, lambda: put(sums.div(size, rounding_mode="trunc"), tensor)


def put(source: Tensor, target: Tensor) -> None:
    """Copies a tensor to one with the same number of elements; writes inference tensors in inference mode."""
    with torch.inference_mode(target.is_inference()):
        target.detach().copy_(source.reshape(target.shape))


def is_reachable(tensor: Tensor) -> bool:
    """Returns whether a tensor is in the memory of this process or of an NVIDIA GPU."""
    return tensor.is_cpu or tensor.is_cuda


def check(tensor: Tensor) -> None:
    """Raises `UsageError` unless the tensor consists of numbers in the memory of this process or of an NVIDIA GPU."""
    if not is_reachable(tensor):
        raise UsageError(
            f"tensors on {tensor.device} are not supported, only on the CPU and on CUDA; call .cpu() before"
        )
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"a tensor of layout {tensor.layout} cannot be sent by this operation; all_reduce supports sparse ones"
        )
    if tensor.is_quantized:
        raise UsageError("a quantized tensor cannot be sent; send its int_repr() and its scale")


def check_target(tensor: Tensor) -> None:
    """Raises `UsageError` for a receiving tensor whose elements share memory, as with ``expand``."""
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise UsageError(
            f"a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())} has several elements in one place, "
            "so that no result can be put there; pass a copy, as tensor.clone(memory_format=torch.contiguous_format) makes"
        )


def in_place(tensor: Tensor, what: str) -> Span:
    """Returns the native argument for a tensor that `what` changes in place.

    Raises `UsageError` for a tensor that is not contiguous, or whose type cannot be reduced.
    """
    check(tensor)
    if tensor.dtype not in DTYPES:
        raise UsageError(f"{what} does not take {tensor.dtype}; use one of {names(DTYPES)}")
    if not tensor.is_contiguous() or tensor.is_neg():
        raise UsageError(
            f"{what} takes a contiguous tensor, and got one of shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}; pass a copy, as tensor.contiguous() makes, and copy the result back by tensor.copy_"
        )
    return span(tensor)


def span(tensor: Tensor) -> Span:
    """Returns the native argument for a contiguous tensor of real numbers, which must live until the operation ends.

    Elements of types outside `DTYPES` are sent as bytes. On a GPU, the operation follows the work of the current stream.
    Raises `UsageError` for a tensor on any other device, whose address has no meaning here.
    """
    dtype, count = DTYPES.get(tensor.dtype), tensor.numel()
    if dtype is None:
        dtype, count = "u8", count * tensor.element_size()
    position = position_of(tensor)
    if position is not None:
        return Span(tensor.data_ptr(), count, dtype, tensor, gpu=position.gpu, stream=position.handle)
    if not tensor.is_cpu:
        check(tensor)
    return Span(tensor.data_ptr(), count, dtype, tensor)


def rows(count: int, like: Tensor) -> Tensor:
    """Returns an uninitialized tensor of shape `(count, *like.shape)`, for the parts of `count` ranks."""
    return torch.empty((count, *like.shape), dtype=like.dtype, device=like.device)


def copy_rows(source: Tensor, targets: Sequence[Tensor]) -> None:
    """Copies row i of `source`, real numbers, to `targets[i]`, of any layout and with the same number of elements."""
    for row, target in zip(source, targets, strict=True):
        if target.is_complex():
            row = torch.view_as_complex(row)
        put(row, target)


def equal_shapes(tensors: Sequence[Tensor]) -> bool:
    """Returns whether all tensors have the shape of the first."""
    return all(tensor.shape == tensors[0].shape for tensor in tensors)
