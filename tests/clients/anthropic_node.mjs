// @anthropic-ai/sdk of npm: messages, streams, tools, thinking, tokens counted, errors, abort.

import Anthropic from "@anthropic-ai/sdk";
import {
  KEY, URL_, WEATHER, WEATHER_QUESTION, WEATHER_RESULT, expect, keyed, rejects, run, waitIdle,
} from "./harness.mjs";

const client = new Anthropic({ baseURL: URL_, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const tool = { name: WEATHER.name, description: WEATHER.description, input_schema: WEATHER.parameters };

/** Body of a greedy request without thinking. */
function body(content, more = {}) {
  return {
    model: "claude-opus-4-5",
    max_tokens: 512,
    temperature: 0,
    thinking: { type: "disabled" },
    messages: [{ role: "user", content }],
    ...more,
  };
}
const ask = (content, more) => client.messages.create(body(content, more));

await run("anthropic-node", {
  async create() {
    const reply = await ask("12 + 30 = ?", { system: "You are a helpful assistant." });
    expect(reply.content[0].text === "12 + 30 = 42", reply.content);
    expect(reply.stop_reason === "end_turn" && reply.model === "claude-opus-4-5", reply);
    return reply.content[0].text;
  },

  async stream() {
    const stream = client.messages.stream(body("12 + 30 = ?"));
    const texts = [];
    stream.on("text", (delta) => texts.push(delta));
    const final = await stream.finalMessage();
    expect(texts.join("") === "12 + 30 = 42" && final.usage.output_tokens > 0, final);
    return `${texts.length} deltas`;
  },

  async thinking() {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const stream = client.messages.stream(body("12 + 30 = ?", { max_tokens: 2048, thinking }));
    const thoughts = [];
    stream.on("thinking", (delta) => thoughts.push(delta));
    const { content } = await stream.finalMessage();
    expect(content.map((block) => block.type).join() === "thinking,text", content);
    expect(thoughts.join("") === content[0].thinking && content[0].signature, content);
    return content[1].text;
  },

  async tools_round_trip() {
    const stream = client.messages.stream(body(WEATHER_QUESTION, { tools: [tool] }));
    const pieces = [];
    stream.on("inputJson", (piece) => pieces.push(piece));
    const first = await stream.finalMessage();
    const call = first.content.find((block) => block.type === "tool_use");
    expect(first.stop_reason === "tool_use" && call.input.city === "Paris", first);
    expect(JSON.parse(pieces.join("")).city === "Paris", pieces);
    const result = { type: "tool_result", tool_use_id: call.id, content: JSON.stringify(WEATHER_RESULT) };
    const messages = [
      { role: "user", content: WEATHER_QUESTION },
      { role: "assistant", content: first.content },
      { role: "user", content: [result] },
    ];
    const second = await ask("", { tools: [tool], messages });
    expect(second.content[0].text.includes("21"), second.content);
    return second.content[0].text;
  },

  async tools_forced() {
    const reply = await ask("Hello", { tools: [tool], tool_choice: { type: "tool", name: tool.name } });
    const [call] = reply.content.filter((block) => block.type === "tool_use");
    expect(typeof call.input.city === "string", reply.content);
    return JSON.stringify(call.input);
  },

  async count_tokens() {
    const { max_tokens, temperature, ...rest } = body(WEATHER_QUESTION, { tools: [tool] });
    const { input_tokens } = await client.messages.countTokens(rest);
    const { usage } = await client.messages.create({ ...rest, max_tokens: 8, temperature });
    const used = usage.input_tokens + usage.cache_read_input_tokens + (usage.cache_creation_input_tokens ?? 0);
    expect(input_tokens === used, { input_tokens, usage });
    return `${input_tokens} tokens`;
  },

  async errors() {
    const bad = await rejects(Anthropic.BadRequestError, ask("Hi", { max_tokens: 0 }));
    expect(bad.error.error.type === "invalid_request_error", bad.error);
    const long = await rejects(Anthropic.BadRequestError, ask("one two ".repeat(40_000)));
    expect(long.error.error.message.includes("prompt is too long"), long.error);
    const missing = await rejects(Anthropic.NotFoundError, client.get("/v1/no-such-path"));
    return missing.message;
  },

  async wrong_key() {
    const baseURL = keyed();
    const hello = (key) => new Anthropic({ baseURL, maxRetries: 0, ...key }).messages.create(body("Hi"));
    await rejects(Anthropic.AuthenticationError, hello({ apiKey: "wrong" }));
    expect((await hello({ apiKey: KEY })).type === "message", "x-api-key");
    expect((await hello({ apiKey: null, authToken: KEY })).type === "message", "Bearer");
  },

  async abandoned_stream() {
    for await (const event of await ask("Tell me a story.", { stream: true })) {
      if (event.type === "content_block_delta") break;
    }
    return `free after ${(await waitIdle(1)).toFixed(3)} s`;
  },
});
