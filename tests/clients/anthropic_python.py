"""The anthropic Python package on /v1/messages and /v1/messages/count_tokens."""

import asyncio
import json

import anthropic

from harness import (
    KEY,
    URL,
    WEATHER,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    Suite,
    expect,
    keyed,
    raises,
    unique_text,
    wait_idle,
)

suite = Suite("anthropic-python")
client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
MODEL = "claude-sonnet-4-5"
OFF = {"type": "disabled"}
TOOL = {
    "name": WEATHER["name"],
    "description": WEATHER["description"],
    "input_schema": WEATHER["parameters"],
}


def user(content):
    """A list of one user message."""
    return [{"role": "user", "content": content}]


def options(temperature=0, **more):
    """Common arguments: greedy, and no thinking unless the case says otherwise.

    The package has no argument for the temperature; it goes beside the others.
    """
    extra = {"temperature": temperature}
    return {"model": MODEL, "max_tokens": 512, "thinking": OFF, "extra_body": extra, **more}


def ask(content, **more):
    """One user message."""
    return client.messages.create(messages=user(content), **options(**more))


@suite.case
def create():
    reply = ask("12 + 30 = ?", system="You are a helpful assistant.")
    expect([b.type for b in reply.content] == ["text"], f"{reply.content}")
    expect(reply.content[0].text == "12 + 30 = 42", f"{reply.content}")
    expect(reply.stop_reason == "end_turn" and reply.model == MODEL, f"{reply}")
    expect(reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0, f"{reply.usage}")
    return reply.content[0].text


@suite.case
def system_as_blocks():
    blocks = [
        {"type": "text", "text": "You are a helpful assistant."},
        {"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}},
    ]
    reply = ask([{"type": "text", "text": "12 + 30 = ?"}], system=blocks)
    expect("42" in reply.content[0].text, f"{reply.content}")


@suite.case
def stream():
    kinds = []
    with client.messages.stream(messages=user("12 + 30 = ?"), **options()) as events:
        text = ""
        for event in events:
            kinds.append(event.type)
            if event.type == "content_block_delta":
                text += event.delta.text
        final = events.get_final_message()
    expect(text == final.content[0].text == "12 + 30 = 42", f"{text!r} {final.content}")
    raw = [k for k in kinds if k.startswith(("message_", "content_block_"))]
    expect(raw[0] == "message_start" and raw[1] == "content_block_start", f"{raw}")
    expect(raw[-3:] == ["content_block_stop", "message_delta", "message_stop"], f"{raw}")
    expect(final.usage.output_tokens > 0, f"{final.usage}")
    return f"{len(kinds)} events"


@suite.case
def thinking():
    budget = {"type": "enabled", "budget_tokens": 1024}
    reply = ask("12 + 30 = ?", max_tokens=2048, thinking=budget)
    expect([b.type for b in reply.content] == ["thinking", "text"], f"{reply.content}")
    expect(reply.content[0].thinking and reply.content[0].signature, f"{reply.content[0]}")
    # The block is handed back unchanged in the next turn.
    history = [*user("12 + 30 = ?"), {"role": "assistant", "content": reply.content}, *user("8 + 9 = ?")]
    arguments = options(max_tokens=2048, thinking=budget)
    with client.messages.stream(messages=history, **arguments) as events:
        deltas = {e.delta.type for e in events if e.type == "content_block_delta"}
        final = events.get_final_message()
    expect(deltas == {"thinking_delta", "signature_delta", "text_delta"}, f"{deltas}")
    expect("17" in final.content[-1].text, f"{final.content}")
    return final.content[-1].text


@suite.case
def tools_round_trip():
    first = ask(WEATHER_QUESTION, tools=[TOOL])
    expect(first.stop_reason == "tool_use", f"{first}")
    call = next(b for b in first.content if b.type == "tool_use")
    expect(call.name == "get_weather" and call.input == {"city": "Paris"}, f"{call}")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_RESULT}
    history = [*user(WEATHER_QUESTION), {"role": "assistant", "content": first.content}, *user([result])]
    second = client.messages.create(messages=history, **options(tools=[TOOL]))
    text = second.content[-1].text
    expect(second.stop_reason == "end_turn" and "21" in text, f"{second}")
    expect(second.usage.cache_read_input_tokens > 0, f"{second.usage}")
    return text


@suite.case
def tools_forced_stream():
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        arguments = options(tools=[TOOL], tool_choice=choice)
        with client.messages.stream(messages=user(WEATHER_QUESTION), **arguments) as events:
            pieces = [
                e.delta.partial_json
                for e in events
                if e.type == "content_block_delta" and e.delta.type == "input_json_delta"
            ]
            final = events.get_final_message()
        call = next(b for b in final.content if b.type == "tool_use")
        expect(json.loads("".join(pieces)) == call.input, f"{pieces} {call}")
        expect(final.stop_reason == "tool_use", f"{final}")
    none = ask(WEATHER_QUESTION, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=64)
    expect(all(b.type != "tool_use" for b in none.content), f"{none.content}")
    return json.dumps(call.input)


@suite.case
def count_tokens():
    arguments = {"model": MODEL, "system": "You are a helpful assistant.", "tools": [TOOL], "thinking": OFF}
    count = client.messages.count_tokens(messages=user(WEATHER_QUESTION), **arguments).input_tokens
    used = client.messages.create(messages=user(WEATHER_QUESTION), max_tokens=64, **arguments).usage
    total = used.input_tokens + used.cache_read_input_tokens + (used.cache_creation_input_tokens or 0)
    expect(count == total, f"counted {count}, used {used}")
    return f"{count} tokens"


@suite.case
def cache_read_on_a_repeated_prompt():
    text = unique_text(600)
    ask(text, max_tokens=4)
    usage = ask(text, max_tokens=4).usage
    expect(usage.cache_read_input_tokens > 4 * usage.input_tokens, f"{usage}")
    return f"{usage.cache_read_input_tokens} read, {usage.input_tokens} new"


@suite.case
def stop_sequence():
    reply = ask("Write these numbers as a JSON list: 9, 59, 11", stop_sequences=["59"])
    expect(reply.stop_reason == "stop_sequence" and reply.stop_sequence == "59", f"{reply}")
    expect("59" not in reply.content[0].text, f"{reply.content}")
    cut = ask("12 + 30 = ?", max_tokens=2)
    expect(cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2, f"{cut}")


@suite.case
def fields_that_claude_code_sends():
    reply = client.beta.messages.create(
        messages=user([{"type": "text", "text": "12 + 30 = ?", "cache_control": {"type": "ephemeral"}}]),
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        extra_body={
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
        model=MODEL,
        max_tokens=32000,
        metadata={"user_id": json.dumps({"device_id": "0", "session_id": "1"})},
    )
    expect(reply.stop_reason == "end_turn", f"{reply}")
    return reply.content[-1].text


@suite.case
def errors():
    error = raises(anthropic.BadRequestError, lambda: ask("Hi", temperature=-1))
    expect(error.body["type"] == "error", f"{error.body}")
    expect(error.body["error"]["type"] == "invalid_request_error", f"{error.body}")
    expect("temperature" in error.body["error"]["message"], f"{error.body}")
    error = raises(anthropic.BadRequestError, lambda: ask(unique_text(60_000)))
    # "prompt is too long" is what agents look for before they compact.
    expect("prompt is too long" in error.body["error"]["message"], f"{error.body}")
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = raises(anthropic.BadRequestError, lambda: ask([{"type": "image", "source": source}]))
    expect("image" in image.body["error"]["message"], f"{image.body}")
    return error.body["error"]["message"]


@suite.case
def wrong_key():
    url = keyed()
    wrong = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    arguments = options(messages=user("Hi"))
    error = raises(anthropic.AuthenticationError, lambda: wrong.messages.create(**arguments))
    expect(error.body["error"]["type"] == "authentication_error", f"{error.body}")
    for right in ({"api_key": KEY}, {"auth_token": KEY}):  # x-api-key, Authorization: Bearer
        reply = anthropic.Anthropic(base_url=url, **right).messages.create(**arguments)
        expect(reply.type == "message", f"{reply}")


@suite.case
def concurrent_and_abandoned():
    async def run():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", timeout=120) as many:
            replies = asyncio.gather(
                *(many.messages.create(messages=user(f"{a} + 5 = ?"), **options()) for a in range(30, 38))
            )
            # Streams that are left after their first event.
            for _ in range(4):
                leave = await many.messages.create(messages=user("Tell me a story."), stream=True, **options())
                await anext(aiter(leave))
                await leave.close()
            return await replies

    for a, reply in zip(range(30, 38), asyncio.run(run()), strict=True):
        expect(reply.content[0].text == f"{a} + 5 = {a + 5}", f"{reply.content}")
    return f"idle after {wait_idle(1):.3f} s"


if __name__ == "__main__":
    suite.main()
