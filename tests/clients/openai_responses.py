"""The openai Python package on /v1/responses: create, stream, tools, previous_response_id, errors."""

import json
from typing import Literal

import openai
from pydantic import BaseModel

from harness import (
    URL,
    WEATHER,
    WEATHER_QUESTION,
    WEATHER_RESULT,
    Suite,
    expect,
    raises,
    unique_text,
)

suite = Suite("openai-python-responses")
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
MODEL = "gpt-5"
TOOL = {"type": "function", "strict": False, **WEATHER}


def ask(text, **more):
    """One input, greedy; without thinking unless the case says otherwise."""
    options = {"temperature": 0, "reasoning": {"effort": "none"}, **more}
    return client.responses.create(model=MODEL, input=text, **options)


@suite.case
def create():
    reply = ask("12 + 30 = ?", instructions="You are a helpful assistant.")
    expect(reply.output_text == "12 + 30 = 42", f"{reply.output}")
    expect(reply.status == "completed" and reply.model == MODEL, f"{reply}")
    usage = reply.usage
    expect(usage.total_tokens == usage.input_tokens + usage.output_tokens, f"{usage}")
    return reply.output_text


@suite.case
def stream():
    events = list(ask("12 + 30 = ?", stream=True))
    kinds = [event.type for event in events]
    expect(
        [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
        == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ],
        f"{kinds}",
    )
    expect([e.sequence_number for e in events] == list(range(len(events))), "sequence numbers")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    final = events[-1].response
    expect(text == final.output_text == "12 + 30 = 42", f"{text!r} {final.output_text!r}")
    expect(final.usage.output_tokens > 0, f"{final.usage}")
    return f"{len(events)} events"


@suite.case
def reasoning():
    reply = ask("12 + 30 = ?", reasoning={"effort": "medium"})
    kinds = [item.type for item in reply.output]
    expect(kinds == ["reasoning", "message"], f"{kinds}")
    expect(reply.usage.output_tokens_details.reasoning_tokens > 0, f"{reply.usage}")
    events = list(ask("12 + 30 = ?", reasoning={"effort": "medium"}, stream=True))
    thought = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    whole = "".join(part.text for part in reply.output[0].content)
    expect(thought and thought == whole, f"streamed {thought!r}, whole {whole!r}")
    return f"{reply.usage.output_tokens_details.reasoning_tokens} reasoning tokens"


@suite.case
def tools_round_trip():
    first = ask(WEATHER_QUESTION, tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    expect(calls and calls[0].name == "get_weather", f"{first.output}")
    expect(json.loads(calls[0].arguments) == {"city": "Paris"}, calls[0].arguments)
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": WEATHER_RESULT}
    second = ask([result], tools=[TOOL], previous_response_id=first.id)
    expect("21" in second.output_text, f"{second.output}")
    # The same again with the whole history in the request, as agents with store: false send it.
    history = [{"role": "user", "content": WEATHER_QUESTION}, *first.output, result]
    third = ask(history, tools=[TOOL], store=False)
    expect(third.output_text == second.output_text, f"{third.output_text!r}")
    return second.output_text


@suite.case
def tools_stream_forced():
    choice = {"type": "function", "name": "get_weather"}
    with client.responses.stream(
        model=MODEL,
        input=WEATHER_QUESTION,
        tools=[TOOL],
        tool_choice=choice,
        temperature=0,
        reasoning={"effort": "none"},
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    call = next(item for item in final.output if item.type == "function_call")
    expect("".join(pieces) == call.arguments, f"{pieces} {call.arguments}")
    expect(isinstance(json.loads(call.arguments)["city"], str), call.arguments)
    return call.arguments


@suite.case
def previous_response_id():
    first = ask("12 + 30 = ?")
    second = ask("8 + 9 = ?", previous_response_id=first.id)
    expect(second.previous_response_id == first.id, f"{second}")
    expect(second.usage.input_tokens > first.usage.input_tokens, f"{second.usage}")
    expect(second.usage.input_tokens_details.cached_tokens > 0, f"{second.usage}")
    kept = client.responses.retrieve(first.id)
    expect(kept.output_text == first.output_text, f"{kept.output}")
    raises(openai.APIStatusError, lambda: ask("Hi", previous_response_id="resp_unknown"))
    return second.output_text


class Report(BaseModel):
    """A schema that ends by itself whatever the model says."""

    color: Literal["red", "green", "blue"]
    certain: bool


@suite.case
def json_schema_parsed():
    reply = client.responses.parse(
        model=MODEL,
        input="Which color?",
        text_format=Report,
        temperature=0,
        reasoning={"effort": "none"},
    )
    expect(isinstance(reply.output_parsed, Report), f"{reply.output}")
    return reply.output_parsed.model_dump_json()


@suite.case
def other_kinds_of_tools_are_tolerated():
    tools = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}, TOOL]
    reply = ask(WEATHER_QUESTION, tools=tools)
    calls = [item.name for item in reply.output if item.type == "function_call"]
    expect(calls == ["get_weather"], f"{reply.output}")


@suite.case
def incomplete():
    reply = ask("Tell me a story.", max_output_tokens=16)
    expect(reply.status == "incomplete", reply.status)
    expect(reply.incomplete_details.reason == "max_output_tokens", f"{reply.incomplete_details}")


@suite.case
def bad_values():
    error = raises(openai.BadRequestError, lambda: ask("Hi", temperature=-1))
    expect(error.param == "temperature", f"{error.body}")
    error = raises(openai.BadRequestError, lambda: ask(unique_text(60_000)))
    expect(error.code == "context_length_exceeded", f"{error.body}")
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    error = raises(openai.BadRequestError, lambda: ask([{"role": "user", "content": [picture]}]))
    expect("image" in error.message, error.message)
    return error.message


if __name__ == "__main__":
    suite.main()
