// The official OpenAI client for Node, unmodified, against a running server: argv[2] is its base URL, argv[3] its key.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [base, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey });

const models = await client.models.list();
const model = models.data[0].id;

const prompt = "Once upon a time";
const whole = await client.completions.create({ model, prompt, max_tokens: 24, temperature: 0 });
assert.equal(whole.usage.completion_tokens, 24);
let text = "";
for await (const chunk of await client.completions.create({ model, prompt, max_tokens: 24, temperature: 0, stream: true })) {
  text += chunk.choices[0]?.text ?? "";
}
assert.equal(text, whole.choices[0].text);

const messages = [{ role: "user", content: "Hi, who are you?" }];
const chat = await client.chat.completions.create({ model, messages, max_tokens: 40, temperature: 0 });
const stream = client.chat.completions.stream({
  model, messages, max_tokens: 40, temperature: 0, stream_options: { include_usage: true },
});
const final = await stream.finalChatCompletion();
assert.equal(final.choices[0].message.content, chat.choices[0].message.content);
assert.equal(final.usage.completion_tokens, chat.usage.completion_tokens);

// The client's own loop: it asks, calls the function, tells what came of it, and gets the answer.
const parameters = {
  type: "object",
  properties: { city: { type: "string", description: "Name of the city" } },
  required: ["city"],
};
const cities = [];
const weather = ({ city }) => {
  cities.push(city);
  return city === "Rome" ? "sunny, 24 degrees" : "rain, 9 degrees";
};
const tools = [{
  type: "function",
  function: {
    name: "get_weather", description: "Get the current weather for a city.", parameters,
    function: weather, parse: JSON.parse,
  },
}];
const question = [{ role: "user", content: "What is the weather in Rome and in Oslo?" }];
for (const stream of [false, true]) {
  cities.length = 0;
  const body = { model, messages: [...question], tools, max_tokens: 120, temperature: 0, stream };
  const answer = await client.chat.completions.runTools(body).finalContent();
  assert.deepEqual(cities, ["Rome", "Oslo"]);
  assert.ok(answer);
}

// Structured output, read by zod.
const Event = z.object({ title: z.string().max(16), day: z.enum(["Monday", "Friday"]), guests: z.array(z.enum(["Ann", "Bo"])).max(2) });
const task = [{ role: "user", content: "Ann and Bo meet on Friday." }];
for (const seed of [1, 2, 3]) {
  const parsed = await client.chat.completions.parse({
    model, messages: task, max_tokens: 300, temperature: 1, seed, response_format: zodResponseFormat(Event, "event"),
  });
  Event.parse(parsed.choices[0].message.parsed);
}
const named = { type: "function", function: { name: "get_weather" } };
const { type, function: { name, description } } = tools[0];
const plain = [{ type, function: { name, description, parameters } }];
for (const tool_choice of ["required", named]) {
  const made = await client.chat.completions.create({
    model, messages: question, tools: plain, tool_choice, max_tokens: 120, temperature: 0,
  });
  assert.ok(JSON.parse(made.choices[0].message.tool_calls[0].function.arguments).city);
}

await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ model, messages, top_p: 7 }), OpenAI.BadRequestError);
const stranger = new OpenAI({ baseURL: `${base}/v1`, apiKey: "wrong", maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

const leaving = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
for await (const _ of leaving) break;
leaving.controller.abort();

console.log("openai (Node) works");
