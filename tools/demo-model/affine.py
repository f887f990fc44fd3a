"""MLX's affine quantisation in numpy: matrix to codes, codes to packed words, and back.

A row of a matrix is cut into groups; each group has a scale and a bias, and a weight is
scale * code + bias. Codes lie in a row as one little-endian bit stream, the first code in the
lowest bits of the first 32-bit word.
"""

from typing import NamedTuple

import numpy as np

SMALLEST_SCALE = np.float32(1e-7)


class Quantized(NamedTuple):
    """packed [..., n * bits / 32] uint32; scales, biases [..., n / group] float32, bf16 values."""

    packed: np.ndarray
    scales: np.ndarray
    biases: np.ndarray


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to the nearest bf16, ties to even."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (raw + 0x7FFF + ((raw >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [..., n] below 2^bits as words [..., n * bits / 32] uint32."""
    stream = (codes[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32)) & 1
    stream = stream.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes [..., words * 32 / bits] uint32 of packed words."""
    stream = np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*packed.shape[:-1], -1, bits).astype(np.uint32)
    return (codes << np.arange(bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def quantize(weight: np.ndarray, bits: int, group_size: int) -> Quantized:
    """What mx.quantize makes of a matrix [..., n] whose values are bf16."""
    highest_code = np.float32(2**bits - 1)
    groups = weight.astype(np.float32).reshape(*weight.shape[:-1], -1, group_size)
    high, low = groups.max(-1, keepdims=True), groups.min(-1, keepdims=True)
    low_is_edge = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / highest_code, SMALLEST_SCALE)
    scale = np.where(low_is_edge, scale, -scale)
    edge = np.where(low_is_edge, low, high)
    zero_code = np.rint(edge / scale)
    has_zero = zero_code != 0
    scale = np.where(has_zero, edge / np.where(has_zero, zero_code, 1), scale)
    bias = np.where(has_zero, edge, np.float32(0))
    codes = np.clip(np.rint((groups - bias) / scale), 0, highest_code).astype(np.uint32)
    return Quantized(
        pack(codes.reshape(weight.shape), bits),
        round_to_bf16(scale[..., 0]),
        round_to_bf16(bias[..., 0]),
    )


def dequantize(quantized: Quantized, bits: int, group_size: int) -> np.ndarray:
    """The float32 matrix [..., n] that packed words stand for."""
    codes = unpack(quantized.packed, bits).astype(np.float32)
    scales = np.repeat(quantized.scales.astype(np.float32), group_size, axis=-1)
    biases = np.repeat(quantized.biases.astype(np.float32), group_size, axis=-1)
    return codes * scales + biases
