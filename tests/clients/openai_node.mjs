// The official OpenAI client for Node, unmodified, against a running server: argv[2] is its base URL, argv[3] its key.

import assert from "node:assert/strict";
import OpenAI from "openai";

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

await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ model, messages, top_p: 7 }), OpenAI.BadRequestError);
const stranger = new OpenAI({ baseURL: `${base}/v1`, apiKey: "wrong", maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

const leaving = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
for await (const _ of leaving) break;
leaving.controller.abort();

console.log("openai (Node) works");
