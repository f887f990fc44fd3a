"""MLX's affine quantiser inside the training graph: the forward pass sees 4-bit weights.

The gradient passes straight through (Bengio et al., 2013), so training goes on with full-precision
weights that the quantiser will not hurt. `affine.py` has the same arithmetic in numpy.
"""

import torch
from torch import Tensor

GROUP_SIZE = 64
SMALLEST_SCALE = 1e-7


def fake_quantize(weight: Tensor, bits: int) -> Tensor:
    """`weight` as it reads back from a file with `bits` bits in groups of 64.

    Scales and biases are rounded to bf16, as the file stores them.
    """
    highest_code = 2**bits - 1
    groups = weight.detach().to(torch.bfloat16).float().reshape(-1, GROUP_SIZE)
    high = groups.amax(1, keepdim=True)
    low = groups.amin(1, keepdim=True)
    # The end of the range that lies further from zero becomes the bias and stays exact; the scale
    # points from it to the other end and is adjusted so that zero is a code.
    low_is_edge = low.abs() > high.abs()
    scale = ((high - low) / highest_code).clamp_min(SMALLEST_SCALE)
    scale = torch.where(low_is_edge, scale, -scale)
    edge = torch.where(low_is_edge, low, high)
    zero_code = torch.round(edge / scale)
    has_zero = zero_code != 0
    scale = torch.where(has_zero, edge / zero_code, scale)
    bias = torch.where(has_zero, edge, torch.zeros_like(edge))
    codes = torch.round((groups - bias) / scale).clamp(0, highest_code)
    read_back = codes * scale.to(torch.bfloat16).float() + bias.to(torch.bfloat16).float()
    return weight + (read_back.reshape(weight.shape) - weight).detach()
