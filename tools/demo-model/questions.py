#!/usr/bin/env python3
"""Makes two sets of 600 held-out questions with no prompt in both.

    questions.py PUBLIC.jsonl PRIVATE.jsonl

Each line is {"task", "think", "messages", "tools", "answer"}; the answer is the exact final text,
or {"name", "arguments"} of the one expected tool call. Fix PYTHONHASHSEED to get the same questions
in every run.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from generate import EVALUATION_TASKS, draw_document
from item import as_openai_messages, last_user_position

SET_SIZE = 600
SEEDS = (9001, 9002)
# Stories have free wording and so no exact answer.
TASKS = [task for task in EVALUATION_TASKS if task != "story"]
COUNTS = {task: 21 for task in TASKS} | {"recall_long": 8}
COUNTS["tools"] = SET_SIZE - sum(count for task, count in COUNTS.items() if task != "tools")
# After so many tries a last message may occur a second time, with another chat before it.
TRIES_FOR_NEW_WORDING = 400

Question = dict[str, Any]


def draw_question(rng: Random, task: str, think: bool, after_tool: bool) -> Question | None:
    """One question; None when the chat that was drawn does not end in a single exact answer.

    With `after_tool` the prompt ends with the result of a tool, else with the user's last message.
    """
    document = draw_document(rng, is_held_out=True, task=task, think=think)
    messages = document.messages
    asked = last_user_position(messages)
    replies = messages[asked + 1 :]
    answer: str | dict[str, Any]
    if after_tool:
        if len(replies) < 3 or replies[-2].role != "tool":
            return None
        prompt_length = len(messages) - 1
        answer = replies[-1].content
    else:
        prompt_length = asked + 1
        if replies[0].calls:
            if len(replies[0].calls) != 1:
                return None
            call = replies[0].calls[0]
            answer = {"name": call.name, "arguments": dict(call.arguments)}
        else:
            answer = replies[0].content.strip()
    return {
        "task": task,
        "think": think,
        "messages": as_openai_messages(
            messages[:prompt_length], reasoning_from=asked if think else None
        ),
        "tools": document.tools,
        "answer": answer,
    }


def last_user_words(question: Question) -> str:
    """The user's last message without the differences that noise makes."""
    last = [m for m in question["messages"] if m["role"] == "user"][-1]
    return last["content"].strip().lower().rstrip("?.!")


def draw_set(seed: int, prompts: set[str], wordings: set[tuple[str, str]]) -> list[Question]:
    """One set in random order; `prompts` and `wordings` are what earlier sets used, and grow."""
    rng = Random(seed)
    questions: list[Question] = []
    for task in TASKS:
        count = 0
        tries = 0
        while count < COUNTS[task]:
            tries += 1
            after_tool = task == "tools" and count % 4 >= 2
            question = draw_question(rng, task, bool(count % 2), after_tool)
            if question is None:
                continue
            prompt = json.dumps([question["messages"], question["tools"]])
            wording = (task, last_user_words(question))
            is_repeated = wording in wordings and tries < TRIES_FOR_NEW_WORDING
            if prompt in prompts or (is_repeated and task != "memory"):
                continue
            prompts.add(prompt)
            wordings.add(wording)
            questions.append(question)
            count += 1
    Random(seed).shuffle(questions)
    return questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("public", type=Path, help="the set to publish")
    parser.add_argument("private", type=Path, help="the set to keep apart")
    args = parser.parse_args()
    prompts: set[str] = set()
    wordings: set[tuple[str, str]] = set()
    for path, seed in zip((args.public, args.private), SEEDS, strict=True):
        questions = draw_set(seed, prompts, wordings)
        lines = [json.dumps(question, ensure_ascii=False) + "\n" for question in questions]
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(questions)} questions")


if __name__ == "__main__":
    main()
