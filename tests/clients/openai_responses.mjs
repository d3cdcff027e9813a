// The official OpenAI client for Node against /v1/responses: argv[2] is the server's base URL, argv[3] its key.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [base, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, temperature: 0, max_output_tokens: 120 };

const hello = { ...greedy, input: "Hi, who are you?" };
const whole = await client.responses.create(hello);
assert.equal(whole.status, "completed");
assert.ok(whole.output_text);
const stream = client.responses.stream(hello);
let text = "";
stream.on("response.output_text.delta", (event) => { text += event.delta; });
const final = await stream.finalResponse();
assert.equal(final.output_text, whole.output_text);
assert.equal(text, whole.output_text);

const more = await client.responses.create({ ...greedy, input: "Tell me more.", previous_response_id: whole.id });
const items = await client.responses.inputItems.list(more.id, { order: "asc" });
assert.deepEqual(items.data.map((item) => item.role), ["user", "assistant", "user"]);

// Ask, call, answer, with all items sent again each time.
const parameters = {
  type: "object",
  properties: { city: { type: "string", description: "Name of the city" } },
  required: ["city"],
};
const description = "Get the current weather for a city.";
const tools = [{ type: "function", name: "get_weather", description, parameters, strict: false }];
for (const streamed of [false, true]) {
  const input = [{ role: "user", content: "What is the weather in Rome and in Oslo?" }];
  const cities = [];
  let answer;
  for (let turn = 0; turn < 3 && !answer; turn += 1) {
    const body = { ...greedy, input, tools, store: false };
    const response = streamed ? await client.responses.stream(body).finalResponse() : await client.responses.create(body);
    const calls = response.output.filter((item) => item.type === "function_call");
    input.push(...response.output);
    for (const call of calls) {
      const { city } = JSON.parse(call.arguments);
      cities.push(city);
      const output = city === "Rome" ? "sunny, 24 degrees" : "rain, 9 degrees";
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
    if (calls.length === 0) answer = response.output_text;
  }
  assert.deepEqual(cities, ["Rome", "Oslo"]);
  assert.ok(answer);
}

const started = await client.responses.create({ ...hello, background: true });
let last;
for await (const event of await client.responses.retrieve(started.id, { stream: true })) last = event;
assert.equal(last.type, "response.completed");
assert.equal(last.response.output.at(-1).content[0].text, whole.output_text);

await assert.rejects(client.responses.create({ ...hello, model: "nobody" }), OpenAI.NotFoundError);
await assert.rejects(client.responses.create({ ...hello, truncation: "middle" }), OpenAI.BadRequestError);

console.log("openai (Node) works with /v1/responses");
