"""The gated delta rule for training: in chunks of 64 tokens, with gradients, in torch.

Within a chunk the rule becomes matrix products and the inverse of a unit lower-triangular matrix
(Yang et al., "Gated Delta Networks", 2024); only the state that passes from chunk to chunk is
sequential. `tools/peers/reference_numpy.py` has the same rule one token at a time.

Shapes: B batch, T tokens, H heads, N chunks, C = 64 tokens a chunk, dk and dv key and value widths.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
BLOCK = 16
L2_EPS = 1e-6
# Chunks that are handed to the compiled scan at once; more would unroll into too large a program.
SCANNED_AT_ONCE = 16


class ChunkTerms(NamedTuple):
    """What the sequential part needs of each chunk, [B, H, N, ...].

    With S the state [dk, dv] before the chunk, the corrected values are
    V = values - state_read @ S, the outputs query_state @ S + query_key @ V, and the state after it
    chunk_decay * S + key_state^T @ V.
    """

    values: Tensor  # [C, dv]
    state_read: Tensor  # [C, dk]
    query_key: Tensor  # [C, C]
    query_state: Tensor  # [C, dk]
    key_state: Tensor  # [C, dk]
    chunk_decay: Tensor  # [1, 1]


def l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)


def inverse_of_unit_lower(strict_lower: Tensor) -> Tensor:
    """The inverse of I + A for strictly lower triangular A [..., C, C].

    Inside 16 x 16 blocks by the doubled Neumann series (A^16 = 0 makes it exact), then by merging
    blocks. Unlike the series on the whole matrix this stays accurate when keys repeat.
    """
    count = strict_lower.shape[-1] // BLOCK
    blocks = strict_lower.unflatten(-2, (count, BLOCK)).unflatten(-1, (count, BLOCK))
    power = torch.stack([-blocks[..., i, :, i, :] for i in range(count)], -3)
    identity = torch.eye(BLOCK, device=strict_lower.device, dtype=strict_lower.dtype)
    inverse = identity + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    parts = [inverse[..., i, :, :] for i in range(count)]
    width = BLOCK
    while len(parts) > 1:
        merged = []
        for i in range(0, len(parts), 2):
            top, bottom = parts[i], parts[i + 1]
            start, middle, end = i * width, (i + 1) * width, (i + 2) * width
            below = strict_lower[..., middle:end, start:middle]
            upper_half = torch.cat([top, torch.zeros_like(top)], -1)
            lower_half = torch.cat([-(bottom @ below) @ top, bottom], -1)
            merged.append(torch.cat([upper_half, lower_half], -2))
        parts = merged
        width *= 2
    return parts[0]


def chunk_terms(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    bf16_products: bool,
) -> ChunkTerms:
    """All that can be computed for every chunk at once.

    query, key [B, T, H, dk] before normalisation, value [B, T, H, dv], log_decay, beta [B, T, H].
    With `bf16_products` the large products run in bf16; the inverse is always float32.
    """
    batch, tokens, heads, key_width = query.shape
    query, key, value, log_decay, beta = (
        x.float().transpose(1, 2) for x in (query, key, value, log_decay, beta)
    )
    query = l2_normalise(query) * key_width**-0.5
    key = l2_normalise(key)
    padding = (-tokens) % CHUNK
    if padding:
        query, key, value = (F.pad(x, (0, 0, 0, padding)) for x in (query, key, value))
        log_decay, beta = (F.pad(x, (0, padding)) for x in (log_decay, beta))
    chunks = (tokens + padding) // CHUNK
    query, key, value = (x.reshape(batch, heads, chunks, CHUNK, -1) for x in (query, key, value))
    log_decay, beta = (x.reshape(batch, heads, chunks, CHUNK) for x in (log_decay, beta))

    def product(a: Tensor, b: Tensor) -> Tensor:
        if bf16_products:
            return (a.to(torch.bfloat16) @ b.to(torch.bfloat16)).float()
        return a @ b

    total = log_decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).tril()
    between = (total[..., :, None] - total[..., None, :]).clamp_max(0.0).exp()
    decay = torch.where(lower, between, 0.0)
    scaled_key = key * beta[..., None]
    strict_lower = (product(scaled_key, key.transpose(-1, -2)) * decay).tril(-1)
    with torch.no_grad():
        inverse = inverse_of_unit_lower(strict_lower.detach())
    # The value is the inverse; the gradient is the exact -X dA X, not a pass through the series.
    inverse = inverse - inverse @ ((strict_lower - strict_lower.detach()) @ inverse)
    from_start = total.exp()[..., None]
    to_end = (total[..., -1:] - total).exp()[..., None]
    terms = (
        product(inverse, value * beta[..., None]),
        product(inverse, scaled_key * from_start),
        product(query, key.transpose(-1, -2)) * decay,
        query * from_start,
        key * to_end,
    )
    dtype = torch.bfloat16 if bf16_products else torch.float32
    chunk_decay = total[..., -1].exp()[..., None, None]
    return ChunkTerms(*(term.to(dtype) for term in terms), chunk_decay)


def scan_chunks(state: Tensor, terms: ChunkTerms) -> tuple[Tensor, Tensor]:
    """Passes the state [rows, dk, dv] through chunks that lie along axis 0 of the terms.

    Every product is one batched call over rows. Returns the state and the outputs [N, rows, C, dv].
    """
    outputs = []
    for i in range(terms.values.shape[0]):
        low_state = state.to(terms.values.dtype)
        values = torch.baddbmm(terms.values[i], terms.state_read[i], low_state, alpha=-1)
        from_state = torch.bmm(terms.query_state[i], low_state)
        outputs.append(torch.baddbmm(from_state, terms.query_key[i], values))
        update = torch.bmm(terms.key_state[i].transpose(-1, -2), values).float()
        state = state * terms.chunk_decay[i] + update
    return state, torch.stack(outputs)


def by_chunk_and_row(term: Tensor, rows_in_batch: int, chunks: int) -> Tensor:
    """[B, H, chunks of all rows, ...] -> [chunks of one row, rows * heads, ...]."""
    batch, heads = term.shape[:2]
    rest = term.shape[3:]
    split = term.reshape(batch, heads, rows_in_batch, chunks, *rest)
    order = split.permute(3, 0, 2, 1, *range(4, split.dim()))
    return order.reshape(chunks, batch * rows_in_batch * heads, *rest)
