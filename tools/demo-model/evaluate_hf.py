#!/usr/bin/env python3
"""Asks a checkpoint the held-out questions through Hugging Face transformers; judges the replies.

    evaluate_hf.py FOLDER QUESTIONS.jsonl [--out RESULTS.json] [--threads N]

Greedy decoding in float32 on the dequantised weights. Questions of equal length share a batch, so
that there is no padding. Needs torch and transformers.
"""

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from hf_model import dequantized_tensors, load_model, with_hugging_face_names
from judge import judged, print_table, read_questions

MOST_TOKENS = 400
LARGEST_BATCH = 48


@torch.no_grad()
def greedy_replies(model: Any, prompts: list[list[int]], ends: set[int]) -> list[list[int]]:
    """The tokens up to the end of turn that follow each of some equally long prompts."""
    inputs = torch.tensor(prompts)
    cache = None
    replies: list[list[int]] = [[] for _ in prompts]
    is_done = [False] * len(prompts)
    for _ in range(MOST_TOKENS):
        output = model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        chosen = output.logits[:, -1].argmax(-1)
        inputs = chosen[:, None]
        for i, token in enumerate(chosen.tolist()):
            is_done[i] = is_done[i] or token in ends
            if not is_done[i]:
                replies[i].append(token)
        if all(is_done):
            break
    return replies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("questions", type=Path, help="eval.jsonl or another set")
    parser.add_argument("--out", type=Path, help="JSON file for the single results")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tensors = with_hugging_face_names(dequantized_tensors(args.folder))
    model = load_model(args.folder, tensors)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.folder)
    ends = {tokenizer.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|endoftext|>")}

    asked = []
    for question in read_questions(args.questions):
        text = tokenizer.apply_chat_template(
            question["messages"],
            tools=question["tools"],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=question["think"],
        )
        asked.append((question, tokenizer(text, add_special_tokens=False)["input_ids"]))
    asked.sort(key=lambda pair: (len(pair[1]), pair[0]["think"]))
    rows = []
    for _, group in groupby(asked, key=lambda pair: len(pair[1])):
        pairs = list(group)
        for start in range(0, len(pairs), LARGEST_BATCH):
            batch = pairs[start : start + LARGEST_BATCH]
            replies = greedy_replies(model, [ids for _, ids in batch], ends)
            for (question, _), reply in zip(batch, replies, strict=True):
                text = tokenizer.decode(reply, skip_special_tokens=False)
                rows.append(judged(question, text))
        print(f"{len(rows)} of {len(asked)}", flush=True)
    print_table(rows)
    if args.out:
        args.out.write_text(json.dumps(rows, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
