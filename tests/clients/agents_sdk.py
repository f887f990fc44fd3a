"""openai-agents: an agent with a function tool, over chat completions and over responses, run and streamed."""

import asyncio
import json

from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning

from harness import URL, WEATHER, WEATHER_QUESTION, WEATHER_RESULT, Suite, expect

set_tracing_disabled(True)
suite = Suite("openai-agents")
CHAT = ModelSettings(
    temperature=0, include_usage=True, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
)
RESPONSES = ModelSettings(temperature=0, reasoning=Reasoning(effort="none"))


def agent_for(kind, settings, seen):
    """An agent with one tool, which notes the cities that it was asked for."""

    async def get_weather(context, arguments):
        seen.append(json.loads(arguments)["city"])
        return WEATHER_RESULT

    # Not @function_tool, whose schemas are too elaborate for so small a model.
    tool = FunctionTool(
        name=WEATHER["name"],
        description=WEATHER["description"],
        params_json_schema=WEATHER["parameters"],
        on_invoke_tool=get_weather,
        strict_json_schema=False,
    )
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
    return Agent(
        name="weather",
        instructions="You are a helpful assistant.",
        tools=[tool],
        model=kind(model="gpt-5", openai_client=client),
        model_settings=settings,
    )


def check(result, seen):
    """The tool ran once with the city of the question, and the answer tells its result."""
    expect(seen == ["Paris"], f"the tool was called with {seen}")
    expect("21" in result.final_output, f"{result.final_output!r}")
    kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
    expect(kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], f"{kinds}")
    expect(len(result.raw_responses) == 2, f"{len(result.raw_responses)} responses")
    return result.final_output


def run(kind, settings):
    """One turn without streaming."""
    seen = []
    result = asyncio.run(Runner.run(agent_for(kind, settings, seen), WEATHER_QUESTION, max_turns=4))
    return check(result, seen)


def run_streamed(kind, settings):
    """One turn, streamed."""
    seen = []

    async def turn():
        result = Runner.run_streamed(agent_for(kind, settings, seen), WEATHER_QUESTION, max_turns=4)
        kinds = {event.type async for event in result.stream_events()}
        expect("raw_response_event" in kinds and "run_item_stream_event" in kinds, f"{kinds}")
        return result

    return check(asyncio.run(turn()), seen)


@suite.case
def chat_completions():
    return run(OpenAIChatCompletionsModel, CHAT)


@suite.case
def chat_completions_streamed():
    return run_streamed(OpenAIChatCompletionsModel, CHAT)


@suite.case
def responses():
    return run(OpenAIResponsesModel, RESPONSES)


@suite.case
def responses_streamed():
    return run_streamed(OpenAIResponsesModel, RESPONSES)


if __name__ == "__main__":
    suite.main()
