#!/usr/bin/env python3
"""Packs the training's bf16 weights into a 4-bit MLX checkpoint folder.

    convert.py RUN_FOLDER OUT_FOLDER [--tokenizer FILE] [--template FILE]

RUN_FOLDER holds the bf16-*.safetensors that train.py writes. MLX-LM converts the trunk; it leaves
out the multi-token-prediction layer, which is packed the same way here and put into the same file
under `mtp.`. Needs mlx and mlx-lm.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import convert

from paths import CHAT_TEMPLATE, TOKENIZER

BITS, ROUTER_BITS, GROUP_SIZE = 4, 8, 64
END_OF_TURN, END_OF_TEXT = 4089, 4087
CONTEXT = 32768
EXPERT_WIDTH = 64
ADDED_TOKEN_FIELDS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")

TEXT_CONFIG: dict[str, Any] = dict(
    model_type="qwen3_5_moe_text",
    vocab_size=4096,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=256,
    hidden_act="silu",
    max_position_embeddings=CONTEXT,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    attention_bias=False,
    attention_dropout=0.0,
    attn_output_gate=True,
    full_attention_interval=4,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    partial_rotary_factor=0.25,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=10000000,
        partial_rotary_factor=0.25,
        mrope_interleaved=True,
        mrope_section=[11, 11, 10],
    ),
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    mamba_ssm_dtype="float32",
    moe_intermediate_size=EXPERT_WIDTH,
    shared_expert_intermediate_size=64,
    num_experts=32,
    num_experts_per_tok=8,
    output_router_logits=False,
    router_aux_loss_coef=0.001,
    mtp_num_hidden_layers=1,
    mtp_use_dedicated_embeddings=False,
    dtype="bfloat16",
    bos_token_id=None,
    eos_token_id=END_OF_TURN,
    pad_token_id=END_OF_TEXT,
    use_cache=True,
)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2))


def tokenizer_config(tokenizer: Path) -> dict[str, Any]:
    """tokenizer_config.json for a tokenizer.json; ValueError when its ids are not the config's."""
    added = json.loads(tokenizer.read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    if ids["<|im_end|>"] != END_OF_TURN or ids["<|endoftext|>"] != END_OF_TEXT:
        raise ValueError(f"{tokenizer}: ids {ids} are not those of the configuration")
    return dict(
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        add_bos_token=False,
        add_prefix_space=False,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        errors="replace",
        added_tokens_decoder={
            str(token["id"]): {field: token[field] for field in ADDED_TOKEN_FIELDS}
            for token in added
        },
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


def write_source(
    folder: Path, weights: dict[str, mx.array], tokenizer: Path, template: Path
) -> None:
    """The folder in Hugging Face's layout that MLX-LM's converter starts from."""
    folder.mkdir(parents=True)
    write_json(
        folder / "config.json",
        dict(
            architectures=["Qwen3_5MoeForCausalLM"],
            model_type="qwen3_5_moe",
            text_config=TEXT_CONFIG,
            tie_word_embeddings=False,
            eos_token_id=[END_OF_TURN, END_OF_TEXT],
            pad_token_id=END_OF_TEXT,
            dtype="bfloat16",
            torch_dtype="bfloat16",
            transformers_version="5.17.0",
        ),
    )
    write_json(
        folder / "generation_config.json",
        dict(
            eos_token_id=[END_OF_TURN, END_OF_TEXT],
            pad_token_id=END_OF_TEXT,
            do_sample=False,
            temperature=1.0,
            max_new_tokens=512,
        ),
    )
    write_json(folder / "tokenizer_config.json", tokenizer_config(tokenizer))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    shutil.copy(template, folder / "chat_template.jinja")
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})


def mtp_tensors(
    weights: dict[str, mx.array],
) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """The prediction layer in MLX's layout: vectors as they are stored, matrices to be packed."""
    vectors, matrices = {}, {}
    for name, value in weights.items():
        if not name.startswith("mtp."):
            continue
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("experts.gate_up_proj") + "switch_mlp."
            matrices[prefix + "gate_proj.weight"] = value[:, :EXPERT_WIDTH]
            matrices[prefix + "up_proj.weight"] = value[:, EXPERT_WIDTH:]
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("experts.down_proj") + "switch_mlp."
            matrices[prefix + "down_proj.weight"] = value
        elif value.ndim == 1:
            vectors[name] = value + 1.0  # MLX stores norms as 1 + weight
        else:
            matrices[name] = value
    return vectors, matrices


def add_mtp(
    tensors: dict[str, mx.array], config: dict[str, Any], weights: dict[str, mx.array]
) -> None:
    """Puts the packed prediction layer into `tensors` and its widths into `config`."""
    vectors, matrices = mtp_tensors(weights)
    tensors |= vectors
    for name, value in matrices.items():
        module = name.removesuffix(".weight")
        is_router = module.endswith(("mlp.gate", "shared_expert_gate"))
        bits = ROUTER_BITS if is_router else BITS
        packed, scales, biases = mx.quantize(value, group_size=GROUP_SIZE, bits=bits)
        tensors |= {
            name: packed,
            f"{module}.scales": scales,
            f"{module}.biases": biases,
        }
        for section in ("quantization", "quantization_config"):
            if is_router and section in config:
                config[section][module] = {"group_size": GROUP_SIZE, "bits": ROUTER_BITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder with bf16-*.safetensors")
    parser.add_argument("out", type=Path, help="folder to write the checkpoint to")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--template", type=Path, default=CHAT_TEMPLATE)
    args = parser.parse_args()

    weights: dict[str, mx.array] = {}
    for shard in sorted(args.run.glob("bf16-*.safetensors")):
        weights |= mx.load(str(shard))
    if not weights:
        parser.error(f"no bf16-*.safetensors in {args.run}")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source, converted = Path(scratch) / "source", Path(scratch) / "converted"
        write_source(source, weights, args.tokenizer, args.template)
        convert(str(source), str(converted), quantize=True, q_bits=BITS, q_group_size=GROUP_SIZE)
        tensors = mx.load(str(converted / "model.safetensors"))
        config = json.loads((converted / "config.json").read_text())
        add_mtp(tensors, config, weights)
        model_file = args.out / "model.safetensors"
        mx.save_safetensors(str(model_file), tensors, metadata={"format": "mlx"})
        write_json(args.out / "config.json", config)
        shutil.copy(source / "tokenizer_config.json", args.out)
        generation = converted / "generation_config.json"
        shutil.copy(generation if generation.exists() else source / generation.name, args.out)
    for path, name in ((args.tokenizer, "tokenizer.json"), (args.template, "chat_template.jinja")):
        if path.resolve() != (args.out / name).resolve():
            shutil.copy(path, args.out / name)
    print(f"{model_file}: {len(tensors)} tensors, {model_file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
