"""The types that all tasks and conversations share: one question with its answer, one message."""

from typing import Any, NamedTuple


class Item(NamedTuple):
    """One question and its answer, before it becomes part of a chat.

    `key` identifies the question for the held-out split. `short` is the bare result for chats that
    ask for nothing else, or None where there is no such thing.
    """

    key: str
    question: str
    answer: str
    thinking: str
    short: str | None


class Call(NamedTuple):
    """A call of a tool: its name and the arguments in order."""

    name: str
    arguments: list[tuple[str, Any]]


class Message(NamedTuple):
    """One message of a chat; `thinking` and `calls` belong to the assistant's messages."""

    role: str
    content: str
    thinking: str = ""
    calls: list[Call] | None = None


def as_openai_messages(
    messages: list[Message], reasoning_from: int | None = None
) -> list[dict[str, Any]]:
    """The messages as a chat template and an HTTP client write them.

    Thinking goes into `reasoning_content` from the message number `reasoning_from` on; None leaves
    it out everywhere.
    """
    result = []
    for position, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            if reasoning_from is not None and position >= reasoning_from:
                entry["reasoning_content"] = message.thinking
            if message.calls:
                entry["tool_calls"] = [
                    {
                        "type": "function",
                        "function": {"name": call.name, "arguments": dict(call.arguments)},
                    }
                    for call in message.calls
                ]
        result.append(entry)
    return result


def last_user_position(messages: list[Message]) -> int:
    """The position of the user's last message."""
    return max(i for i, message in enumerate(messages) if message.role == "user")
