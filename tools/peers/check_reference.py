#!/usr/bin/env python3
"""Hold `reference_numpy.py` against Hugging Face's implementation on a checkpoint folder.

    check_reference.py FOLDER [--tokens N] [--seed N]

Both compute in float64. The numpy side runs four ways that must agree: all tokens in one call with
the recurrent delta rule, the same with the chunked one, one token at a time, and in two parts; the
last two go through the state that is kept between calls. Exits with status 1 when any logit differs
from Hugging Face's by more than `--tolerance`.

Needs torch and transformers (see requirements.txt).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from checkpoint_numpy import load_checkpoint
from reference_numpy import LayerState, Shape, forward


def hugging_face_logits(
    weights: dict[str, np.ndarray], config: dict, ids: np.ndarray
) -> np.ndarray:
    """Logits [T, vocabulary] of Hugging Face's model in float64, without its cache."""
    settings = {
        name: value for name, value in config.items() if name not in ("dtype", "model_type")
    }
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**settings)).double().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    state = {
        name: torch.from_numpy(value)
        for name, value in weights.items()
        if not name.startswith("mtp.")
    }
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None], use_cache=False).logits[0].double().numpy()


def in_parts(
    ids: np.ndarray, sizes: list[int], weights: dict, shape: Shape, chunked: bool
) -> np.ndarray:
    """Logits of `ids` given to the reference in parts of `sizes` tokens."""
    states = [LayerState() for _ in shape.layer_types]
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    return np.concatenate([forward(part, weights, shape, states, chunked)[0] for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("--tokens", type=int, default=40, help="length of the random prompt")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random prompt")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest allowed difference")
    args = parser.parse_args()

    weights, config = load_checkpoint(args.folder)
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    shape = Shape.from_config(config)
    ids = np.random.default_rng(args.seed).integers(0, config["vocab_size"], args.tokens)
    expected = hugging_face_logits(weights, config, ids)
    head = args.tokens * 3 // 5
    found = {
        "recurrent": forward(ids, weights, shape)[0],
        "chunked": forward(ids, weights, shape, chunked=True)[0],
        "one token at a time": in_parts(ids, [1] * args.tokens, weights, shape, False),
        "in two parts, chunked": in_parts(ids, [head, args.tokens - head], weights, shape, True),
    }
    worst = 0.0
    for name, logits in found.items():
        difference = float(np.abs(logits - expected).max())
        same = (logits.argmax(-1) == expected.argmax(-1)).mean()
        print(f"{name}: largest difference {difference:.1e}, top-1 equal {same:.1%}")
        worst = max(worst, difference)
    if not worst <= args.tolerance:
        sys.exit(f"differs by {worst:.1e}, allowed {args.tolerance:.1e}")


if __name__ == "__main__":
    main()
