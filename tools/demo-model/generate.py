#!/usr/bin/env python3
"""Generates the chats that the demo model is trained on; as a program, prints some.

    generate.py [--seed N] [--count N] [--task NAME] [--held-out] [--jsonl]

A seed and PYTHONHASHSEED together fix the text (the order of some lists is that of a Python set).
"""

import argparse
import json
from random import Random
from typing import Any, NamedTuple

from chats import memory_chat, question_chat
from item import Message
from recall import recall_chat
from render import render
from sampling import chance, pick
from tasks import TASK_NAMES
from tool_chats import tool_chat

# Everything that is scored: the tasks of question chats and the other kinds of chat.
EVALUATION_TASKS = TASK_NAMES + ["memory", "recall", "recall_long", "tools"]
KIND_OF_TASK = dict(memory="memory", recall="recall", recall_long="recall", tools="tools")

RECALL_LENGTHS = [8, 15, 30, 60]
LONG_RECALL_LENGTHS = [150, 200, 230]


class Document(NamedTuple):
    """One chat: what it is made of and the text it renders to."""

    kind: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    text: str
    think: bool


def draw_kind(rng: Random) -> str:
    """The kind of a training chat."""
    x = rng.random()
    if x < 0.74:
        return "chat"
    if x < 0.87:
        return "tools"
    return "memory" if x < 0.92 else "recall"


def draw_document(
    rng: Random,
    is_held_out: bool = False,
    task: str | None = None,
    think: bool | None = None,
) -> Document:
    """A chat of `task` (any when None) from one side of the held-out split.

    `think` says whether the replies carry thinking text; None draws it.
    """
    if think is None:
        think = chance(rng, 0.5)
    kind = draw_kind(rng) if task is None else KIND_OF_TASK.get(task, "chat")
    tools = None
    if kind == "chat":
        messages = question_chat(rng, is_held_out, task)
    elif kind == "tools":
        messages, tools = tool_chat(rng, is_held_out)
    elif kind == "memory":
        messages = memory_chat(rng, is_held_out)
    else:
        length = None
        if task is not None:
            lengths = LONG_RECALL_LENGTHS if task == "recall_long" else RECALL_LENGTHS
            length = pick(rng, lengths)
        messages = recall_chat(rng, is_held_out, length)
    return Document(kind, messages, tools, render(messages, tools, think), think)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator (default 0)")
    parser.add_argument("--count", type=int, default=12, help="how many chats (default 12)")
    parser.add_argument("--task", choices=EVALUATION_TASKS, help="one task only")
    parser.add_argument("--held-out", action="store_true", help="from the held-out side")
    parser.add_argument("--jsonl", action="store_true", help="one JSON document a line")
    args = parser.parse_args()
    rng = Random(args.seed)
    for _ in range(args.count):
        document = draw_document(rng, is_held_out=args.held_out, task=args.task)
        if args.jsonl:
            print(json.dumps(document._asdict(), ensure_ascii=False))
        else:
            print(document.text)
            print("-" * 80)


if __name__ == "__main__":
    main()
