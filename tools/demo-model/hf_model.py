"""Reads the 4-bit checkpoint into Hugging Face's model in float32."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

import affine

GROUP_SIZE, DEFAULT_BITS = 64, 4

# MLX stores these as 1 + weight, Hugging Face around zero.
ZERO_CENTRED_ENDINGS = (
    "layernorm.weight",
    "q_norm.weight",
    "k_norm.weight",
    "model.norm.weight",
    "mtp.norm.weight",
    "pre_fc_norm_embedding.weight",
    "pre_fc_norm_hidden.weight",
)


def dequantized_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the checkpoint in float32 under MLX's names."""
    stored = load_file(folder / "model.safetensors")
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    result = {}
    for name, value in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        if value.dtype == torch.uint32:
            module = name.removesuffix(".weight")
            bits = quantization.get(module, {}).get("bits", DEFAULT_BITS)
            scales, biases = (
                stored[f"{module}.{part}"].float().numpy() for part in ("scales", "biases")
            )
            packed = value.view(torch.int32).numpy().view(np.uint32)
            quantized = affine.Quantized(packed, scales, biases)
            value = torch.from_numpy(affine.dequantize(quantized, bits, GROUP_SIZE))
        result[name] = value.float()
    return result


def with_hugging_face_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """MLX's names, norms, convolutions and split experts turned into Hugging Face's."""
    result = {}
    for name, value in tensors.items():
        name = name.removeprefix("language_model.")
        if name.endswith(ZERO_CENTRED_ENDINGS):
            value = value - 1
        if name.endswith("conv1d.weight"):
            value = value.permute(0, 2, 1).contiguous()
        result[name] = value
    for name in [name for name in result if name.endswith("switch_mlp.gate_proj.weight")]:
        mlp = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (
            result.pop(f"{mlp}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        result[mlp + "experts.gate_up_proj"] = torch.cat([gate, up], 1)
        result[mlp + "experts.down_proj"] = down
    return result


def load_model(folder: Path, tensors: dict[str, Tensor]) -> Qwen3_5MoeForCausalLM:
    """Hugging Face's model with `tensors`, all but the prediction layer, which it does not have."""
    config = json.loads((folder / "config.json").read_text())["text_config"]
    settings = {k: v for k, v in config.items() if k not in ("model_type", "dtype")}
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**settings)).float().eval()
    trunk = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    model.load_state_dict(trunk, strict=True)
    return model
