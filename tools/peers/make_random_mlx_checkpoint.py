#!/usr/bin/env python3
"""Write a random checkpoint of the Qwen3.5/3.6-MoE family, packed by MLX-LM's own converter.

    make_random_mlx_checkpoint.py OUT [--preset NAME] [--shape FILE] [--hidden N] ...

Under OUT it writes

    src/          the source in Hugging Face's layout, bf16, one file a layer, with an index
    mlx/          what `mlx_lm.convert` makes of it
    golden.npz    reference logits of mlx/, computed by MLX in float32:
                      ids          [T]             the prompt
                      logits_f32   [T, vocabulary] all positions in one call
                      stepped_f32  [T, vocabulary] the same, one token at a time through the cache
                      hidden_f32   [layers + 1, T, hidden] the residual stream
                      gen_f32      [G]             greedy continuation

The shape comes from a preset, then a JSON file of config.json's names (`--shape`), then the
options. Widths and group sizes may differ by module: `--bits-for 'self_attn.q_proj=3:32'` gives
3 bits in groups of 32 to every module whose MLX path matches the regular expression, and `=none`
leaves it in bf16; the first match counts. Modules that nothing matches follow MLX-LM's rule for the
family: routers and shared-expert gates have 8 bits in groups of 64, the rest `--bits` and
`--group-size`.

All weights are random; nothing is downloaded. Goldens are in float32 because in bf16 a random
router picks other experts on rounding noise alone.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import make_prompt_cache
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PRESETS: dict[str, dict[str, int]] = {
    "tiny": dict(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=32,
        num_experts_per_tok=8,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        vocab_size=1024,
    ),
    # Few powers of two: 3 heads on 1 kv head, 5 of 20 experts, 5 layers, vocabulary 777.
    "odd": dict(
        hidden_size=192,
        num_hidden_layers=5,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=20,
        num_experts_per_tok=5,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=192,
        vocab_size=777,
    ),
    # The real widths of a layer of the 35B-A3B model, 4 of its 40 layers.
    "full4": dict(
        hidden_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        vocab_size=248320,
    ),
}

# Option name -> config.json name.
SHAPE_OPTIONS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv-heads": "num_key_value_heads",
    "head-dim": "head_dim",
    "linear-key-heads": "linear_num_key_heads",
    "linear-value-heads": "linear_num_value_heads",
    "linear-key-dim": "linear_key_head_dim",
    "linear-value-dim": "linear_value_head_dim",
    "experts": "num_experts",
    "top-k": "num_experts_per_tok",
    "moe-intermediate": "moe_intermediate_size",
    "shared-intermediate": "shared_expert_intermediate_size",
    "vocab": "vocab_size",
}

CONVOLUTION_TAPS = 4
ATTENTION_INTERVAL = 4  # every fourth layer is full attention
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
# The tokenizer's 256 byte tokens and 8 merges, and the special tokens.
SMALLEST_VOCABULARY = 269


@dataclass(frozen=True)
class BitsRule:
    """How the modules whose path matches `pattern` are packed; bits None leaves them in bf16."""

    pattern: re.Pattern[str]
    bits: int | None
    group_size: int

    @classmethod
    def parse(cls, text: str, default_group_size: int) -> "BitsRule":
        """Reads REGEX=BITS, REGEX=BITS:GROUP or REGEX=none."""
        pattern, separator, setting = text.rpartition("=")
        if not separator:
            raise ValueError(f"--bits-for {text!r}: expected REGEX=BITS[:GROUP] or REGEX=none")
        if setting == "none":
            return cls(re.compile(pattern), None, default_group_size)
        bits, _, group_size = setting.partition(":")
        return cls(re.compile(pattern), int(bits), int(group_size or default_group_size))


def text_config(shape: dict[str, int]) -> dict:
    """config.json's `text_config` for a shape."""
    layer_types = [
        "full_attention" if (layer + 1) % ATTENTION_INTERVAL == 0 else "linear_attention"
        for layer in range(shape["num_hidden_layers"])
    ]
    return shape | dict(
        model_type="qwen3_5_moe_text",
        attention_bias=False,
        attention_dropout=0.0,
        attn_output_gate=True,
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=0,
        full_attention_interval=ATTENTION_INTERVAL,
        hidden_act="silu",
        initializer_range=0.02,
        layer_types=layer_types,
        linear_conv_kernel_dim=CONVOLUTION_TAPS,
        mamba_ssm_dtype="float32",
        max_position_embeddings=262144,
        mlp_only_layers=[],
        mtp_num_hidden_layers=0,
        norm_topk_prob=True,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=10000000,
            partial_rotary_factor=0.25,
            mrope_interleaved=True,
            mrope_section=[11, 11, 10],
        ),
        router_aux_loss_coef=0.001,
        tie_word_embeddings=False,
        use_cache=True,
    )


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1))


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE with 256 byte tokens, a few merges and the family's special tokens."""
    vocabulary = {SPECIAL_TOKENS[0]: 0}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    merges = ["t h", "th e", "i n", "a n", "e r", "o n", "Ġ the", "r e"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    write_json(
        folder / "tokenizer_config.json",
        dict(
            tokenizer_class="PreTrainedTokenizerFast",
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            model_max_length=262144,
            clean_up_tokenization_spaces=False,
            chat_template=template,
        ),
    )
    write_json(folder / "generation_config.json", dict(eos_token_id=[0], do_sample=False))


class RandomWeights:
    """Draws the tensors of one checkpoint from one seed, always in the same order."""

    def __init__(self, seed: int) -> None:
        self.key = mx.random.key(seed)

    def next_key(self) -> mx.array:
        self.key, key = mx.random.split(self.key)
        return key

    def matrix(self, *dimensions: int, std: float | None = None) -> mx.array:
        """Normal values in bf16; by default outputs keep the variance of the inputs."""
        std = dimensions[-1] ** -0.5 if std is None else std
        return (mx.random.normal(dimensions, key=self.next_key()) * std).astype(mx.bfloat16)

    def norm(self, width: int, centre: float = 0.0) -> mx.array:
        """A norm's weight around `centre`: 0 where the source stores norms zero-centred, else 1."""
        noise = mx.random.normal((width,), key=self.next_key()) * 0.1
        return (noise + centre).astype(mx.bfloat16)

    def uniform(self, low: float, high: float, width: int) -> mx.array:
        return mx.random.uniform(low, high, (width,), key=self.next_key())


def linear_attention_weights(random: RandomWeights, shape: dict[str, int]) -> dict[str, mx.array]:
    """The tensors below `linear_attn.` of one layer."""
    hidden = shape["hidden_size"]
    value_heads, value_dim = shape["linear_num_value_heads"], shape["linear_value_head_dim"]
    key_width = shape["linear_num_key_heads"] * shape["linear_key_head_dim"]
    value_width = value_heads * value_dim
    channels = 2 * key_width + value_width
    return {
        "in_proj_qkv.weight": random.matrix(channels, hidden),
        "in_proj_z.weight": random.matrix(value_width, hidden),
        "in_proj_b.weight": random.matrix(value_heads, hidden),
        "in_proj_a.weight": random.matrix(value_heads, hidden),
        "conv1d.weight": random.matrix(channels, 1, CONVOLUTION_TAPS, std=0.5),
        "dt_bias": random.uniform(-4.0, 0.0, value_heads).astype(mx.bfloat16),
        "A_log": mx.log(random.uniform(0.05, 8.0, value_heads)),  # float32 on disk
        "norm.weight": random.norm(value_dim, centre=1.0),
        "out_proj.weight": random.matrix(hidden, value_width),
    }


def full_attention_weights(random: RandomWeights, shape: dict[str, int]) -> dict[str, mx.array]:
    """The tensors below `self_attn.` of one layer."""
    hidden, head_dim = shape["hidden_size"], shape["head_dim"]
    width = shape["num_attention_heads"] * head_dim
    kv_width = shape["num_key_value_heads"] * head_dim
    return {
        "q_proj.weight": random.matrix(2 * width, hidden),
        "k_proj.weight": random.matrix(kv_width, hidden),
        "v_proj.weight": random.matrix(kv_width, hidden),
        "o_proj.weight": random.matrix(hidden, width),
        "q_norm.weight": random.norm(head_dim),
        "k_norm.weight": random.norm(head_dim),
    }


def expert_weights(random: RandomWeights, shape: dict[str, int]) -> dict[str, mx.array]:
    """The tensors below `mlp.` of one layer."""
    hidden, experts = shape["hidden_size"], shape["num_experts"]
    width, shared = shape["moe_intermediate_size"], shape["shared_expert_intermediate_size"]
    return {
        "gate.weight": random.matrix(experts, hidden),
        "shared_expert_gate.weight": random.matrix(1, hidden),
        "experts.gate_up_proj": random.matrix(experts, 2 * width, hidden),
        "experts.down_proj": random.matrix(experts, hidden, width),
        "shared_expert.gate_proj.weight": random.matrix(shared, hidden),
        "shared_expert.up_proj.weight": random.matrix(shared, hidden),
        "shared_expert.down_proj.weight": random.matrix(hidden, shared),
    }


def layer_weights(
    random: RandomWeights, shape: dict[str, int], layer: int, kind: str
) -> dict[str, mx.array]:
    """All tensors of one layer under their full names."""
    prefix = f"model.language_model.layers.{layer}."
    weights = {
        prefix + "input_layernorm.weight": random.norm(shape["hidden_size"]),
        prefix + "post_attention_layernorm.weight": random.norm(shape["hidden_size"]),
    }
    if kind == "linear_attention":
        mixer, mixer_name = linear_attention_weights(random, shape), "linear_attn."
    else:
        mixer, mixer_name = full_attention_weights(random, shape), "self_attn."
    weights |= {prefix + mixer_name + name: value for name, value in mixer.items()}
    experts = expert_weights(random, shape)
    return weights | {prefix + "mlp." + name: value for name, value in experts.items()}


def write_source(folder: Path, shape: dict[str, int], seed: int) -> None:
    """A checkpoint in Hugging Face's layout; one file a layer, so that large shapes fit."""
    folder.mkdir(parents=True, exist_ok=True)
    config = text_config(shape)
    write_json(
        folder / "config.json",
        dict(
            architectures=["Qwen3_5MoeForConditionalGeneration"],
            model_type="qwen3_5_moe",
            text_config=config,
            tie_word_embeddings=False,
        ),
    )
    write_tokenizer(folder)
    random = RandomWeights(seed)
    weight_map: dict[str, str] = {}
    total_size = 0

    def write_shard(name: str, weights: dict[str, mx.array]) -> None:
        nonlocal total_size
        file_name = f"model-{name}.safetensors"
        mx.save_safetensors(str(folder / file_name), weights, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(weights, file_name))
        total_size += sum(value.nbytes for value in weights.values())

    hidden, vocabulary = shape["hidden_size"], shape["vocab_size"]
    write_shard(
        "top",
        {
            "model.language_model.embed_tokens.weight": random.matrix(vocabulary, hidden, std=1.0),
            "model.language_model.norm.weight": random.norm(hidden),
            # Wide logits, so that few of them are nearly equal.
            "lm_head.weight": random.matrix(vocabulary, hidden, std=2.0 * hidden**-0.5),
        },
    )
    for layer, kind in enumerate(config["layer_types"]):
        write_shard(f"layer{layer:02d}", layer_weights(random, shape, layer, kind))
    index = dict(metadata=dict(total_size=total_size), weight_map=weight_map)
    write_json(folder / "model.safetensors.index.json", index)
    print(f"source: {total_size / 1e6:.1f} MB in {folder}")


def quantization_predicate(rules: list[BitsRule]) -> Callable[[str, object], bool | dict]:
    """MLX-LM's predicate for the family, with `rules` put before it."""

    def predicate(path: str, module: object) -> bool | dict:
        for rule in rules:
            if rule.pattern.search(path):
                if rule.bits is None:
                    return False
                width = module.weight.shape[-1]
                if width % rule.group_size:
                    raise ValueError(f"{path}: width {width} is no multiple of {rule.group_size}")
                return {"group_size": rule.group_size, "bits": rule.bits}
        if path.endswith(("mlp.gate", "shared_expert_gate")):
            return {"group_size": 64, "bits": 8}
        return True

    return predicate


def convert(source: Path, target: Path, bits: int, group_size: int, rules: list[BitsRule]) -> None:
    """Runs MLX-LM's converter from `source` to `target`, replacing what is there."""
    if target.exists():
        shutil.rmtree(target)
    mlx_lm.convert(
        str(source),
        mlx_path=str(target),
        quantize=True,
        q_bits=bits,
        q_group_size=group_size,
        q_mode="affine",
        quant_predicate=quantization_predicate(rules),
    )


def prompt_ids(vocabulary: int, length: int, seed: int) -> np.ndarray:
    """Random tokens from the whole vocabulary, the special ones at its start left out."""
    rng = np.random.default_rng(seed + 1)
    return rng.integers(len(SPECIAL_TOKENS), vocabulary, size=length).astype(np.int32)


def write_golden(folder: Path, path: Path, ids: np.ndarray, generate: int) -> None:
    """MLX's float32 results on the packed checkpoint; keys as in this file's docstring."""
    model, _ = mlx_lm.load(str(folder))
    model.set_dtype(mx.float32)
    tokens = mx.array(ids)[None]
    logits = np.array(model(tokens)[0])

    decoder = model.language_model.model
    x = decoder.embed_tokens(tokens)
    hidden = [np.array(x[0])]
    mask = create_attention_mask(x, None)
    for layer in decoder.layers:
        x = layer(x, mask=None if layer.is_linear else mask, cache=None)
        hidden.append(np.array(x[0]))

    cache = make_prompt_cache(model)
    stepped = [np.array(model(mx.array([[int(id)]]), cache=cache)[0, -1]) for id in ids]
    generated: list[int] = []
    last = stepped[-1]
    while len(generated) < generate:
        generated.append(int(last.argmax()))
        last = np.array(model(mx.array([[generated[-1]]]), cache=cache)[0, -1])

    versions = f"mlx {mx.__version__}, mlx_lm {mlx_lm.__version__}, cpu, float32"
    np.savez_compressed(
        path,
        ids=ids,
        logits_f32=logits,
        stepped_f32=np.stack(stepped),
        hidden_f32=np.stack(hidden),
        gen_f32=np.array(generated, np.int32),
        versions=np.array([versions]),
    )
    difference = np.abs(logits - np.stack(stepped)).max()
    print(f"golden: {path}, logits std {logits.std():.3f}, stepped differs by {difference:.1e}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="shape to start from")
    parser.add_argument("--shape", type=Path, help="JSON object of config.json names and values")
    for option, name in SHAPE_OPTIONS.items():
        parser.add_argument(f"--{option}", dest=name, type=int, metavar="N", help=name)
    parser.add_argument("--bits", type=int, default=4, help="bits of a weight (default 4)")
    parser.add_argument("--group-size", type=int, default=64, help="weights a scale (default 64)")
    parser.add_argument(
        "--bits-for",
        action="append",
        default=[],
        metavar="REGEX=BITS[:GROUP]",
        help="other bits for the modules that match; `none` for bf16; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and prompt")
    parser.add_argument("--prompt-len", type=int, default=40, help="tokens in the golden prompt")
    parser.add_argument("--gen", type=int, default=24, help="tokens to continue greedily")
    return parser.parse_args()


def chosen_shape(args: argparse.Namespace) -> dict[str, int]:
    """Preset, then file, then options; raises ValueError for a shape that cannot exist."""
    shape = dict(PRESETS[args.preset])
    if args.shape:
        given = json.loads(args.shape.read_text())
        unknown = set(given) - set(shape)
        if unknown:
            raise ValueError(f"{args.shape}: unknown {sorted(unknown)}; known: {sorted(shape)}")
        shape |= given
    options = {name: getattr(args, name) for name in SHAPE_OPTIONS.values()}
    shape |= {name: value for name, value in options.items() if value is not None}
    if shape["vocab_size"] < SMALLEST_VOCABULARY:
        raise ValueError(f"vocab_size {shape['vocab_size']}: at least {SMALLEST_VOCABULARY}")
    for many, few in (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    ):
        if shape[many] % shape[few]:
            raise ValueError(f"{many} {shape[many]} is no multiple of {few} {shape[few]}")
    if shape["num_experts_per_tok"] > shape["num_experts"]:
        raise ValueError("num_experts_per_tok is larger than num_experts")
    return shape


def main() -> None:
    args = parse_arguments()
    mx.set_default_device(mx.cpu)
    try:
        shape = chosen_shape(args)
        rules = [BitsRule.parse(text, args.group_size) for text in args.bits_for]
    except ValueError as error:
        sys.exit(f"error: {error}")
    write_source(args.out / "src", shape, args.seed)
    convert(args.out / "src", args.out / "mlx", args.bits, args.group_size, rules)
    ids = prompt_ids(shape["vocab_size"], args.prompt_len, args.seed)
    write_golden(args.out / "mlx", args.out / "golden.npz", ids, args.gen)


if __name__ == "__main__":
    main()
