// The openai package of npm: chat, tools, structured output, responses, errors, abort.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  END_TOKENS, KEY, URL_, WEATHER, WEATHER_QUESTION, WEATHER_RESULT,
  expect, health, keyed, rejects, run, waitIdle,
} from "./harness.mjs";

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const tool = { type: "function", function: WEATHER };

/** Body of a greedy request without thinking. */
function body(content, more = {}) {
  return {
    model: "gpt-4o",
    messages: [{ role: "user", content }],
    temperature: 0,
    chat_template_kwargs: { enable_thinking: false },
    ...more,
  };
}
const ask = (content, more) => client.chat.completions.create(body(content, more));

await run("openai-node", {
  async models_list() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    expect(ids.length > 0, "the list is empty");
    return ids[0];
  },

  async chat() {
    const reply = await ask("12 + 30 = ?");
    expect(reply.choices[0].message.content === "12 + 30 = 42", reply.choices);
    expect(reply.choices[0].finish_reason === "stop", reply.choices);
    return reply.choices[0].message.content;
  },

  async chat_stream() {
    let text = "";
    let usage;
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await ask("12 + 30 = ?", options)) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    expect(text === "12 + 30 = 42", text);
    expect(usage.completion_tokens > 0, "no usage");
    return `${usage.completion_tokens} tokens`;
  },

  async stream_helper() {
    const stream = client.chat.completions.stream(body("12 + 30 = ?"));
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    expect((await stream.finalContent()) === "12 + 30 = 42", deltas);
    expect(deltas.join("") === "12 + 30 = 42", deltas);
    return `${deltas.length} deltas`;
  },

  async cached_tokens_on_a_repeated_prompt() {
    const text = `Note ${process.pid}-${Date.now()}. ${"one two three ".repeat(200)}`;
    await ask(text, { max_tokens: 4 });
    const { usage } = await ask(text, { max_tokens: 4 });
    const cached = usage.prompt_tokens_details.cached_tokens;
    expect(cached > 0.8 * usage.prompt_tokens, usage);
    return `${cached} of ${usage.prompt_tokens} tokens`;
  },

  // The SDK's own loop: it parses the call, runs the function, sends the result, and goes on. It writes
  // a tool's parameters before its description, which only this tool survives with so small a model.
  async run_tools() {
    const seen = [];
    const search = {
      name: "web_search",
      description: "Search the web.",
      parameters: { type: "object", properties: { query: { type: "string" } }, required: ["query"] },
      parse: JSON.parse,
      function: ({ query }) => {
        seen.push(query);
        return { results: ["Cats sleep for most of the day."] };
      },
    };
    const tools = [{ type: "function", function: search }];
    const runner = client.chat.completions.runTools(body("Search the web for cats", { tools }));
    const text = await runner.finalContent();
    expect(seen.join() === "cats" && text.length > 0, { seen, text });
    return text;
  },

  async tools_stream_forced() {
    const stream = client.chat.completions.stream(
      body(WEATHER_QUESTION, { tools: [tool], tool_choice: { type: "function", function: { name: WEATHER.name } } }),
    );
    const choice = (await stream.finalChatCompletion()).choices[0];
    const [call] = choice.message.tool_calls;
    expect(choice.finish_reason === "tool_calls" && call.function.name === WEATHER.name, choice);
    expect(typeof JSON.parse(call.function.arguments).city === "string", call);
    return call.function.arguments;
  },

  async json_schema_parsed() {
    const schema = z.object({ color: z.enum(["red", "green", "blue"]), certain: z.boolean() });
    const reply = await client.chat.completions.parse(
      body("Which color?", { response_format: zodResponseFormat(schema, "report"), max_tokens: 200 }),
    );
    const { parsed } = reply.choices[0].message;
    expect(schema.safeParse(parsed).success, reply.choices);
    return JSON.stringify(parsed);
  },

  async reasoning_and_logprobs() {
    const { message } = (await ask("12 + 30 = ?", { chat_template_kwargs: {} })).choices[0];
    expect(message.reasoning_content && message.content === "12 + 30 = 42", message);
    const { logprobs } = (await ask("12 + 30 = ?", { logprobs: true, top_logprobs: 2 })).choices[0];
    expect(logprobs.content.map((t) => t.token).join("") === "12 + 30 = 42", logprobs);
    const two = await ask("Tell me a story.", { n: 2, temperature: 1, seed: 3, max_tokens: 24 });
    expect(two.choices.length === 2, two);
  },

  async completions() {
    const prompt = { model: "gpt-4o", prompt: "12 + 30 =", max_tokens: 8, temperature: 0 };
    const whole = (await client.completions.create(prompt)).choices[0].text;
    let text = "";
    for await (const chunk of await client.completions.create({ ...prompt, stream: true })) {
      text += chunk.choices[0].text;
    }
    expect(text === whole && text.length > 0, { text, whole });
    return JSON.stringify(text);
  },

  async responses() {
    const common = { model: "gpt-5", temperature: 0, reasoning: { effort: "none" } };
    const first = await client.responses.create({ ...common, input: "12 + 30 = ?" });
    expect(first.output_text === "12 + 30 = 42", first.output);
    const stream = client.responses.stream({ ...common, input: "8 + 9 = ?", previous_response_id: first.id });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    const final = await stream.finalResponse();
    expect(kinds[0] === "response.created" && kinds.at(-1) === "response.completed", kinds);
    expect(final.output_text.includes("17"), final.output);
    const tools = [{ type: "function", strict: false, ...WEATHER }];
    const asked = await client.responses.create({ ...common, input: WEATHER_QUESTION, tools });
    const call = asked.output.find((item) => item.type === "function_call");
    const output = JSON.stringify(WEATHER_RESULT);
    const answer = await client.responses.create({
      ...common,
      tools,
      previous_response_id: asked.id,
      input: [{ type: "function_call_output", call_id: call.call_id, output }],
    });
    expect(answer.output_text.includes("21"), answer.output);
    return answer.output_text;
  },

  async errors() {
    const bad = await rejects(OpenAI.BadRequestError, ask("Hi", { temperature: -1 }));
    expect(bad.param === "temperature" && bad.requestID, bad);
    const long = await rejects(OpenAI.BadRequestError, ask("one two ".repeat(40_000)));
    expect(long.code === "context_length_exceeded", long);
    return long.message;
  },

  async wrong_key() {
    const baseURL = `${keyed()}/v1`;
    const models = (apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0 }).models.list();
    await rejects(OpenAI.AuthenticationError, models("wrong"));
    expect((await models(KEY)).data.length > 0, "no model with the right key");
  },

  async abandoned_stream() {
    await waitIdle(30);
    const stream = await ask("Tell me a story.", { stream: true, max_tokens: 4000, logit_bias: END_TOKENS });
    let chunks = 0;
    for await (const chunk of stream) {
      chunks += chunk.choices.length;
      if (chunks > 4) break; // the SDK aborts the request when its iterator is left
    }
    return `free after ${(await waitIdle(1)).toFixed(3)} s`;
  },

  async abort_signal_before_the_first_token() {
    await waitIdle(30);
    const controller = new AbortController();
    const request = client.chat.completions.create(
      body("Tell me a story.", { max_tokens: 4000, logit_bias: END_TOKENS }),
      { signal: controller.signal },
    );
    const rejected = rejects(OpenAI.APIUserAbortError, request);
    const start = performance.now();
    while ((await health()).running === 0) expect(performance.now() - start < 5000, "it never started");
    controller.abort();
    await rejected;
    return `free after ${(await waitIdle(1)).toFixed(3)} s`;
  },

  async concurrent_requests() {
    const sums = Array.from({ length: 8 }, (_, i) => [i + 40, 7]);
    const replies = await Promise.all(sums.map(([a, b]) => ask(`${a} + ${b} = ?`)));
    replies.forEach((reply, i) => {
      const [a, b] = sums[i];
      expect(reply.choices[0].message.content === `${a} + ${b} = ${a + b}`, reply.choices);
    });
  },
});
