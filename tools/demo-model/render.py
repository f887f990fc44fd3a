"""Turns messages into the text that the model reads, exactly as chat_template.jinja does."""

import json
from typing import Any

from item import Call, Message, last_user_position

TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\n"
    "To call a function, answer in exactly this form and write nothing after it:\n\n"
    "<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nvalue\n</parameter>\n</function>\n"
    "</tool_call>"
)


def render_call(call: Call) -> str:
    """A tool call as the model writes it; values that are no text are written as JSON."""
    parameters = ""
    for name, value in call.arguments:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parameters += f"<parameter={name}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def render_system(prompt: str | None, tools: list[dict[str, Any]] | None) -> str:
    """The system turn: the tools' specifications, then the prompt; empty without both."""
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = TOOLS_HEAD + listed + TOOLS_TAIL
        if prompt:
            text += "\n\n" + prompt.strip()
    elif prompt is not None:
        text = prompt.strip()
    else:
        return ""
    return f"<|im_start|>system\n{text}<|im_end|>\n"


def render_assistant(message: Message, with_thinking_block: bool, think: bool) -> str:
    """An assistant's turn; the thinking block is empty when thinking is off."""
    content = message.content.strip()
    text = "<|im_start|>assistant\n"
    if with_thinking_block:
        text += f"<think>\n{message.thinking.strip() if think else ''}\n</think>\n\n"
    text += content
    for position, call in enumerate(message.calls or []):
        if position > 0:
            text += "\n"
        elif content:
            text += "\n\n"
        text += render_call(call)
    return text + "<|im_end|>\n"


def render(messages: list[Message], tools: list[dict[str, Any]] | None, think: bool) -> str:
    """The whole chat. Results of tools that follow each other share one user turn."""
    prompt = messages[0].content if messages[0].role == "system" else None
    parts = [render_system(prompt, tools)]
    last_question = last_user_position(messages)
    for position, message in enumerate(messages):
        if message.role == "user":
            parts.append(f"<|im_start|>user\n{message.content.strip()}<|im_end|>\n")
        elif message.role == "tool":
            is_first = messages[position - 1].role != "tool"
            is_last = position == len(messages) - 1 or messages[position + 1].role != "tool"
            parts.append("<|im_start|>user" if is_first else "")
            parts.append(f"\n<tool_response>\n{message.content.strip()}\n</tool_response>")
            parts.append("<|im_end|>\n" if is_last else "")
        elif message.role == "assistant":
            # Only replies to the last question keep their thinking.
            parts.append(render_assistant(message, position > last_question, think))
    return "".join(parts)
