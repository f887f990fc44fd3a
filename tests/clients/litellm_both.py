"""litellm, through its OpenAI and its Anthropic route: chat, stream, tools, its typed errors."""

import os

# Its table of prices is inside the package; without this it is fetched from the network at import.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import json

import litellm

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
)

suite = Suite("litellm")
litellm.telemetry = False
litellm.suppress_debug_info = True
TOOL = {"type": "function", "function": WEATHER}
OPENAI = {
    "model": "openai/demo",
    "api_base": f"{URL}/v1",
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}
ANTHROPIC = {"model": "anthropic/claude-sonnet-4-5", "api_base": URL, "thinking": {"type": "disabled"}}


def ask(route, messages, **more):
    """A request through one of the two routes, greedy."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    options = {"api_key": "none", "temperature": 0, "max_tokens": 256, "num_retries": 0, **route, **more}
    return litellm.completion(messages=messages, **options)


def both(check):
    """Runs `check` for each route; the details of both."""
    return "; ".join(str(check(route)) for route in (OPENAI, ANTHROPIC))


@suite.case
def completion():
    def check(route):
        reply = ask(route, "12 + 30 = ?")
        expect(reply.choices[0].message.content == "12 + 30 = 42", f"{reply}")
        expect(reply.choices[0].finish_reason == "stop", f"{reply}")
        return f"{reply.usage.total_tokens} tokens"

    return both(check)


@suite.case
def stream():
    def check(route):
        chunks = list(ask(route, "12 + 30 = ?", stream=True, stream_options={"include_usage": True}))
        whole = litellm.stream_chunk_builder(chunks)
        expect(whole.choices[0].message.content == "12 + 30 = 42", f"{whole}")
        expect(whole.usage.completion_tokens > 0, f"{whole.usage}")
        return f"{len(chunks)} chunks"

    return both(check)


@suite.case
def tools_round_trip():
    def check(route):
        messages = [{"role": "user", "content": WEATHER_QUESTION}]
        first = ask(route, messages, tools=[TOOL]).choices[0]
        calls = first.message.tool_calls
        expect(calls and json.loads(calls[0].function.arguments) == {"city": "Paris"}, f"{first}")
        messages.append(first.message.model_dump())
        messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": WEATHER_RESULT})
        text = ask(route, messages, tools=[TOOL]).choices[0].message.content
        expect("21" in text, text)
        return text

    return both(check)


@suite.case
def reasoning():
    reply = ask({**OPENAI, "extra_body": {}}, "12 + 30 = ?")
    expect(reply.choices[0].message.reasoning_content, f"{reply}")
    budget = {"type": "enabled", "budget_tokens": 1024}
    reply = ask({**ANTHROPIC, "thinking": budget}, "12 + 30 = ?", max_tokens=2048)
    expect(reply.choices[0].message.reasoning_content, f"{reply}")
    expect(reply.choices[0].message.thinking_blocks, f"{reply}")


@suite.case
def responses():
    reply = litellm.responses(
        model="openai/gpt-5.1",
        input="12 + 30 = ?",
        api_base=f"{URL}/v1",
        api_key="none",
        reasoning={"effort": "none"},
    )
    text = "".join(part.text for item in reply.output if item.type == "message" for part in item.content)
    expect("42" in text, f"{reply}")


@suite.case
def errors():
    def check(route):
        raises(litellm.BadRequestError, lambda: ask(route, "Hi", temperature=-1))
        error = raises(litellm.ContextWindowExceededError, lambda: ask(route, unique_text(60_000)))
        return str(error)[:160]

    return both(check)


@suite.case
def wrong_key():
    url = keyed()
    for route in ({**OPENAI, "api_base": f"{url}/v1"}, {**ANTHROPIC, "api_base": url}):
        raises(litellm.AuthenticationError, lambda: ask({**route, "api_key": "wrong"}, "Hi"))
        expect(ask({**route, "api_key": KEY}, "Hi").choices, "no answer with the right key")


if __name__ == "__main__":
    suite.main()
