#!/usr/bin/env python3
"""Write a small file of matrices packed by MLX's own quantiser, to test another unpacker against.

For every width in 2, 3, 4, 5, 6, 8 bits and every group size in 32, 64, 128 the file holds, under
the prefix `b{bits}_g{group}_`:

    weight    [8, 384]              float32, values exact in bf16: what was quantised
    packed    [8, 384 * bits / 32]  uint32, as in the `.weight` tensor of a checkpoint
    scales    [8, 384 / group]      float32, values exact in bf16
    biases    [8, 384 / group]      float32, values exact in bf16
    dequantized  [8, 384]           float32: mx.dequantize with scales and biases in float32

The rows differ in kind, to reach the quantiser's corner cases: rows 0-3 are normal random values,
row 4 is all positive, row 5 all negative, row 6 all zero, row 7 has one large outlier a group.

Needs mlx and numpy (see requirements.txt).
"""

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np

ROWS, COLUMNS = 8, 384
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


def random_matrix(rng: np.random.Generator) -> mx.array:
    """A [8, 384] bf16 matrix whose rows cover the cases named in this file's docstring."""
    matrix = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    matrix[4] = np.abs(matrix[4]) + 0.1
    matrix[5] = -np.abs(matrix[5]) - 0.1
    matrix[6] = 0.0
    matrix[7, ::32] *= 50.0
    return mx.array(matrix).astype(mx.bfloat16)


def as_float32(array: mx.array) -> np.ndarray:
    """A numpy copy of an MLX array in float32."""
    return np.array(array.astype(mx.float32))


def packed_matrix(weight: mx.array, bits: int, group_size: int) -> dict[str, np.ndarray]:
    """What MLX makes of `weight`, and what it reads back from it."""
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    dequantized = mx.dequantize(
        packed,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=group_size,
        bits=bits,
    )
    return {
        "weight": as_float32(weight),
        "packed": np.array(packed),
        "scales": as_float32(scales),
        "biases": as_float32(biases),
        "dequantized": as_float32(dequantized),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the .npz file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the matrices (default 0)")
    args = parser.parse_args()

    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(args.seed)
    arrays: dict[str, np.ndarray] = {}
    for bits in BITS:
        for group_size in GROUP_SIZES:
            case = packed_matrix(random_matrix(rng), bits, group_size)
            arrays |= {f"b{bits}_g{group_size}_{name}": value for name, value in case.items()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays)
    print(f"{args.out}: {len(arrays)} arrays, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
