#!/usr/bin/env python3
"""Asks a checkpoint the held-out questions through MLX-LM, greedily, and judges the replies.

    evaluate_mlx.py FOLDER QUESTIONS.jsonl [--out RESULTS.json]

Needs mlx and mlx-lm.
"""

import argparse
import json
from pathlib import Path

from mlx_lm import generate, load

from judge import judged, print_table, read_questions

MOST_TOKENS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("questions", type=Path, help="eval.jsonl or another set")
    parser.add_argument("--out", type=Path, help="JSON file for the single results")
    args = parser.parse_args()
    model, tokenizer = load(str(args.folder))
    rows = []
    for question in read_questions(args.questions):
        prompt = tokenizer.apply_chat_template(
            question["messages"],
            tools=question["tools"],
            add_generation_prompt=True,
            enable_thinking=question["think"],
        )
        reply = generate(model, tokenizer, prompt=prompt, max_tokens=MOST_TOKENS)
        rows.append(judged(question, reply))
    print_table(rows)
    if args.out:
        args.out.write_text(json.dumps(rows, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
