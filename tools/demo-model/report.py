#!/usr/bin/env python3
"""Prints the results table and sample chats of EVAL.md as Markdown.

    report.py RUN_FOLDER SAMPLES.json RESULTS.json ...

RUN_FOLDER has the train.json of train.py, SAMPLES.json comes from samples.py, and each RESULTS.json
from evaluate_hf.py or evaluate_mlx.py on one set of questions.
"""

import argparse
import json
from pathlib import Path
from typing import Any

# The samples that EVAL.md shows, by position in samples.py.
SHOWN = [0, 1, 4, 5, 6, 7, 8, 11, 12, 13, 17, 19]
WITHOUT_EXACT_ANSWER = "story"


def share(scores: dict[str, float], task: str) -> str:
    return f"{scores[task]:.2f}" if task in scores else "-"


def fraction(rows: list[dict[str, Any]], task: str | None, think: bool) -> str:
    """Right replies of all replies to a task (None for all tasks)."""
    right = [r["ok"] for r in rows if task in (None, r["task"]) and r["think"] == think]
    return f"{sum(right)}/{len(right)}" if right else "-"


def table(scores: dict[str, float], sets: list[list[dict[str, Any]]]) -> list[str]:
    """One line a task: teacher-forced shares, then right answers in each set."""
    titles = [f"set {i} | set {i}, thinking" for i in range(1, len(sets) + 1)]
    lines = ["| task | 4-bit | 4-bit, thinking | " + " | ".join(titles) + " |"]
    lines.append("|---" * (3 + 2 * len(sets)) + "|")
    tasks = [name for name in scores if not name.endswith("+think")]
    for task in [task for task in tasks if task != WITHOUT_EXACT_ANSWER]:
        cells = [share(scores, task), share(scores, task + "+think")]
        cells += [fraction(rows, task, think) for rows in sets for think in (False, True)]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    means = []
    for think in (False, True):
        values = [
            value
            for name, value in scores.items()
            if not name.startswith(WITHOUT_EXACT_ANSWER) and name.endswith("+think") == think
        ]
        means.append(f"{sum(values) / len(values):.3f}")
    totals = [fraction(rows, None, think) for rows in sets for think in (False, True)]
    lines.append("| **all** | " + " | ".join(means + totals) + " |")
    return lines


def sample(number: int, chat: dict[str, Any]) -> list[str]:
    """One chat under a heading of its own."""
    title = f"### {number}. thinking {'on' if chat['thinking'] else 'off'}"
    if chat["tools"]:
        title += f", tools: {', '.join(chat['tools'])}"
    lines = [title, "```text"]
    for message in chat["messages"]:
        calls = f" {json.dumps(message['tool_calls'])}" if message.get("tool_calls") else ""
        lines.append(f"{message['role']}: {message.get('content', '')}{calls}")
    return lines + ["-> " + chat["reply"].replace("```", "'''"), "```", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder with train.json")
    parser.add_argument("samples", type=Path, help="what samples.py wrote")
    parser.add_argument("results", type=Path, nargs="+", help="what the evaluation wrote")
    args = parser.parse_args()
    scores = json.loads((args.run / "train.json").read_text())["eval"]["q4"]["em"]
    sets = [json.loads(path.read_text()) for path in args.results]
    samples = json.loads(args.samples.read_text())
    lines = table(scores, sets) + [""]
    for number, position in enumerate(SHOWN, start=1):
        lines += sample(number, samples[position])
    print("\n".join(lines).rstrip())


if __name__ == "__main__":
    main()
