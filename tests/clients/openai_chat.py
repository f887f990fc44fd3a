"""The openai Python package on /v1/chat/completions, /v1/completions and /v1/models."""

import asyncio
import json
import math
import time
from typing import Literal

import openai
from pydantic import BaseModel

from harness import (
    END_TOKENS,
    KEY,
    URL,
    WEATHER,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    Suite,
    expect,
    health,
    keyed,
    raises,
    unique_text,
    wait_idle,
)

suite = Suite("openai-python")
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
MODEL = "gpt-4o"  # a name that the server does not know; it answers under it
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL = {"type": "function", "function": WEATHER}


def ask(text, **more):
    """One user message, greedy; without thinking unless the case says otherwise."""
    arguments = {"temperature": 0, "extra_body": NO_THINKING, **more}
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], **arguments
    )


@suite.case
def models_list():
    models = client.models.list().data
    expect(models, "the list is empty")
    one = client.models.retrieve(models[0].id)
    expect(one.id == models[0].id and one.object == "model", f"retrieve: {one}")
    return models[0].id


@suite.case
def chat():
    reply = ask("12 + 30 = ?")
    expect(reply.choices[0].message.content == "12 + 30 = 42", f"{reply.choices[0].message}")
    expect(reply.choices[0].finish_reason == "stop", reply.choices[0].finish_reason)
    expect(reply.model == MODEL, f"answered as {reply.model}")
    expect(reply.object == "chat.completion" and reply.id.startswith("chatcmpl-"), reply.id)
    usage = reply.usage
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
    expect(reply._request_id, "no x-request-id header")
    return reply.choices[0].message.content


@suite.case
def chat_stream():
    stream = ask("12 + 30 = ?", stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    expect(chunks[0].choices[0].delta.role == "assistant", f"first chunk: {chunks[0]}")
    roles = [c for c in chunks if c.choices and c.choices[0].delta.role]
    expect(len(roles) == 1, "the role comes more than once")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect(text == "12 + 30 = 42", text)
    expect(len({c.id for c in chunks}) == 1, "ids differ between chunks")
    expect(chunks[-2].choices[0].finish_reason == "stop", f"{chunks[-2]}")
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, f"{chunks[-1]}")
    expect(all(c.usage is None for c in chunks[:-1]), "usage before the last chunk")
    return f"{len(chunks)} chunks"


@suite.case
def stream_without_usage():
    chunks = list(ask("12 + 30 = ?", stream=True))
    expect(all(c.usage is None for c in chunks), "usage although it was not asked for")
    expect(all(c.choices for c in chunks), "a chunk without choices")


@suite.case
def stream_helper():
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "12 + 30 = ?"}],
        temperature=0,
        extra_body=NO_THINKING,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    expect({"chunk", "content.delta", "content.done"} <= kinds, f"{kinds}")
    expect(final.choices[0].message.content == "12 + 30 = 42", f"{final.choices}")


@suite.case
def system_developer_and_parts():
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "developer", "content": [{"type": "text", "text": "Answer briefly."}]},
            {"role": "user", "content": [{"type": "text", "text": "7 + "}, {"type": "text", "text": "8 = ?"}]},
        ],
        temperature=0,
        extra_body=NO_THINKING,
    )
    expect(reply.choices[0].finish_reason == "stop", f"{reply.choices[0]}")
    expect("15" in reply.choices[0].message.content, f"{reply.choices[0].message}")


@suite.case
def cached_tokens_on_a_repeated_prompt():
    text = unique_text(600)
    first = ask(text, max_tokens=4).usage
    second = ask(text, max_tokens=4).usage
    cached = second.prompt_tokens_details.cached_tokens
    expect(first.prompt_tokens_details.cached_tokens < 100, f"first: {first}")
    expect(cached > 0.8 * second.prompt_tokens, f"cached {cached} of {second.prompt_tokens}")
    return f"{cached} of {second.prompt_tokens} tokens"


@suite.case
def tools_forced():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        reply = ask(WEATHER_QUESTION, tools=[TOOL], tool_choice=choice)
        calls = reply.choices[0].message.tool_calls
        expect(reply.choices[0].finish_reason == "tool_calls", f"{reply.choices[0]}")
        expect(calls and calls[0].function.name == "get_weather", f"{calls}")
        expect(isinstance(json.loads(calls[0].function.arguments)["city"], str), f"{calls}")
    return calls[0].function.arguments


@suite.case
def tools_round_trip():
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    options = {"model": MODEL, "tools": [TOOL], "temperature": 0, "extra_body": NO_THINKING}
    first = client.chat.completions.create(messages=messages, tool_choice="auto", **options)
    calls = first.choices[0].message.tool_calls
    expect(calls and json.loads(calls[0].function.arguments) == {"city": "Paris"}, f"{first.choices}")
    messages.append(first.choices[0].message)
    messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": WEATHER_RESULT})
    second = client.chat.completions.create(messages=messages, **options)
    text = second.choices[0].message.content
    expect(second.choices[0].finish_reason == "stop" and "21" in text, f"{second.choices}")
    expect(second.usage.prompt_tokens_details.cached_tokens > 0, f"{second.usage}")
    return text


@suite.case
def tools_stream():
    stream = ask(WEATHER_QUESTION, tools=[TOOL], stream=True)
    name, call_id, arguments, finish = None, None, "", None
    for chunk in stream:
        choice = chunk.choices[0]
        for call in choice.delta.tool_calls or []:
            expect(call.index == 0, f"{call}")
            if call.function.name:
                expect(name is None, "the name comes twice")
                name, call_id = call.function.name, call.id
            arguments += call.function.arguments or ""
        finish = choice.finish_reason or finish
    expect(name == "get_weather" and call_id, f"{name} {call_id}")
    expect(json.loads(arguments) == {"city": "Paris"}, arguments)
    expect(finish == "tool_calls", finish)


@suite.case
def tools_none():
    reply = ask(WEATHER_QUESTION, tools=[TOOL], tool_choice="none", max_tokens=64)
    expect(not reply.choices[0].message.tool_calls, f"{reply.choices[0].message}")


class Report(BaseModel):
    """A schema that ends by itself whatever the model says."""

    color: Literal["red", "green", "blue"]
    certain: bool
    places: list[Literal["Paris", "Rome"]]


@suite.case
def json_schema_parsed():
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Which color?"}],
        response_format=Report,
        temperature=0,
        max_tokens=400,
        extra_body=NO_THINKING,
    )
    parsed = reply.choices[0].message.parsed
    expect(isinstance(parsed, Report), f"{reply.choices[0]}")
    return parsed.model_dump_json()


@suite.case
def json_object():
    text = ask(
        "Write these numbers as a JSON list: 9, 59, 11",
        response_format={"type": "json_object"},
        max_tokens=200,
    ).choices[0].message.content
    expect(isinstance(json.loads(text), dict), text)


@suite.case
def reasoning():
    reply = ask("12 + 30 = ?", extra_body={})
    message = reply.choices[0].message
    expect(message.content == "12 + 30 = 42", f"{message}")
    expect(message.reasoning_content, f"{message}")
    tokens = reply.usage.completion_tokens_details.reasoning_tokens
    expect(tokens > 0, f"{reply.usage}")
    deltas = [c.choices[0].delta for c in ask("12 + 30 = ?", extra_body={}, stream=True)]
    streamed = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    expect(streamed == message.reasoning_content, f"streamed {streamed!r}")
    off = ask("12 + 30 = ?", reasoning_effort="none", extra_body={}).choices[0].message
    expect(not getattr(off, "reasoning_content", None), f"reasoning_effort none: {off}")
    return f"{tokens} reasoning tokens"


@suite.case
def logprobs():
    choice = ask("12 + 30 = ?", logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    expect("".join(t.token for t in content) == choice.message.content, f"{content}")
    for token in content:
        expect(token.logprob <= 0 and len(token.top_logprobs) == 3, f"{token}")
        expect(bytes(token.bytes).decode() == token.token, f"{token}")
        # Greedy: the chosen token is the most likely one.
        expect(math.isclose(token.logprob, token.top_logprobs[0].logprob, abs_tol=1e-5), f"{token}")
    return f"{len(content)} tokens"


@suite.case
def several_choices():
    reply = ask("Tell me a story about a fox.", n=2, temperature=1.0, seed=7, max_tokens=40)
    expect([c.index for c in reply.choices] == [0, 1], f"{reply.choices}")
    texts = [c.message.content for c in reply.choices]
    expect(all(texts) and texts[0] != texts[1], f"{texts}")
    again = ask("Tell me a story about a fox.", n=2, temperature=1.0, seed=7, max_tokens=40)
    expect([c.message.content for c in again.choices] == texts, "the same seed gave other texts")
    seen = {c.choices[0].index for c in ask("12 + 30 = ?", n=2, stream=True)}
    expect(seen == {0, 1}, f"streamed choices {seen}")


@suite.case
def stop_and_length():
    stopped = ask("Write these numbers as a JSON list: 9, 59, 11", stop=["59"]).choices[0]
    expect(stopped.finish_reason == "stop" and "59" not in stopped.message.content, f"{stopped}")
    expect(stopped.message.content.startswith("[9"), f"{stopped}")
    cut = ask("12 + 30 = ?", max_completion_tokens=2)
    expect(cut.choices[0].finish_reason == "length", f"{cut.choices[0]}")
    expect(cut.usage.completion_tokens == 2, f"{cut.usage}")


@suite.case
def completions():
    reply = client.completions.create(model=MODEL, prompt="12 + 30 =", max_tokens=8, temperature=0)
    expect(reply.object == "text_completion" and reply.choices[0].text, f"{reply}")
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt="12 + 30 =",
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    streamed = "".join(c.choices[0].text for c in chunks if c.choices)
    expect(streamed == reply.choices[0].text, f"{streamed!r} is not {reply.choices[0].text!r}")
    expect(chunks[-1].usage.completion_tokens == reply.usage.completion_tokens, f"{chunks[-1]}")
    return repr(reply.choices[0].text)


@suite.case
def bad_values():
    error = raises(openai.BadRequestError, lambda: ask("Hi", temperature=-1))
    expect(error.param == "temperature" and error.type == "invalid_request_error", f"{error.body}")
    expect("-1" in error.message, error.message)
    raises(openai.BadRequestError, lambda: ask("Hi", max_tokens=0))
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=[]))
    unknown = {"type": "function", "function": {"name": "no_such_tool"}}
    raises(openai.BadRequestError, lambda: ask("Hi", tools=[TOOL], tool_choice=unknown))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = raises(openai.BadRequestError, lambda: ask([picture]))
    expect("image" in error.message, error.message)
    raises(openai.NotFoundError, lambda: client.get("/no-such-path", cast_to=object))
    return error.message


@suite.case
def prompt_over_the_context():
    error = raises(openai.BadRequestError, lambda: ask(unique_text(60_000)))
    expect(error.code == "context_length_exceeded", f"{error.body}")
    expect(any(c.isdigit() for c in error.message), error.message)
    return error.message


@suite.case
def wrong_key():
    url = keyed()
    wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    error = raises(openai.AuthenticationError, wrong.models.list)
    right = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    expect(right.models.list().data, "no model with the right key")
    return error.message


@suite.case
def abandoned_stream():
    """A client that goes away frees its place at once, though 4,000 tokens were to come."""
    wait_idle(30)
    stream = ask("Tell me a story.", stream=True, max_tokens=4000, logit_bias=END_TOKENS)
    for _, chunk in zip(range(5), stream):
        expect(chunk.choices[0].finish_reason is None, f"{chunk}")
    expect(health()["running"] == 1, f"{health()}")
    stream.close()
    return f"free after {wait_idle(1):.3f} s"


@suite.case
def concurrent_requests():
    """16 requests at once, through the asynchronous client: each gets the answer to its own question."""
    sums = [(a, a + 11) for a in range(20, 36)]

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", timeout=120) as many:
            return await asyncio.gather(
                *(
                    many.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": f"{a} + {b} = ?"}],
                        temperature=0,
                        extra_body=NO_THINKING,
                    )
                    for a, b in sums
                )
            )

    start = time.monotonic()
    for (a, b), reply in zip(sums, asyncio.run(run()), strict=True):
        expect(reply.choices[0].message.content == f"{a} + {b} = {a + b}", f"{reply.choices[0]}")
    return f"{len(sums)} in {time.monotonic() - start:.1f} s"


if __name__ == "__main__":
    suite.main()
