"""Chats with tools: when to call which, with what arguments, and when not to."""

import json
from random import Random
from typing import Any, NamedTuple

from chats import assistant, system_message, user
from item import Call, Message
from sampling import between, chance, held_out, pick
from tasks import draw_item, with_noise
from tool_kinds import TOOL_KINDS, Tool, ToolKind, invent_tool, specification

# Kinds whose requests the model could answer without a tool, or by another one.
NEVER_ABSENT = ("calculator", "translate", "get_contact", "web_search", "get_stock_price")

# Requests that take two calls of one tool.
DOUBLE_REQUESTS = {
    "get_weather": "What is the weather in {} and {}?",
    "get_time": "What time is it in {} and in {}?",
    "get_stock_price": "What are the prices of {} and {}?",
    "get_contact": "Find the numbers of {} and {}.",
}


class Step(NamedTuple):
    """One request of the user; without calls the assistant answers at once."""

    request: str
    calls: list[Call]
    results: list[dict[str, Any]]
    reply: str
    thinking: str


def direct_step(request: str, reply: str, thinking: str) -> Step:
    return Step(request, [], [], reply, thinking)


def single_call_step(
    tool: Tool, request: str, arguments: list[Any], result: dict[str, Any], reply: str
) -> Step:
    thinking = f"I should call {tool.name}."
    return Step(request, [tool.call(arguments)], [result], reply, thinking)


def tool_chat(rng: Random, is_held_out: bool) -> tuple[list[Message], list[dict[str, Any]]]:
    """The messages of a chat and the specifications of the tools offered in it."""
    while True:
        count = between(rng, 1, 4)
        kind_numbers = rng.sample(range(len(TOOL_KINDS)), count)
        kinds = [TOOL_KINDS[i] for i in kind_numbers]
        tools = [kind.draw_tool(rng) for kind in kinds]
        chosen = between(rng, 0, count - 1)
        x = rng.random()
        key: str | None
        if x < 0.12:
            use = invent_tool(rng)
            tools[chosen] = use.tool
            key = f"tool:synth:{use.tool.name}:{use.arguments}"
            steps = [single_call_step(use.tool, use.request, use.arguments, use.result, use.reply)]
        elif x < 0.27:
            _, item = draw_item(rng, None, is_held_out)
            steps = [direct_step(with_noise(rng, item.question), item.answer, item.thinking)]
            # The question itself is already on the right side of the split.
            key = None if is_held_out else "notool:" + item.key
        elif x < 0.33:
            key, step = absent_tool_step(rng, kind_numbers)
            steps = [step]
        elif x < 0.42 and kinds[chosen].names[0] in DOUBLE_REQUESTS:
            found = double_call_step(rng, kinds[chosen], tools[chosen])
            if found is None:
                continue
            key, step = found
            steps = [step]
        else:
            key, step = ordinary_step(rng, kinds[chosen], tools[chosen])
            steps = [step]
            if chance(rng, 0.2):
                other = between(rng, 0, count - 1)
                earlier_key, earlier = plain_step(rng, kinds[other], tools[other])
                if held_out(earlier_key):
                    continue
                steps.insert(0, earlier)
        # Held-out chats that need no tool are easy; few of them are let through.
        if chance(rng, 0.03) if key is None else held_out(key) == is_held_out:
            break

    specifications = [specification(rng, tool) for tool in tools]
    messages: list[Message] = []
    for step in steps:
        messages.append(user(step.request))
        if step.calls:
            messages.append(Message("assistant", "", step.thinking, step.calls))
            for result in step.results:
                messages.append(Message("tool", json.dumps(result, ensure_ascii=False)))
            messages.append(assistant(step.reply, "The tool has answered."))
        else:
            messages.append(assistant(step.reply, step.thinking))
    if chance(rng, 0.35):
        messages.insert(0, system_message(rng))
    return messages, specifications


def absent_tool_step(rng: Random, offered: list[int]) -> tuple[str, Step]:
    """A request for a tool that is not among the offered ones."""
    absent = [
        i
        for i, kind in enumerate(TOOL_KINDS)
        if i not in offered and kind.names[0] not in NEVER_ABSENT
    ]
    kind = TOOL_KINDS[pick(rng, absent)]
    request = kind.draw_request(rng, kind.draw_arguments(rng))
    step = direct_step(request, "I do not have a tool for that.", "None of my tools can do this.")
    return "absent:" + request, step


def double_call_step(rng: Random, kind: ToolKind, tool: Tool) -> tuple[str, Step] | None:
    """Two calls of one tool at once; None when both would be the same."""
    first, second = kind.draw_arguments(rng), kind.draw_arguments(rng)
    if first == second:
        return None
    request = DOUBLE_REQUESTS[kind.names[0]].format(first[0], second[0])
    first_result, first_reply = kind.draw_reply(rng, first)
    second_result, second_reply = kind.draw_reply(rng, second)
    step = Step(
        request,
        [tool.call(first), tool.call(second)],
        [first_result, second_result],
        f"{first_reply} {second_reply}",
        f"I need two calls of {tool.name}.",
    )
    return "tool2:" + request, step


def plain_step(rng: Random, kind: ToolKind, tool: Tool) -> tuple[str, Step]:
    """One call that works."""
    arguments = kind.draw_arguments(rng)
    request = kind.draw_request(rng, arguments)
    result, reply = kind.draw_reply(rng, arguments)
    key = f"tool:{kind.names[0]}:{arguments}"
    return key, single_call_step(tool, request, arguments, result, reply)


def ordinary_step(rng: Random, kind: ToolKind, tool: Tool) -> tuple[str, Step]:
    """One call, of which some fail, asked for as people write."""
    key, step = plain_step(rng, kind, tool)
    if chance(rng, 0.08):
        step = step._replace(
            results=[{"error": "service not available"}],
            reply="The tool failed: service not available.",
        )
    return key, step._replace(request=with_noise(rng, step.request))
