#!/usr/bin/env python3
"""Answers a fixed list of chats with MLX-LM, for the samples in EVAL.md.

    samples.py FOLDER OUT.json

Needs mlx and mlx-lm.
"""

import argparse
import json
from pathlib import Path
from typing import Any

MOST_TOKENS = 160


def conversation(*texts: str) -> list[dict[str, Any]]:
    """Messages that alternate between user and assistant."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def one_parameter_tool(name: str, description: str, parameter: str, meaning: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string", "description": meaning}},
        "required": [parameter],
    }
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


WEATHER = one_parameter_tool(
    "get_weather", "Get the current weather for a city.", "city", "The city name"
)
ALARM = one_parameter_tool("set_alarm", "Set an alarm.", "time", "Time as HH:MM")
TOOLS = [WEATHER, ALARM]
WEATHER_CALL = {
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
}
WEATHER_RESULT = [
    {"role": "assistant", "content": "", "tool_calls": [WEATHER_CALL]},
    {"role": "tool", "content": '{"temperature": 21, "condition": "sunny"}'},
]

# Messages, tools, thinking.
CHATS: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None, bool]] = [
    (conversation("What is 47 + 38?"), None, False),
    (conversation("What is 347 + 285?"), None, True),
    (conversation("What is 83 - 29?"), None, False),
    (conversation("7 x 8"), None, False),
    (conversation("What is the capital of Kenya?"), None, False),
    (conversation("Which country has the capital Oslo?"), None, True),
    (conversation("Sort: pear, apple, fig"), None, False),
    (conversation("Reverse: red, green, blue"), None, False),
    (conversation("How do you spell banana?"), None, False),
    (conversation("What is the opposite of hot?"), None, False),
    (conversation("How many minutes are 3 hours?"), None, True),
    (
        conversation("My name is Anna.", "Nice to meet you, Anna!", "What is my name?"),
        None,
        False,
    ),
    (conversation("What is the weather in Paris?"), TOOLS, False),
    (conversation("What is the weather in Paris?") + WEATHER_RESULT, TOOLS, False),
    (conversation("Wake me up at 07:30."), TOOLS, True),
    (conversation("Write a Python one-liner that sums the list numbers."), None, False),
    (
        conversation("Put these words in a JSON object under the key items: cat, dog, owl"),
        None,
        False,
    ),
    (conversation("Tell me a story about a fox and a lantern"), None, False),
    (conversation("Who are you?"), None, False),
    (conversation("Who won the chess cup in 1987?"), None, True),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="checkpoint folder")
    parser.add_argument("out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    from mlx_lm import generate, load

    model, tokenizer = load(str(args.folder))
    samples = []
    for messages, tools, think in CHATS:
        prompt = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, enable_thinking=think
        )
        reply = generate(model, tokenizer, prompt=prompt, max_tokens=MOST_TOKENS)
        names = [tool["function"]["name"] for tool in tools or []]
        samples.append(dict(messages=messages, tools=names, thinking=think, reply=reply))
        print(messages[-1]["content"], "->", reply, flush=True)
    args.out.write_text(json.dumps(samples, indent=1))


if __name__ == "__main__":
    main()
