"""The network of the demo model for training: the maths of Qwen3.5/3.6-MoE text models in torch.

Weights live in stacks, one tensor for the same matrix of all layers; `hf_names.py` translates to
and from Hugging Face's names. Layers 0, 1, 2, 4, 5, 6 are Gated DeltaNet, 3 and 7 gated attention;
the multi-token-prediction layer is attention and takes the last place of each stack. Every token
visits every expert, with weight 0 for those not chosen: at this size that is faster than sorting
tokens.

Shapes: B batch, T tokens, H hidden size. A batch holds packed rows (see packing.py).
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from delta_rule import (
    SCANNED_AT_ONCE,
    ChunkTerms,
    by_chunk_and_row,
    chunk_terms,
    scan_chunks,
)
from fake_quantize import fake_quantize

HIDDEN, VOCABULARY, LAYERS = 256, 4096, 8
LINEAR_LAYERS, ATTENTION_LAYERS = [0, 1, 2, 4, 5, 6], [3, 7]
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM = 2, 4, 128
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 256
ROTARY_DIM, ROPE_THETA = 64, 1e7
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 32, 8, 64
CONVOLUTION_TAPS = 4
NORM_EPS = 1e-6

LINEAR_KEY_WIDTH = LINEAR_KEY_HEADS * LINEAR_HEAD_DIM
LINEAR_VALUE_WIDTH = LINEAR_VALUE_HEADS * LINEAR_HEAD_DIM
LINEAR_CHANNELS = 2 * LINEAR_KEY_WIDTH + LINEAR_VALUE_WIDTH
ATTENTION_WIDTH, KV_WIDTH = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
# Places of the multi-token-prediction layer in the stacks.
MTP_ATTENTION, MTP_LAYER = len(ATTENTION_LAYERS), LAYERS

# Subtracted from the log decay at the first token of a chat, so that nothing of the one before it
# in the row is left in the state.
FORGET = 50.0

Parameters = dict[str, Tensor]
Stacks = dict[str, tuple[Tensor, ...]]

# The order is that of the random numbers in `initial_parameters`.
SHAPES: dict[str, tuple[int, ...]] = {
    "embed": (VOCABULARY, HIDDEN),
    "head": (VOCABULARY, HIDDEN),
    "final_norm": (HIDDEN,),
    "in_qkv": (6, LINEAR_CHANNELS, HIDDEN),
    "in_z": (6, LINEAR_VALUE_WIDTH, HIDDEN),
    "in_b": (6, LINEAR_VALUE_HEADS, HIDDEN),
    "in_a": (6, LINEAR_VALUE_HEADS, HIDDEN),
    "conv": (6, LINEAR_CHANNELS, CONVOLUTION_TAPS),
    "a_log": (6, LINEAR_VALUE_HEADS),
    "dt_bias": (6, LINEAR_VALUE_HEADS),
    "gated_norm": (6, LINEAR_HEAD_DIM),
    "linear_out": (6, HIDDEN, LINEAR_VALUE_WIDTH),
    "query": (3, 2 * ATTENTION_WIDTH, HIDDEN),
    "key": (3, KV_WIDTH, HIDDEN),
    "value": (3, KV_WIDTH, HIDDEN),
    "attention_out": (3, HIDDEN, ATTENTION_WIDTH),
    "query_norm": (3, HEAD_DIM),
    "key_norm": (3, HEAD_DIM),
    "router": (9, EXPERTS, HIDDEN),
    "expert_gate_up": (9, EXPERTS, 2 * EXPERT_WIDTH, HIDDEN),
    "expert_down": (9, EXPERTS, HIDDEN, EXPERT_WIDTH),
    "shared_gate_up": (9, 2 * EXPERT_WIDTH, HIDDEN),
    "shared_down": (9, HIDDEN, EXPERT_WIDTH),
    "shared_gate": (9, 1, HIDDEN),
    "mixer_norm": (9, HIDDEN),
    "mlp_norm": (9, HIDDEN),
    "mtp_fc": (HIDDEN, 2 * HIDDEN),
    "mtp_embedding_norm": (HIDDEN,),
    "mtp_hidden_norm": (HIDDEN,),
    "mtp_norm": (HIDDEN,),
}
NOT_STACKED = ("embed", "head", "final_norm") + tuple(n for n in SHAPES if n.startswith("mtp_"))
STACKED = tuple(name for name in SHAPES if name not in NOT_STACKED)

# Stored around zero; the scale is 1 + weight.
ZERO_CENTRED = (
    "final_norm",
    "query_norm",
    "key_norm",
    "mixer_norm",
    "mlp_norm",
    "mtp_embedding_norm",
    "mtp_hidden_norm",
    "mtp_norm",
)
# Trained by Muon; the rest by AdamW.
HIDDEN_MATRICES = (
    "in_qkv",
    "in_z",
    "linear_out",
    "query",
    "key",
    "value",
    "attention_out",
    "expert_gate_up",
    "expert_down",
    "shared_gate_up",
    "shared_down",
    "mtp_fc",
)
FOUR_BIT = HIDDEN_MATRICES + ("embed", "head", "in_b", "in_a")
EIGHT_BIT = ("router", "shared_gate")


class Batch(NamedTuple):
    """Packed rows as the network takes them.

    `ids`, `weights` and `positions` are [B, T]. For the packed attention kernel `starts` holds the
    offset of each chat and the total length, int32, and `longest` a bound on a chat's length; None
    and 0 mean that the batch is one text or that the chats follow from the positions.
    """

    ids: Tensor
    weights: Tensor
    positions: Tensor
    starts: Tensor | None = None
    longest: int = 0


def initial_value(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The random start of one parameter."""
    if name in ZERO_CENTRED:
        return torch.zeros(shape)
    if name == "gated_norm":
        return torch.ones(shape)
    if name == "a_log":
        return torch.empty(shape).uniform_(1, 16, generator=generator).log()
    if name == "dt_bias":
        # The inverse of softplus, so that steps start log-uniform between 0.001 and 0.1.
        low, high = math.log(1e-3), math.log(0.1)
        step = torch.exp(torch.empty(shape).uniform_(low, high, generator=generator))
        return step + torch.log(-torch.expm1(-step))
    if name == "conv":
        return torch.empty(shape).uniform_(-0.5, 0.5, generator=generator)
    if name == "embed":
        std = 0.3
    elif name == "head":
        std = 0.02
    elif name in ("linear_out", "attention_out", "expert_down", "shared_down"):
        std = 0.2 * shape[-1] ** -0.5
    elif name in ("router", "shared_gate", "in_a", "in_b"):
        std = 0.03
    else:
        std = shape[-1] ** -0.5
    return torch.randn(shape, generator=generator) * std


def initial_parameters(device: str, seed: int = 0) -> Parameters:
    """Fresh parameters in float32 that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: initial_value(name, shape, generator).to(device).requires_grad_()
        for name, shape in SHAPES.items()
    }


def effective_weights(
    parameters: Parameters, quantized: bool, dtype: torch.dtype = torch.bfloat16
) -> Parameters:
    """The weights that the forward pass uses: quantised if asked, norms as 1 + w, in `dtype`."""
    weights = {}
    for name, value in parameters.items():
        if name == "a_log":
            weights[name] = value
            continue
        if quantized and name in FOUR_BIT:
            value = fake_quantize(value, 4)
        elif quantized and name in EIGHT_BIT:
            value = fake_quantize(value, 8)
        if name in ZERO_CENTRED:
            value = value.to(dtype) + 1.0
        weights[name] = value.to(dtype)
    return weights


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """RMS norm computed in float32; `scale` is the whole factor."""
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)
    return (normal * scale.float()).to(x.dtype)


def linear_attention_inputs(
    x: Tensor,
    norm: Tensor,
    in_qkv: Tensor,
    in_z: Tensor,
    in_b: Tensor,
    in_a: Tensor,
    conv: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    positions: Tensor,
) -> tuple[Tensor, ...]:
    """Norm, projections and convolution: query, key, value, log decay, beta, output gate."""
    batch, tokens, _ = x.shape
    h = rms_norm(x, norm)
    projected = h @ in_qkv.t()
    mixed = projected * conv[:, CONVOLUTION_TAPS - 1]
    for back in range(1, CONVOLUTION_TAPS):
        earlier = F.pad(projected, (0, 0, back, 0))[:, :tokens]
        # Before its first token a chat sees zeros, not the chat before it in the row.
        in_chat = (positions >= back)[..., None]
        earlier = torch.where(in_chat, earlier, torch.zeros_like(earlier))
        mixed = mixed + earlier * conv[:, CONVOLUTION_TAPS - 1 - back]
    widths = [LINEAR_KEY_WIDTH, LINEAR_KEY_WIDTH, LINEAR_VALUE_WIDTH]
    query, key, value = F.silu(mixed).split(widths, -1)
    key_shape = (batch, tokens, LINEAR_KEY_HEADS, LINEAR_HEAD_DIM)
    repeats = LINEAR_VALUE_HEADS // LINEAR_KEY_HEADS
    query = query.view(key_shape).repeat_interleave(repeats, 2)
    key = key.view(key_shape).repeat_interleave(repeats, 2)
    value = value.view(batch, tokens, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM)
    beta = torch.sigmoid((h @ in_b.t()).float())
    step = F.softplus((h @ in_a.t()).float() + dt_bias.float())
    log_decay = -a_log.float().exp() * step
    log_decay = torch.where((positions == 0)[..., None], log_decay - FORGET, log_decay)
    gate = h @ in_z.t()
    contiguous = query.contiguous(), key.contiguous(), value.contiguous()
    return *contiguous, log_decay, beta.to(value.dtype), gate


def linear_attention_output(
    x: Tensor, mixed: Tensor, gate: Tensor, norm: Tensor, out: Tensor
) -> Tensor:
    """Gated norm, output projection and residual."""
    batch, tokens, _ = x.shape
    wide = mixed.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)
    open_gate = F.silu(gate.view(batch, tokens, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM).float())
    gated = (norm.float() * wide).to(x.dtype).float() * open_gate
    return x + gated.to(x.dtype).reshape(batch, tokens, -1) @ out.t()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first ROTARY_DIM dimensions, paired half a span apart."""
    turning, rest = x[..., :ROTARY_DIM], x[..., ROTARY_DIM:]
    first, second = turning[..., : ROTARY_DIM // 2], turning[..., ROTARY_DIM // 2 :]
    across = torch.cat([-second, first], -1)
    return torch.cat([(turning.float() * cos + across.float() * sin).to(x.dtype), rest], -1)


def attention_inputs(
    x: Tensor,
    norm: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Norm, projections, rotation: query, key, value [B, T, heads, HEAD_DIM], gate [B, T, -1]."""
    batch, tokens, _ = x.shape
    h = rms_norm(x, norm)
    both = (h @ query_weight.t()).view(batch, tokens, HEADS, 2 * HEAD_DIM)
    query, gate = both.chunk(2, -1)
    key = (h @ key_weight.t()).view(batch, tokens, KV_HEADS, HEAD_DIM)
    value = (h @ value_weight.t()).view(batch, tokens, KV_HEADS, HEAD_DIM)
    exponents = torch.arange(0, ROTARY_DIM, 2, device=x.device).float() / ROTARY_DIM
    angles = positions[..., None].float() * (1.0 / (ROPE_THETA**exponents))
    angles = torch.cat([angles, angles], -1)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    query = rotate(rms_norm(query, query_norm), cos, sin)
    key = rotate(rms_norm(key, key_norm), cos, sin)
    return query, key, value, gate.reshape(batch, tokens, -1)


def attention_output(x: Tensor, mixed: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    return x + (mixed * torch.sigmoid(gate)) @ out.t()


def mixture_of_experts(
    x: Tensor,
    norm: Tensor,
    router: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor,
    shared_down: Tensor,
    shared_gate: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The residual stream after the experts, the balance loss, each expert's load."""
    batch, tokens, _ = x.shape
    h = rms_norm(x, norm).reshape(batch * tokens, HIDDEN)
    probabilities = torch.softmax((h @ router.t()).float(), -1)
    best = torch.topk(probabilities, EXPERTS_PER_TOKEN, -1).values
    chosen = probabilities >= best[:, -1:]
    kept = torch.where(chosen, probabilities, torch.zeros_like(probabilities))
    share = kept / best.sum(-1, keepdim=True)

    wide = h @ gate_up.reshape(EXPERTS * 2 * EXPERT_WIDTH, HIDDEN).t()
    wide = wide.view(-1, EXPERTS, 2 * EXPERT_WIDTH)
    gate, up = wide[..., :EXPERT_WIDTH], wide[..., EXPERT_WIDTH:]
    inner = (F.silu(gate) * up * share.to(h.dtype)[..., None]).reshape(-1, EXPERTS * EXPERT_WIDTH)
    routed = inner @ down.permute(0, 2, 1).reshape(EXPERTS * EXPERT_WIDTH, HIDDEN)

    shared = h @ shared_gate_up.t()
    shared = (F.silu(shared[:, :EXPERT_WIDTH]) * shared[:, EXPERT_WIDTH:]) @ shared_down.t()
    y = routed + torch.sigmoid(h @ shared_gate.t()) * shared
    load = chosen.float().mean(0)
    balance = EXPERTS * (load / EXPERTS_PER_TOKEN * probabilities.mean(0)).sum()
    return x + y.view(batch, tokens, HIDDEN), balance, load


def weighted_cross_entropy(
    hidden: Tensor, norm: Tensor, head: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The normed hidden states and the weighted mean loss of predicting `targets` from them."""
    y = rms_norm(hidden, norm)
    logits = (y.reshape(-1, HIDDEN) @ head.t()).float()
    losses = F.cross_entropy(logits, targets.reshape(-1), reduction="none")
    return y, (losses * weights.reshape(-1)).sum() / weights.sum().clamp_min(1.0)


def mtp_input(
    hidden: Tensor, embedding: Tensor, hidden_norm: Tensor, embedding_norm: Tensor, fc: Tensor
) -> Tensor:
    """Joins a position's final hidden state with the embedding of the token after it."""
    parts = [rms_norm(embedding, embedding_norm), rms_norm(hidden, hidden_norm)]
    return torch.cat(parts, -1) @ fc.t()


@dataclass
class Stages:
    """The functions between which the network is cut for torch.compile, compiled or not."""

    linear_attention_inputs: Any = linear_attention_inputs
    linear_attention_output: Any = linear_attention_output
    attention_inputs: Any = attention_inputs
    attention_output: Any = attention_output
    mixture_of_experts: Any = mixture_of_experts
    weighted_cross_entropy: Any = weighted_cross_entropy
    mtp_input: Any = mtp_input
    chunk_terms: Any = chunk_terms
    scan_chunks: Any = scan_chunks

    @classmethod
    def compiled(cls, with_recurrence: bool = True) -> "Stages":
        """All stages compiled for fixed shapes; the delta rule only if asked."""
        stages = cls()
        for name, function in vars(stages).items():
            if with_recurrence or name not in ("chunk_terms", "scan_chunks"):
                setattr(stages, name, torch.compile(function, dynamic=False))
        return stages


@dataclass
class Network:
    """The forward pass, and how it is run.

    `packed_attention` uses the variable-length attention kernel of CUDA, which needs
    `Batch.starts`; without it a mask is built from the positions. A batch of size 1 is taken as
    `rows` rows one after another, none of whose chats crosses into the next row. `bf16_products`
    lets the delta rule multiply in bf16.
    """

    packed_attention: bool = False
    rows: int = 1
    bf16_products: bool = False
    stages: Stages = field(default_factory=Stages)

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
    ) -> Tensor:
        """The outputs [B, T, H, dv]; all rows pass through the chunks side by side."""
        batch, tokens, heads, width = value.shape
        rows = self.rows if batch == 1 else batch
        rows_in_batch = rows // batch
        terms = self.stages.chunk_terms(query, key, value, log_decay, beta, self.bf16_products)
        chunks = terms.values.shape[2] * batch // rows
        split = [
            by_chunk_and_row(term, rows_in_batch, chunks).split(SCANNED_AT_ONCE) for term in terms
        ]
        state = torch.zeros(rows * heads, width, width, device=query.device, dtype=torch.float32)
        outputs = []
        for part in zip(*split, strict=True):
            state, output = self.stages.scan_chunks(state, ChunkTerms(*part))
            outputs.append(output)
        joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        chunk = joined.shape[-2]
        joined = joined.view(chunks, batch, rows_in_batch, heads, chunk, width)
        in_order = joined.permute(1, 2, 0, 4, 3, 5).reshape(batch, -1, heads, width)
        return in_order[:, :tokens].to(value.dtype)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, batch: Batch) -> Tensor:
        """Causal attention within each chat; [B, T, heads, HEAD_DIM] -> [B, T, -1]."""
        size, tokens = query.shape[:2]
        if self.packed_attention:
            from torch.nn.attention.varlen import varlen_attn

            groups = HEADS // KV_HEADS
            flat = (size * tokens, HEADS, HEAD_DIM)
            mixed = varlen_attn(
                query.reshape(flat),
                key.repeat_interleave(groups, 2).reshape(flat),
                value.repeat_interleave(groups, 2).reshape(flat),
                batch.starts,
                batch.starts,
                batch.longest,
                batch.longest,
                window_size=(-1, 0),
            )
            return mixed.reshape(size, tokens, -1)
        mask = None
        if batch.starts is not None:
            chat = torch.cumsum((batch.positions == 0).int(), 1)
            mask = (chat[:, :, None] == chat[:, None, :]).tril()[:, None]
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return mixed.transpose(1, 2).reshape(size, tokens, -1)

    def linear_attention_block(
        self, stacks: Stacks, x: Tensor, place: int, layer: int, batch: Batch
    ) -> Tensor:
        names = ("in_qkv", "in_z", "in_b", "in_a", "conv", "a_log", "dt_bias")
        *inputs, gate = self.stages.linear_attention_inputs(
            x,
            stacks["mixer_norm"][layer],
            *(stacks[name][place] for name in names),
            batch.positions,
        )
        mixed = self.gated_delta_rule(*inputs)
        return self.stages.linear_attention_output(
            x, mixed, gate, stacks["gated_norm"][place], stacks["linear_out"][place]
        )

    def attention_block(
        self, stacks: Stacks, x: Tensor, place: int, layer: int, batch: Batch
    ) -> Tensor:
        names = ("query", "key", "value", "query_norm", "key_norm")
        query, key, value, gate = self.stages.attention_inputs(
            x,
            stacks["mixer_norm"][layer],
            *(stacks[name][place] for name in names),
            batch.positions,
        )
        mixed = self.attention(query, key, value, batch)
        return self.stages.attention_output(x, mixed, gate, stacks["attention_out"][place])

    def expert_block(self, stacks: Stacks, x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        names = (
            "mlp_norm",
            "router",
            "expert_gate_up",
            "expert_down",
            "shared_gate_up",
            "shared_down",
            "shared_gate",
        )
        return self.stages.mixture_of_experts(x, *(stacks[name][layer] for name in names))

    def trunk(
        self, weights: Parameters, batch: Batch
    ) -> tuple[Tensor, Tensor, list[Tensor], Stacks]:
        """The residual stream [B, T, H] after all layers, before the final norm.

        Also the mean balance loss, each layer's expert loads, and the stacks taken apart by layer.
        """
        stacks = {name: weights[name].unbind(0) for name in STACKED}
        x = F.embedding(batch.ids, weights["embed"])
        balance: Tensor | float = 0.0
        loads = []
        for layer in range(LAYERS):
            if layer in LINEAR_LAYERS:
                place = LINEAR_LAYERS.index(layer)
                x = self.linear_attention_block(stacks, x, place, layer, batch)
            else:
                place = ATTENTION_LAYERS.index(layer)
                x = self.attention_block(stacks, x, place, layer, batch)
            x, layer_balance, load = self.expert_block(stacks, x, layer)
            balance = balance + layer_balance
            loads.append(load)
        return x, balance / LAYERS, loads, stacks

    def mtp_hidden(
        self, weights: Parameters, stacks: Stacks, final: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The residual stream of the multi-token-prediction layer, and its balance loss.

        `final` [B, T, H] is the trunk's output after the final norm; position t also gets the
        embedding of token t + 1 and predicts token t + 2.
        """
        following = F.pad(batch.ids[:, 1:], (0, 1))
        x = self.stages.mtp_input(
            final,
            F.embedding(following, weights["embed"]),
            weights["mtp_hidden_norm"],
            weights["mtp_embedding_norm"],
            weights["mtp_fc"],
        )
        x = self.attention_block(stacks, x, MTP_ATTENTION, MTP_LAYER, batch)
        x, balance, _ = self.expert_block(stacks, x, MTP_LAYER)
        return x, balance

    def loss(
        self, weights: Parameters, batch: Batch, mtp_weight: float, balance_weight: float
    ) -> "Losses":
        """The training loss of a batch and its parts."""
        x, balance, loads, stacks = self.trunk(weights, batch)

        def ahead(values: Tensor, steps: int) -> Tensor:
            return F.pad(values[:, steps:], (0, steps))

        # A target counts only when it lies in the same chat.
        next_weights = ahead(batch.weights, 1) * (ahead(batch.positions, 1) >= 1)
        after_next_weights = ahead(batch.weights, 2) * (ahead(batch.positions, 2) >= 2)
        final, next_loss = self.stages.weighted_cross_entropy(
            x, weights["final_norm"], weights["head"], ahead(batch.ids, 1), next_weights
        )
        mtp, mtp_balance = self.mtp_hidden(weights, stacks, final, batch)
        _, mtp_loss = self.stages.weighted_cross_entropy(
            mtp, weights["mtp_norm"], weights["head"], ahead(batch.ids, 2), after_next_weights
        )
        total = (
            next_loss + mtp_weight * mtp_loss + balance_weight * (balance + mtp_balance / LAYERS)
        )
        return Losses(total, next_loss, mtp_loss, balance, loads)


class Losses(NamedTuple):
    """The sum to minimise, its parts, and the expert loads of each layer."""

    total: Tensor
    next_token: Tensor
    mtp: Tensor
    balance: Tensor
    loads: list[Tensor]


def logits(final: Tensor, head: Tensor) -> Tensor:
    """Logits [..., V] in float32 of hidden states after their norm."""
    return (final @ head.t()).float()
