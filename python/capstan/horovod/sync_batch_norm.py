# SPDX-License-Identifier: Apache-2.0
"""BatchNorm with the mean and variance of all ranks' samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from .calls import wrong
from .names import Sum, is_initialized, session, size
from .torch_calls import allreduce


class SyncBatchNorm(_BatchNorm):
    """horovod.torch.SyncBatchNorm, for inputs of shape (N, C, ...).

    While it trains, forward and backward have two collectives each, of C
    values: all ranks call both in the same order.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm of {input.dim()} dimensions; expected are at "
                "least 2"
            )

    def forward(self, input: Tensor) -> Tensor:
        """INPUT, normalised and scaled."""
        self._check_input_dim(input)
        of_batch = self.training or self.running_mean is None
        if not of_batch or not is_initialized() or size() == 1:
            return super().forward(input)
        if session().run.is_stale:
            raise wrong(
                "SyncBatchNorm with strategy.staleness: all ranks meet in its "
                "forward pass, and they take different steps: take BatchNorm, "
                "or set strategy.staleness to 0"
            )
        x = input.float()  # of 16 bits
        dims = [d for d in range(x.dim()) if d != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        own = x.new_full((1,), x.numel() / max(x.size(1), 1))
        total = allreduce(torch.cat([x.sum(dims), own]), op=Sum)
        count = total[-1].detach()
        mean = (total[:-1] / count).reshape(shape)
        squares = allreduce(((x - mean) ** 2).sum(dims), op=Sum)
        variance = squares / count
        if self.training and self.track_running_stats:
            self._track(mean.detach().flatten(), squares.detach(), count)
        found = (x - mean) * (variance + self.eps).rsqrt().reshape(shape)
        if self.affine:
            found = found * self.weight.reshape(shape)
            found = found + self.bias.reshape(shape)
        return found.to(input.dtype)

    def _track(self, mean: Tensor, squares: Tensor, count: Tensor) -> None:
        """Moves the running statistics; the variance is the unbiased one."""
        self.num_batches_tracked.add_(1)
        rate = self.momentum
        if rate is None:
            rate = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), rate)
        variance = squares / (count - 1).clamp(min=1)
        self.running_var.lerp_(variance.to(self.running_var), rate)
