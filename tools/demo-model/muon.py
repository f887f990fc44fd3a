"""Muon: momentum whose update is made orthogonal, for the matrices of hidden layers.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, with the
tuned Newton-Schulz coefficients that followed. Stacked matrices are taken apart into what acts as
one matrix: each head, each expert, each half of a gate-up pair.
"""

import torch
from torch import Tensor

from network import EXPERT_WIDTH, HEAD_DIM, HEADS, HIDDEN_MATRICES, LINEAR_HEAD_DIM, Parameters

NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalised(update: Tensor, dtype: torch.dtype) -> Tensor:
    """Matrices [..., rows, columns] with all singular values brought near 1."""
    x = update.to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in NEWTON_SCHULZ:
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if is_tall else x


def as_matrices(name: str, stack: Tensor) -> Tensor:
    """A stack viewed as the matrices that are orthogonalised one by one."""
    columns = stack.shape[-1]
    if name == "expert_gate_up":
        return stack.reshape(-1, EXPERT_WIDTH, columns)
    if name == "query":
        return stack.reshape(stack.shape[0], 2 * HEADS, HEAD_DIM, columns)
    if name in ("key", "value"):
        return stack.reshape(stack.shape[0], -1, HEAD_DIM, columns)
    if name == "in_qkv":
        return stack.reshape(stack.shape[0], -1, LINEAR_HEAD_DIM, columns)
    return stack


class Muon:
    """Updates the hidden matrices of `parameters` in place from their gradients."""

    def __init__(self, parameters: Parameters, weight_decay: float, dtype: torch.dtype) -> None:
        self.parameters = {name: parameters[name] for name in HIDDEN_MATRICES}
        self.momentum = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.weight_decay = weight_decay
        self.dtype = dtype

    @torch.no_grad()
    def step(self, learning_rate: float, momentum: float) -> None:
        """One update, with Nesterov momentum."""
        for name, parameter in self.parameters.items():
            gradient, average = parameter.grad, self.momentum[name]
            average.lerp_(gradient, 1 - momentum)
            update = as_matrices(name, gradient.lerp(average, momentum))
            rows, columns = update.shape[-2:]
            update = orthogonalised(update, self.dtype).reshape(parameter.shape)
            parameter.mul_(1 - learning_rate * self.weight_decay)
            size = max(1, rows / columns) ** 0.5
            parameter.add_(update.to(parameter.dtype), alpha=-learning_rate * size)
