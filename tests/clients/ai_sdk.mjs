// @ai-sdk/openai-compatible with the ai package, as OpenCode and many others use it.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { END_TOKENS, URL_, WEATHER_QUESTION, WEATHER_RESULT, expect, rejects, run, waitIdle } from "./harness.mjs";

/** A provider; `extra` is added to each request's body. */
function provider(extra) {
  return createOpenAICompatible({
    name: "calla",
    baseURL: `${URL_}/v1`,
    apiKey: "none",
    includeUsage: true,
    supportsStructuredOutputs: true,
    transformRequestBody: (body) => ({ ...body, ...extra }),
  });
}
const thinking = provider({})("demo");
const model = provider({ chat_template_kwargs: { enable_thinking: false } })("demo");
const common = { temperature: 0, maxRetries: 0 };

/** The weather tool, which notes the cities that it was asked for. */
function weather(seen) {
  return tool({
    description: "Get the current weather for a city.",
    inputSchema: z.object({ city: z.string().describe("Name of the city") }),
    execute: async ({ city }) => {
      seen.push(city);
      return WEATHER_RESULT;
    },
  });
}

await run("ai-sdk", {
  async generate_text() {
    const { text, finishReason, usage } = await generateText({ ...common, model, prompt: "12 + 30 = ?" });
    expect(text === "12 + 30 = 42" && finishReason === "stop", { text, finishReason });
    expect(usage.inputTokens > 0 && usage.outputTokens > 0, usage);
    return text;
  },

  async stream_text_with_reasoning() {
    const result = streamText({ ...common, model: thinking, prompt: "12 + 30 = ?" });
    const kinds = new Set();
    for await (const part of result.fullStream) kinds.add(part.type);
    expect(kinds.has("reasoning-delta") && kinds.has("text-delta"), [...kinds]);
    expect((await result.text) === "12 + 30 = 42", await result.text);
    expect((await result.reasoningText).length > 0, "no reasoning");
    const usage = await result.usage;
    expect(usage.outputTokenDetails.reasoningTokens > 0, usage);
    return `${usage.outputTokenDetails.reasoningTokens} reasoning tokens`;
  },

  async tool_loop() {
    const seen = [];
    const options = { ...common, model, prompt: WEATHER_QUESTION, stopWhen: isStepCount(3) };
    const { text, steps } = await generateText({ ...options, tools: { get_weather: weather(seen) } });
    expect(seen.join() === "Paris" && steps.length === 2, { seen, steps: steps.length });
    expect(text.includes("21"), text);
    return text;
  },

  async tool_loop_streamed() {
    const seen = [];
    const result = streamText({
      ...common,
      model,
      prompt: WEATHER_QUESTION,
      stopWhen: isStepCount(3),
      tools: { get_weather: weather(seen) },
    });
    const kinds = [];
    for await (const part of result.fullStream) kinds.push(part.type);
    for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result", "text-delta"]) {
      expect(kinds.includes(kind), kinds);
    }
    expect(seen.join() === "Paris", seen);
    const second = (await result.steps)[1].usage;
    expect(second.inputTokenDetails.cacheReadTokens > 0, second);
    return `${second.inputTokenDetails.cacheReadTokens} cached tokens in step 2`;
  },

  async structured_output() {
    const schema = z.object({ color: z.enum(["red", "green", "blue"]), certain: z.boolean() });
    const { output } = await generateText({
      ...common,
      model,
      prompt: "Which color?",
      maxOutputTokens: 200,
      output: Output.object({ schema }),
    });
    expect(schema.safeParse(output).success, output);
    return JSON.stringify(output);
  },

  async errors() {
    const request = generateText({ ...common, model, prompt: "one two ".repeat(40_000) });
    const error = await rejects(APICallError, request);
    expect(error.statusCode === 400 && !error.isRetryable, error);
    expect(error.data.error.code === "context_length_exceeded", error.data);
    return error.message;
  },

  async abort() {
    await waitIdle(30);
    const controller = new AbortController();
    const talking = provider({ logit_bias: END_TOKENS, chat_template_kwargs: { enable_thinking: false } })("demo");
    const result = streamText({
      ...common,
      model: talking,
      prompt: "Tell me a story.",
      maxOutputTokens: 4000,
      abortSignal: controller.signal,
    });
    let aborted = false;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta") controller.abort();
      aborted ||= part.type === "abort";
    }
    expect(aborted, "the stream was not aborted");
    return `free after ${(await waitIdle(1)).toFixed(3)} s`;
  },
});
