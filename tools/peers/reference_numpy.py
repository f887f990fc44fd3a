#!/usr/bin/env python3
"""The forward pass of the Qwen3.5/3.6-MoE text decoder in plain numpy, written for reading.

It shares no code with any engine, and `check_reference.py` holds it against Hugging Face's own
implementation. As a program it reads a checkpoint folder (Hugging Face's layout or MLX's, quantised
or not) and writes the logits at every position:

    reference_numpy.py FOLDER --ids-from golden.npz --out logits.npz

Weights are taken under Hugging Face's names (`model.layers.N...`) with zero-centred norms. All
arithmetic is in the type of the weights; the program uses float64. Shapes in comments: T tokens,
H hidden size, E experts, dk and dv key and value widths of a linear-attention head.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoint_numpy import load_checkpoint

Array = np.ndarray
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """The numbers of config.json's `text_config` that the forward pass needs, under its names."""

    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    partial_rotary_factor: float

    @classmethod
    def from_config(cls, config: dict) -> "Shape":
        """Picks the fields out of a `text_config`, where the rotary ones may be nested."""
        flat = config | config.get("rope_parameters", {})
        fields = {name: flat[name] for name in cls.__dataclass_fields__}
        return cls(**fields | {"layer_types": tuple(fields["layer_types"])})


@dataclass
class LayerState:
    """What one layer remembers between calls: the keys and values, or the recurrent state."""

    keys: Array | None = None
    values: Array | None = None
    convolution: Array | None = None
    memory: Array | None = None


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMS norm whose scale is 1 + weight."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + weight)


def gated_rms_norm(x: Array, weight: Array, gate: Array, eps: float) -> Array:
    """RMS norm with a plain weight (no 1 +), then a SiLU gate."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight * silu(gate)


def l2_norm(x: Array, eps: float = 1e-6) -> Array:
    """Division by the length; eps is added to the sum of squares, not to the mean."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)


def rotate(x: Array, positions: Array, shape: Shape) -> Array:
    """Rotary embedding of x [T, heads, head_dim].

    Only the first head_dim * partial_rotary_factor dimensions turn, each paired with the one half
    that span further on. For text the three position axes of the multimodal variant coincide.
    """
    span = int(shape.head_dim * shape.partial_rotary_factor)
    frequencies = shape.rope_theta ** (-np.arange(0, span, 2) / span)
    angles = positions[:, None] * frequencies[None]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second, rest = x[..., : span // 2], x[..., span // 2 : span], x[..., span:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def gated_attention(
    x: Array, weights: Weights, prefix: str, shape: Shape, state: LayerState
) -> Array:
    """Causal grouped-query attention whose output is gated; x [T, H] -> [T, H]."""
    tokens, width = x.shape[0], shape.head_dim
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    # A head's rows of q_proj are its query, then its gate.
    both = (x @ weights[prefix + "q_proj.weight"].T).reshape(tokens, heads, 2 * width)
    query, gate = both[..., :width], both[..., width:]
    key = (x @ weights[prefix + "k_proj.weight"].T).reshape(tokens, kv_heads, width)
    value = (x @ weights[prefix + "v_proj.weight"].T).reshape(tokens, kv_heads, width)
    query = rms_norm(query, weights[prefix + "q_norm.weight"], shape.rms_norm_eps)
    key = rms_norm(key, weights[prefix + "k_norm.weight"], shape.rms_norm_eps)

    past = 0 if state.keys is None else len(state.keys)
    positions = np.arange(past, past + tokens)
    query, key = rotate(query, positions, shape), rotate(key, positions, shape)
    if state.keys is not None:
        key = np.concatenate([state.keys, key])
        value = np.concatenate([state.values, value])
    state.keys, state.values = key, value

    out = np.zeros_like(query)
    in_future = np.arange(past + tokens)[None, :] > positions[:, None]
    for head in range(heads):
        kv_head = head // (heads // kv_heads)  # consecutive query heads share one kv head
        scores = query[:, head] @ key[:, kv_head].T / np.sqrt(width)
        out[:, head] = softmax(np.where(in_future, -np.inf, scores)) @ value[:, kv_head]
    return (out * sigmoid(gate)).reshape(tokens, -1) @ weights[prefix + "o_proj.weight"].T


def delta_rule_recurrent(
    query: Array, key: Array, value: Array, log_decay: Array, beta: Array, memory: Array
) -> tuple[Array, Array]:
    """The gated delta rule, one token at a time (Yang et al., "Gated Delta Networks", 2024).

    query, key [T, heads, dk] are normalised (the query also scaled), value [T, heads, dv],
    log_decay and beta [T, heads], memory [heads, dk, dv]. Returns the outputs and the new memory.
    """
    out = np.zeros_like(value)
    for t in range(len(query)):
        memory = memory * np.exp(log_decay[t])[:, None, None]
        predicted = np.einsum("hkv,hk->hv", memory, key[t])
        error = beta[t][:, None] * (value[t] - predicted)
        memory = memory + np.einsum("hk,hv->hkv", key[t], error)
        out[t] = np.einsum("hkv,hk->hv", memory, query[t])
    return out, memory


def delta_rule_chunked(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    beta: Array,
    memory: Array,
    chunk: int = 16,
) -> tuple[Array, Array]:
    """The same function, `chunk` tokens at a time: matrix products and one triangular solve each.

    Within a chunk let G be the running sum of log_decay and D[i, j] = exp(G_i - G_j) for i >= j.
    The corrected values U solve (I + strict_lower(beta K K^T * D)) U = beta (V - exp(G) K S).
    """
    out, memory = np.zeros_like(value), memory.copy()
    for start in range(0, len(query), chunk):
        part = slice(start, min(start + chunk, len(query)))
        for head in range(query.shape[1]):
            q, k, v = query[part, head], key[part, head], value[part, head]
            b, g = beta[part, head][:, None], np.cumsum(log_decay[part, head])
            decay = np.tril(np.exp(np.minimum(g[:, None] - g[None, :], 0)))
            grown = np.exp(g)[:, None]
            system = np.eye(len(q)) + np.tril((b * k) @ k.T * decay, -1)
            corrected = np.linalg.solve(system, b * v - (b * grown * k) @ memory[head])
            out[part, head] = (grown * q) @ memory[head] + (q @ k.T * decay) @ corrected
            remaining = np.exp(g[-1] - g)[:, None]
            memory[head] = np.exp(g[-1]) * memory[head] + (remaining * k).T @ corrected
    return out, memory


def gated_delta_net(
    x: Array, weights: Weights, prefix: str, shape: Shape, state: LayerState, chunked: bool
) -> Array:
    """The linear-attention block; x [T, H] -> [T, H]."""
    tokens = x.shape[0]
    dk, dv = shape.linear_key_head_dim, shape.linear_value_head_dim
    key_heads, value_heads = shape.linear_num_key_heads, shape.linear_num_value_heads
    key_width, taps = key_heads * dk, shape.linear_conv_kernel_dim

    mixed = x @ weights[prefix + "in_proj_qkv.weight"].T  # query | key | value
    gate = (x @ weights[prefix + "in_proj_z.weight"].T).reshape(tokens, value_heads, dv)
    beta = sigmoid(x @ weights[prefix + "in_proj_b.weight"].T)
    step = softplus(x @ weights[prefix + "in_proj_a.weight"].T + weights[prefix + "dt_bias"])
    log_decay = -np.exp(weights[prefix + "A_log"]) * step

    # Causal depthwise convolution; the state is the last taps - 1 inputs, tap taps - 1 the newest.
    past = state.convolution
    if past is None:
        past = np.zeros((taps - 1, mixed.shape[1]), mixed.dtype)
    padded = np.concatenate([past, mixed])
    kernel = weights[prefix + "conv1d.weight"][:, 0, :]
    mixed = silu(sum(padded[tap : tap + tokens] * kernel[:, tap] for tap in range(taps)))

    query = mixed[:, :key_width].reshape(tokens, key_heads, dk)
    key = mixed[:, key_width : 2 * key_width].reshape(tokens, key_heads, dk)
    value = mixed[:, 2 * key_width :].reshape(tokens, value_heads, dv)
    # Value head j reads key head j // (value_heads / key_heads).
    repeats = value_heads // key_heads
    query = np.repeat(l2_norm(query) / np.sqrt(dk), repeats, axis=1)
    key = np.repeat(l2_norm(key), repeats, axis=1)

    memory = state.memory
    if memory is None:
        memory = np.zeros((value_heads, dk, dv), x.dtype)
    delta_rule = delta_rule_chunked if chunked else delta_rule_recurrent
    out, memory = delta_rule(query, key, value, log_decay, beta, memory)
    state.convolution, state.memory = padded[-(taps - 1) :], memory

    out = gated_rms_norm(out, weights[prefix + "norm.weight"], gate, shape.rms_norm_eps)
    return out.reshape(tokens, -1) @ weights[prefix + "out_proj.weight"].T


def gated_mlp(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def mixture_of_experts(x: Array, weights: Weights, prefix: str, shape: Shape) -> Array:
    """Routed experts plus the gated shared expert; x [T, H] -> [T, H]."""
    width = shape.moe_intermediate_size
    # Softmax over all experts, then the best k, then weights that sum to 1.
    probabilities = softmax(x @ weights[prefix + "gate.weight"].T)
    chosen = np.argsort(-probabilities, -1, kind="stable")[:, : shape.num_experts_per_tok]
    share = np.take_along_axis(probabilities, chosen, -1)
    share = share / share.sum(-1, keepdims=True)

    gate_up = weights[prefix + "experts.gate_up_proj"]  # [E, 2 * width, H], gate rows first
    down = weights[prefix + "experts.down_proj"]  # [E, H, width]
    routed = np.zeros_like(x)
    for t in range(len(x)):
        for expert, part in zip(chosen[t], share[t], strict=True):
            gate, up = gate_up[expert][:width], gate_up[expert][width:]
            routed[t] += part * gated_mlp(x[t], gate, up, down[expert])

    shared = gated_mlp(
        x,
        weights[prefix + "shared_expert.gate_proj.weight"],
        weights[prefix + "shared_expert.up_proj.weight"],
        weights[prefix + "shared_expert.down_proj.weight"],
    )
    return routed + sigmoid(x @ weights[prefix + "shared_expert_gate.weight"].T) * shared


def forward(
    ids: Array,
    weights: Weights,
    shape: Shape,
    states: list[LayerState] | None = None,
    chunked: bool = False,
) -> tuple[Array, Array]:
    """Logits [T, vocabulary] and the residual stream [layers + 1, T, H] of the tokens `ids`.

    `states` holds one LayerState a layer and is updated, so that the next call goes on from there;
    without it the tokens are a whole text. `chunked` picks the chunked form of the delta rule.
    """
    if states is None:
        states = [LayerState() for _ in shape.layer_types]
    x = weights["model.embed_tokens.weight"][ids]
    residuals = [x]
    for layer, (kind, state) in enumerate(zip(shape.layer_types, states, strict=True)):
        prefix = f"model.layers.{layer}."
        h = rms_norm(x, weights[prefix + "input_layernorm.weight"], shape.rms_norm_eps)
        if kind == "full_attention":
            x = x + gated_attention(h, weights, prefix + "self_attn.", shape, state)
        else:
            x = x + gated_delta_net(h, weights, prefix + "linear_attn.", shape, state, chunked)
        h = rms_norm(x, weights[prefix + "post_attention_layernorm.weight"], shape.rms_norm_eps)
        x = x + mixture_of_experts(h, weights, prefix + "mlp.", shape)
        residuals.append(x)
    final = rms_norm(x, weights["model.norm.weight"], shape.rms_norm_eps)
    return final @ weights["lm_head.weight"].T, np.stack(residuals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument(
        "--ids-from", type=Path, required=True, help=".npz file whose `ids` are the tokens"
    )
    parser.add_argument("--out", type=Path, help=".npz file to write: ids, logits_f32, hidden_f32")
    args = parser.parse_args()

    weights, config = load_checkpoint(args.folder)
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    with np.load(args.ids_from) as golden:
        given = {name: golden[name] for name in golden.files}
    logits, hidden = forward(given["ids"], weights, Shape.from_config(config))
    if "logits_f32" in given:
        worst = np.abs(logits - given["logits_f32"]).max()
        same = (logits.argmax(-1) == given["logits_f32"].argmax(-1)).mean()
        print(f"against {args.ids_from}: largest difference {worst:.2e}, top-1 equal {same:.1%}")
    if args.out:
        np.savez_compressed(
            args.out,
            ids=given["ids"].astype(np.int32),
            logits_f32=logits.astype(np.float32),
            hidden_f32=hidden.astype(np.float32),
            versions=np.array([f"numpy {np.__version__}, float64"]),
        )
        print(f"wrote {args.out}: logits {logits.shape}")


if __name__ == "__main__":
    main()
