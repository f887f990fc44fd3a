"""Decides whether a reply to one of the held-out questions is right: by exact match.

- With thinking on, only what follows `</think>` counts, and a reply without it is wrong.
- A text answer must equal the expected one after trimming white space at both ends, and must not
  call a tool.
- A tool call must be the only one and stand alone, with the expected name and argument names and
  with every value equal as text (numbers as JSON writes them).
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CALL = re.compile(r"<tool_call>\s*<function=([^>\n]+)>\n(.*?)</function>\s*</tool_call>", re.S)
ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", re.S)


def judge(reply: str, question: dict[str, Any]) -> bool:
    """Whether `reply`, as decoded with its markup, answers `question` (a line of eval.jsonl)."""
    if question["think"]:
        _, closed, reply = reply.partition("</think>")
        if not closed:
            return False
    expected = question["answer"]
    if isinstance(expected, str):
        return "<tool_call>" not in reply and reply.strip() == expected
    calls = CALL.findall(reply)
    if len(calls) != 1 or CALL.sub("", reply).strip():
        return False
    name, body = calls[0]
    arguments = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in expected["arguments"].items()
    }
    return name == expected["name"] and dict(ARGUMENT.findall(body)) == arguments


def read_questions(path: Path) -> list[dict[str, Any]]:
    """The questions of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judged(question: dict[str, Any], reply: str) -> dict[str, Any]:
    """The row of a result file for one reply; a wrong one is also printed."""
    asked = question["messages"][-1]["content"]
    row = {
        "task": question["task"],
        "think": question["think"],
        "ok": judge(reply, question),
        "reply": reply,
        "answer": question["answer"],
        "question": asked[-200:],
    }
    if not row["ok"]:
        mode = "thinking" if row["think"] else "plain"
        print(
            f"WRONG {row['task']} ({mode}): {asked[-120:]!r} -> {reply[-160:]!r}, "
            f"expected {row['answer']!r}",
            flush=True,
        )
    return row


def print_table(rows: Iterable[dict[str, Any]]) -> None:
    """Right answers of all answers, by task, without and with thinking."""
    right: dict[str, dict[bool, list[int]]] = {}
    for row in rows:
        for task in (row["task"], "all"):
            tally = right.setdefault(task, {False: [0, 0], True: [0, 0]})[row["think"]]
            tally[0] += row["ok"]
            tally[1] += 1
    for task in sorted(right):
        plain, thinking = right[task][False], right[task][True]
        print(f"{task} {plain[0]}/{plain[1]} thinking {thinking[0]}/{thinking[1]}")
