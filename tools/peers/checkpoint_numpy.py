"""Reads a checkpoint folder into float32 numpy arrays under Hugging Face's names and conventions.

Two layouts are understood:

- Hugging Face's own: `model.language_model.layers.N...`, experts fused in `experts.gate_up_proj`,
  norm weights stored zero-centred (the scale is 1 + weight), convolution `[channels, 1, taps]`;
- MLX's, quantised or not: `language_model.model.layers.N...`, experts split in
  `switch_mlp.{gate,up,down}_proj`, norms stored as 1 + weight, convolution `[channels, taps, 1]`,
  and for each quantised module `.weight` (packed), `.scales`, `.biases`.

Only numpy is used, so that nothing of MLX or torch can hide a mistake in the format.
"""

import json
import re
import struct
from pathlib import Path

import numpy as np

NUMPY_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "U32": np.uint32,
    "I64": np.int64,
    "I32": np.int32,
}

# These norms are stored as 1 + weight by MLX; the gated norm of the linear attention is not.
ZERO_CENTRED_NORM = re.compile(
    r"(input_layernorm|post_attention_layernorm|q_norm|k_norm|^model\.norm|^mtp\.norm"
    r"|pre_fc_norm_embedding|pre_fc_norm_hidden)\.weight$"
)

Tensors = dict[str, np.ndarray]


def read_safetensors(path: Path) -> Tensors:
    """All tensors of one safetensors file; bf16 is widened to float32."""
    with open(path, "rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
        data = np.frombuffer(file.read(), np.uint8)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        raw = data[start:end]
        if entry["dtype"] == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view(NUMPY_TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The integer codes of `packed` [..., words] uint32, as [..., words * 32 / bits] float32.

    A row is one little-endian bit stream: the first code lies in the lowest bits of the first word,
    and for widths that do not divide 32 a code may cross from one word into the next.
    """
    stream = np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*packed.shape[:-1], -1, bits)
    return (codes * (1 << np.arange(bits))).sum(-1).astype(np.float32)


def dequantize(tensors: Tensors, quantization: dict) -> Tensors:
    """Replaces packed weights by scale * code + bias in float32; other tensors stay as they are.

    `quantization` is the object of that name in config.json: `bits` and `group_size` for all, and
    under a module's name the values that differ for it.
    """
    result = {}
    for name, value in tensors.items():
        if name.endswith((".scales", ".biases")):
            continue
        module = name.removesuffix(".weight")
        if f"{module}.scales" in tensors:
            own = quantization.get(module)
            settings = own if isinstance(own, dict) else quantization
            scales, biases = (
                np.repeat(tensors[f"{module}.{part}"], settings["group_size"], axis=-1)
                for part in ("scales", "biases")
            )
            value = scales * unpack(value, settings["bits"]) + biases
        result[name] = value.astype(np.float32)
    return result


def mlx_to_hugging_face(tensors: Tensors) -> Tensors:
    """MLX's names, split experts, norms and convolutions turned into Hugging Face's."""
    result = {}
    for name, value in tensors.items():
        name = name.removeprefix("language_model.")
        if name.endswith("conv1d.weight"):
            value = np.moveaxis(value, 1, 2)
        if ZERO_CENTRED_NORM.search(name):
            value = value - np.float32(1.0)
        result[name] = value
    for name in [name for name in result if name.endswith("switch_mlp.gate_proj.weight")]:
        mlp = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (
            result.pop(f"{mlp}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        result[f"{mlp}experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        result[f"{mlp}experts.down_proj"] = down
    return result


def load_checkpoint(folder: Path) -> tuple[Tensors, dict]:
    """The weights (`model.layers.N...`, float32) and config.json's `text_config` of a folder."""
    config = json.loads((folder / "config.json").read_text())
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors(path)
    if any(name.startswith("language_model.") for name in tensors):
        weights = mlx_to_hugging_face(dequantize(tensors, config.get("quantization", {})))
    else:
        weights = {
            name.replace("model.language_model.", "model."): value
            for name, value in tensors.items()
        }
    return weights, config.get("text_config", config)
