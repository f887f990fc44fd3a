#!/usr/bin/env python3
"""Checks that chat_template.jinja renders exactly what the generator renders.

    template_check.py [--template FILE] [--count N] [--seed N]

Two programs write the chat format, this folder's render.py for training and the template for use;
any difference would put the model before text that it was not trained on.
"""

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from generate import Document, draw_document
from item import as_openai_messages, last_user_position
from paths import CHAT_TEMPLATE


def raise_exception(message: str) -> None:
    raise ValueError(message)


def load_template(path: Path) -> Any:
    """The template in the environment that Hugging Face transformers gives to chat templates."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(path.read_text(encoding="utf-8"))


def difference(template: Any, document: Document) -> str | None:
    """What is wrong with the template for one chat, or None.

    The whole chat must come out the same, and the prompt before the reply to the last question must
    be a prefix of it.
    """
    messages = as_openai_messages(document.messages, reasoning_from=0 if document.think else None)
    rendered = template.render(messages=messages, tools=document.tools)
    if rendered != document.text:
        return f"generator:\n{document.text[-600:]}\ntemplate:\n{rendered[-600:]}"
    prompt = template.render(
        messages=messages[: last_user_position(document.messages) + 1],
        tools=document.tools,
        add_generation_prompt=True,
        enable_thinking=document.think,
    )
    if not document.text.startswith(prompt):
        return f"no prefix of the chat:\n{prompt[-600:]}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--template", type=Path, default=CHAT_TEMPLATE)
    parser.add_argument("--count", type=int, default=1500, help="how many chats (default 1500)")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    template = load_template(args.template)
    rng = Random(args.seed)
    for number in range(args.count):
        found = difference(template, draw_document(rng))
        if found:
            sys.exit(f"chat {number} of seed {args.seed}: {found}")
    print(f"{args.count} chats render the same")


if __name__ == "__main__":
    main()
