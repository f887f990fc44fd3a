#!/usr/bin/env python3
"""How far MLX-LM's logits on a checkpoint are from its goldens.

    compare_mlx.py FOLDER [--float32] [--prompts N]

In float32 the two agree, which shows that file format and maths do; in bf16, as MLX-LM runs by
default, the differences are those of the arithmetic. Needs mlx and mlx-lm.
"""

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder with goldens.npz")
    parser.add_argument("--float32", action="store_true", help="compute in float32")
    parser.add_argument("--prompts", type=int, default=9, help="how many (default 9)")
    args = parser.parse_args()
    model, tokenizer = load(str(args.folder))
    if args.float32:
        model.set_dtype(mx.float32)
    matches, in_reply, differences = [], [], []
    with np.load(args.folder / "goldens.npz") as goldens:
        for i in range(args.prompts):
            prompt, continuation = goldens[f"p{i}_ids"], goldens[f"p{i}_cont"]
            top_ids = goldens[f"p{i}_top_ids"]
            ids = np.concatenate([prompt, continuation])
            found = np.array(model(mx.array(ids[None]))[0].astype(mx.float32))
            is_same = found.argmax(1) == top_ids[:, 0]
            matches.append(is_same)
            ends = np.flatnonzero(continuation == tokenizer.eos_token_id)
            length = int(ends[0]) + 1 if len(ends) else len(continuation)
            in_reply.append(is_same[len(prompt) - 1 : len(prompt) - 1 + length])
            listed = np.take_along_axis(found, top_ids, 1)
            differences.append(np.abs(listed - goldens[f"p{i}_top_vals"]))
    same, reply = np.concatenate(matches), np.concatenate(in_reply)
    largest = max(float(values.max()) for values in differences)
    mean = float(np.mean([values.mean() for values in differences]))
    print(
        f"top-1 equal at {same.sum()} of {same.size} positions, {reply.sum()} of {reply.size} "
        f"inside replies; top-20 logits differ by at most {largest:.5f}, on average {mean:.5f}"
    )


if __name__ == "__main__":
    main()
