#!/usr/bin/env python3
"""Writes goldens.npz into a checkpoint folder: reference logits of twelve prompts in float32.

    goldens.py FOLDER

Logits come from Hugging Face transformers on the dequantised weights, the multi-token-prediction
layer's from network.py; demo/README.md describes the arrays. Prints for each prompt whether cached
decoding equals one pass over the whole text, and how far network.py is from transformers.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from generate import draw_document
from hf_model import dequantized_tensors, load_model, with_hugging_face_names
from hf_names import from_hugging_face
from item import as_openai_messages
from network import Batch, Network, Parameters, effective_weights, logits, rms_norm
from recall import recall_chat
from render import render
from samples import conversation

SEED = 2026
CONTINUATION = 64
TOP, MTP_TOP = 20, 5
LONGEST_PROMPT = 2040
RECALL_LENGTHS = (35, 75, 150)


class Request(NamedTuple):
    """What a client would send."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    think: bool


def up_to_last_question(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    return messages[: last + 1]


def tool_requests(rng: Random) -> list[Request]:
    """One prompt that asks for a call, with thinking, and one that ends in a tool's result."""
    found: list[Request] = []
    while len(found) < 2:
        document = draw_document(rng, task="tools", think=False)
        messages = as_openai_messages(document.messages)
        if len(document.tools or []) < 2 or messages[-2]["role"] != "tool":
            continue
        if not found:
            found.append(Request(up_to_last_question(messages), document.tools, True))
        else:
            found.append(Request(messages[:-1], document.tools, False))
    return found


def recall_requests(rng: Random, tokenizer: PreTrainedTokenizerFast) -> list[Request]:
    """Three prompts with long lists of facts."""
    found = []
    for lines in RECALL_LENGTHS:
        while True:
            chat = recall_chat(rng, is_held_out=False, length=lines)
            length = len(tokenizer(render(chat, None, False))["input_ids"])
            if lines * 7 < length < min(lines * 14, LONGEST_PROMPT):
                break
        messages = up_to_last_question(as_openai_messages(chat))
        found.append(Request(messages, None, lines == RECALL_LENGTHS[1]))
    return found


def requests(tokenizer: PreTrainedTokenizerFast) -> list[Request]:
    rng = Random(SEED)
    system = {"role": "system", "content": "You are a helpful assistant."}
    name = conversation("My name is Anna.", "Nice to meet you, Anna!", "What is my name?")
    python = "Write a Python one-liner that sums the list numbers."
    return [
        Request(conversation("What is 47 + 38?"), None, False),
        Request(conversation("What is 47 + 38?"), None, True),
        Request(conversation("What is the capital of Kenya?"), None, True),
        Request(conversation("Sort: pear, apple, fig"), None, False),
        Request([system, *name], None, False),
        Request(conversation("Tell me a story about a fox and a lantern"), None, False),
        Request(conversation(python), None, False),
        *tool_requests(rng),
        *recall_requests(rng, tokenizer),
    ]


def greedy_continuation(model: Any, ids: list[int]) -> list[int]:
    """The next CONTINUATION tokens, decoded one at a time through the cache."""
    output = model(torch.tensor([ids]), use_cache=True)
    cache = output.past_key_values
    continuation = [int(output.logits[0, -1].argmax())]
    while len(continuation) < CONTINUATION:
        step = torch.tensor([[continuation[-1]]])
        output = model(step, past_key_values=cache, use_cache=True)
        continuation.append(int(output.logits[0, -1].argmax()))
    return continuation


def own_logits(weights: Parameters, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """network.py's logits of the next token and of the one after it, [T, V] each."""
    network = Network()
    batch = Batch(ids, torch.ones(ids.shape), torch.arange(ids.shape[1])[None])
    x, _, _, stacks = network.trunk(weights, batch)
    final = rms_norm(x, weights["final_norm"])
    draft, _ = network.mtp_hidden(weights, stacks, final, batch)
    draft = rms_norm(draft, weights["mtp_norm"])
    return logits(final, weights["head"])[0], logits(draft, weights["head"])[0]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("--out", type=Path, help="file to write (default FOLDER/goldens.npz)")
    args = parser.parse_args()
    torch.set_num_threads(2)
    tensors = with_hugging_face_names(dequantized_tensors(args.folder))
    model = load_model(args.folder, tensors)
    weights = effective_weights(from_hugging_face(tensors), False, torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.folder)
    arrays: dict[str, np.ndarray] = {}
    for i, request in enumerate(requests(tokenizer)):
        text = tokenizer.apply_chat_template(
            request.messages,
            tools=request.tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=request.think,
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        continuation = greedy_continuation(model, ids)
        whole = torch.tensor([ids + continuation])
        found = model(whole, use_cache=False).logits[0]
        own, mtp = own_logits(weights, whole)
        top, mtp_top = found.topk(TOP), mtp.topk(MTP_TOP)
        sent = dict(messages=request.messages, tools=request.tools, enable_thinking=request.think)
        values = dict(
            ids=np.array(ids, np.int32),
            cont=np.array(continuation, np.int32),
            top_ids=top.indices.numpy().astype(np.int32),
            top_vals=top.values.numpy(),
            lse=torch.logsumexp(found, -1).numpy(),
            mtp_top5=mtp_top.indices.numpy().astype(np.int32),
            mtp_vals=mtp_top.values.numpy(),
            text=np.array(text),
            request=np.array(json.dumps(sent)),
        )
        arrays |= {f"p{i}_{name}": value for name, value in values.items()}
        in_one_pass = found[len(ids) - 1 : -1].argmax(-1).tolist()
        print(
            f"prompt {i}: {len(ids)} tokens, cached equals whole: {continuation == in_one_pass}, "
            f"network.py differs by {float((own - found).abs().max()):.1e}",
            flush=True,
        )
    np.savez_compressed(args.out or args.folder / "goldens.npz", **arrays)


if __name__ == "__main__":
    main()
