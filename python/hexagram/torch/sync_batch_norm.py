"""Batch normalization over the samples of all ranks, on the CPU and on GPUs: PyTorch's own SyncBatchNorm is for GPUs only.

    forward    μ, σ² ← mean and variance of each feature over all samples of all ranks;  x̂ = (x − μ) / √(σ² + ε)
    backward   ∂x = (∂x̂ − mean(∂x̂) − x̂ · mean(∂x̂ · x̂)) / √(σ² + ε), the means again over all ranks

n ranks with batches of b then train as one rank with batches of n·b. Each pass costs one small all-reduce, without
overlap: the next layer needs it. Ranks may have different numbers of samples. Source: Ioffe and Szegedy, "Batch
normalization", ICML 2015.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hexagram import Communicator, UsageError

from .default_world import Ranks, communicator_of
from .streams import follow_current
from .tensors import span


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of inputs of shape ``(samples, features, …)`` over all ranks, otherwise as ``BatchNorm``.

    All ranks must call it in the same order. Raises `UsageError` for a batch of one sample on all ranks together.
    """

    def __init__(self, *arguments: Any, process_group: Ranks | None = None, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.communicator = communicator_of(process_group)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise UsageError(f"an input of {input.dim()} dimensions are not samples × features; add a dimension")

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized input, in training with the statistics of all ranks."""
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        sums = statistics(input)
        add_up(self.communicator, sums)
        count = sums[-1].item()
        if count < 2:
            raise UsageError("one sample of a feature has no variance; train on larger batches")
        mean, squares = (sums[:-1] / count).chunk(2)
        variance = (squares - mean * mean).clamp_(min=0)
        self.remember(mean, variance * (count / (count - 1)))
        scale = (variance + self.eps).rsqrt().to(input.dtype)
        return Normalize.apply(input, self.weight, self.bias, mean.to(input.dtype), scale, count, self.communicator)

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor) -> None:
        """Updates the running statistics with those of a batch."""
        if self.running_mean is None or not self.training:
            return
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class Normalize(torch.autograd.Function):
    """x̂ · weight + bias, differentiated through the statistics of all ranks."""

    @staticmethod
    def forward(context, x, weight, bias, mean, scale, count, communicator: Communicator):
        """Returns the normalized input."""
        normal = (x - column(mean, x)) * column(scale, x)
        context.save_for_backward(normal, weight, scale)
        context.count = count
        context.communicator = communicator
        if weight is None:
            return normal.clone()
        return normal * column(weight, x) + column(bias, x)

    @staticmethod
    def backward(context, upstream):
        """Returns the gradients of input, weight and bias; the latter two are local to this rank."""
        normal, weight, scale = context.saved_tensors
        others = [dim for dim in range(upstream.dim()) if dim != 1]
        of_bias = upstream.sum(others)
        of_weight = (upstream * normal).sum(others)
        factor = scale if weight is None else weight * scale
        sums = torch.cat([of_bias, of_weight]).double()
        add_up(context.communicator, sums)
        mean, product = (sums / context.count).to(upstream.dtype).chunk(2)
        of_input = (upstream - column(mean, upstream) - normal * column(product, upstream)) * column(factor, upstream)
        own = (None, None) if weight is None else (of_weight, of_bias)
        return of_input, *own, None, None, None, None


def statistics(x: Tensor) -> Tensor:
    """Returns sums, sums of squares (per feature) and the number of samples: ``(2 · features + 1,)`` of f64."""
    wide = x.detach().double().transpose(0, 1).reshape(x.shape[1], -1)
    count = torch.tensor([wide.shape[1]], dtype=torch.float64, device=wide.device)
    return torch.cat([wide.sum(1), wide.square().sum(1), count])


def add_up(communicator: Communicator, sums: Tensor) -> None:
    """Replaces numbers by their sums over all ranks."""
    communicator.all_reduce(span(sums), "sum")
    follow_current([sums])


def column(values: Tensor, x: Tensor) -> Tensor:
    """Returns one value per feature, in a shape that broadcasts with `x`."""
    return values.view(1, -1, *([1] * (x.dim() - 2)))


def sync_batch_norm(module: nn.Module, process_group: Ranks | None = None) -> nn.Module:
    """Returns a model with every batch normalization in it replaced by one over all ranks of a group; parameters stay the same.

    Call it before you create the optimizer::

        model = hexagram.torch.sync_batch_norm(model)
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        layer = SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_group=process_group,
        )
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, name, getattr(module, name))
        layer.train(module.training)
        return layer
    for name, child in module.named_children():
        setattr(module, name, sync_batch_norm(child, process_group))
    return module
