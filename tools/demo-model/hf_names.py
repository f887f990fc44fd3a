"""Translates the stacks of network.py to Hugging Face's tensor names and back."""

import torch
from torch import Tensor

from network import (
    ATTENTION_LAYERS,
    EXPERT_WIDTH,
    LAYERS,
    LINEAR_LAYERS,
    MTP_ATTENTION,
    MTP_LAYER,
    SHAPES,
    Parameters,
)

MTP_PREFIX = "mtp.layers.0."


def views_by_name(parameters: Parameters) -> dict[str, Tensor]:
    """Each Hugging Face name with the view of a stack that holds its values.

    Norms stay zero-centred. Writing into a view writes into the stack.
    """
    views = {
        "model.embed_tokens.weight": parameters["embed"],
        "lm_head.weight": parameters["head"],
        "model.norm.weight": parameters["final_norm"],
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        views |= shared_views(parameters, prefix, layer)
        if layer in LINEAR_LAYERS:
            views |= linear_attention_views(parameters, prefix, LINEAR_LAYERS.index(layer))
        else:
            views |= attention_views(parameters, prefix, ATTENTION_LAYERS.index(layer))
    views |= attention_views(parameters, MTP_PREFIX, MTP_ATTENTION)
    views |= shared_views(parameters, MTP_PREFIX, MTP_LAYER)
    return views | {
        "mtp.fc.weight": parameters["mtp_fc"],
        "mtp.pre_fc_norm_embedding.weight": parameters["mtp_embedding_norm"],
        "mtp.pre_fc_norm_hidden.weight": parameters["mtp_hidden_norm"],
        "mtp.norm.weight": parameters["mtp_norm"],
    }


def shared_views(parameters: Parameters, prefix: str, layer: int) -> dict[str, Tensor]:
    """What layers of both kinds have: experts and norms."""
    shared_gate_up = parameters["shared_gate_up"][layer]
    return {
        prefix + "mlp.gate.weight": parameters["router"][layer],
        prefix + "mlp.experts.gate_up_proj": parameters["expert_gate_up"][layer],
        prefix + "mlp.experts.down_proj": parameters["expert_down"][layer],
        prefix + "mlp.shared_expert.gate_proj.weight": shared_gate_up[:EXPERT_WIDTH],
        prefix + "mlp.shared_expert.up_proj.weight": shared_gate_up[EXPERT_WIDTH:],
        prefix + "mlp.shared_expert.down_proj.weight": parameters["shared_down"][layer],
        prefix + "mlp.shared_expert_gate.weight": parameters["shared_gate"][layer],
        prefix + "input_layernorm.weight": parameters["mixer_norm"][layer],
        prefix + "post_attention_layernorm.weight": parameters["mlp_norm"][layer],
    }


def attention_views(parameters: Parameters, prefix: str, place: int) -> dict[str, Tensor]:
    stacks = dict(
        q_proj="query",
        k_proj="key",
        v_proj="value",
        o_proj="attention_out",
        q_norm="query_norm",
        k_norm="key_norm",
    )
    return {
        f"{prefix}self_attn.{name}.weight": parameters[stack][place]
        for name, stack in stacks.items()
    }


def linear_attention_views(parameters: Parameters, prefix: str, place: int) -> dict[str, Tensor]:
    prefix += "linear_attn."
    return {
        prefix + "in_proj_qkv.weight": parameters["in_qkv"][place],
        prefix + "in_proj_z.weight": parameters["in_z"][place],
        prefix + "in_proj_b.weight": parameters["in_b"][place],
        prefix + "in_proj_a.weight": parameters["in_a"][place],
        prefix + "conv1d.weight": parameters["conv"][place][:, None, :],
        prefix + "A_log": parameters["a_log"][place],
        prefix + "dt_bias": parameters["dt_bias"][place],
        prefix + "norm.weight": parameters["gated_norm"][place],
        prefix + "out_proj.weight": parameters["linear_out"][place],
    }


def to_hugging_face(parameters: Parameters) -> dict[str, Tensor]:
    """Contiguous tensors under Hugging Face's names, without gradients."""
    views = views_by_name(parameters)
    return {name: view.detach().contiguous() for name, view in views.items()}


def from_hugging_face(tensors: dict[str, Tensor]) -> Parameters:
    """Stacks in float32 from tensors under Hugging Face's names; KeyError when one is missing."""
    parameters = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for name, view in views_by_name(parameters).items():
        view.copy_(tensors[name].float())
    return parameters
