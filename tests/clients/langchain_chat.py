"""langchain-openai: invoke, stream, bind_tools with a loop, structured output, batch, errors."""

import asyncio
from typing import Literal

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from harness import URL, WEATHER_QUESTION, WEATHER_RESULT, Suite, expect, raises, unique_text

suite = Suite("langchain-openai")


def chat(**more):
    """A chat model: greedy, without thinking unless the case says otherwise."""
    options = {
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
        "temperature": 0,
        "stream_usage": True,
        **more,
    }
    return ChatOpenAI(model="demo", base_url=f"{URL}/v1", api_key="none", max_retries=0, **options)


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    return WEATHER_RESULT


class Report(BaseModel):
    """A report."""

    color: Literal["red", "green", "blue"]
    certain: bool


@suite.case
def invoke():
    reply = chat().invoke([SystemMessage("You are a helpful assistant."), HumanMessage("12 + 30 = ?")])
    expect(reply.content == "12 + 30 = 42", f"{reply}")
    expect(reply.usage_metadata["total_tokens"] > 0, f"{reply.usage_metadata}")
    expect(reply.response_metadata["finish_reason"] == "stop", f"{reply.response_metadata}")
    return reply.content


@suite.case
def stream():
    whole = None
    for chunk in chat().stream("12 + 30 = ?"):
        whole = chunk if whole is None else whole + chunk
    expect(whole.content == "12 + 30 = 42", f"{whole}")
    expect(whole.usage_metadata["output_tokens"] > 0, f"{whole.usage_metadata}")


@suite.case
def bind_tools_loop():
    # With thinking: it writes a tool's schema in an order that so small a model else does not understand.
    model = chat(extra_body={}).bind_tools([get_weather])
    messages = [HumanMessage(WEATHER_QUESTION)]
    for _ in range(3):
        reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = get_weather.invoke(call)
            expect(isinstance(result, ToolMessage), f"{result}")
            messages.append(result)
    kinds = [message.type for message in messages]
    expect(kinds == ["human", "ai", "tool", "ai"], f"{kinds}")
    expect(messages[1].tool_calls[0]["args"] == {"city": "Paris"}, f"{messages[1]}")
    expect("21" in messages[-1].content, f"{messages[-1]}")
    expect(messages[-1].usage_metadata["input_token_details"]["cache_read"] > 0, f"{messages[-1]}")
    return messages[-1].content


@suite.case
def tool_choice_forced_and_streamed():
    for choice in ("any", "get_weather"):
        model = chat().bind_tools([get_weather], tool_choice=choice)
        whole = None
        for chunk in model.stream(WEATHER_QUESTION):
            whole = chunk if whole is None else whole + chunk
        expect([c["name"] for c in whole.tool_calls] == ["get_weather"], f"{whole}")
        expect(not whole.invalid_tool_calls, f"{whole}")


@suite.case
def structured_output():
    for method in ("json_schema", "function_calling"):
        model = chat(max_tokens=200).with_structured_output(Report, method=method)
        report = model.invoke("Which color?")
        expect(isinstance(report, Report), f"{method}: {report}")
    return report.model_dump_json()


@suite.case
def logprobs_and_seed():
    reply = chat(logprobs=True, seed=3, temperature=0.5).invoke("12 + 30 = ?")
    expect(reply.response_metadata["logprobs"]["content"], f"{reply.response_metadata}")


@suite.case
def batch():
    async def run():
        return await chat().abatch([f"{a} + 6 = ?" for a in range(50, 56)])

    for a, reply in zip(range(50, 56), asyncio.run(run()), strict=True):
        expect(reply.content == f"{a} + 6 = {a + 6}", f"{reply.content}")


@suite.case
def responses_api():
    model = chat(use_responses_api=True, extra_body=None, reasoning={"effort": "medium"})
    reply = model.invoke("12 + 30 = ?")
    expect(reply.text == "12 + 30 = 42", f"{reply}")
    asked = model.bind_tools([get_weather]).invoke(WEATHER_QUESTION)
    expect(asked.tool_calls[0]["args"] == {"city": "Paris"}, f"{asked}")


@suite.case
def errors():
    raises(openai.BadRequestError, lambda: chat(temperature=-1).invoke("Hi"))
    error = raises(ContextOverflowError, lambda: chat().invoke(unique_text(60_000)))
    return str(error)[:200]


if __name__ == "__main__":
    suite.main()
