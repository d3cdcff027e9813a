// The Vercel AI SDK against a running server: its tool loop on chats (openai-compatible) and on responses (openai).

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [base, apiKey] = process.argv.slice(2);
const headers = { authorization: `Bearer ${apiKey}` };
const name = (await (await fetch(`${base}/v1/models`, { headers })).json()).data[0].id;
const baseURL = `${base}/v1`;
const chats = createOpenAICompatible({ name: "quire", baseURL, apiKey, includeUsage: true });
const responses = createOpenAI({ baseURL, apiKey });

for (const model of [chats(name), responses.responses(name)]) {
  const cities = [];
  const get_weather = tool({
    description: "Get the current weather for a city.",
    inputSchema: z.object({ city: z.string().describe("Name of the city") }),
    execute: async ({ city }) => {
      cities.push(city);
      return city === "Rome" ? "sunny, 24 degrees" : "rain, 9 degrees";
    },
  });
  const asked = {
    model, temperature: 0, maxOutputTokens: 120, maxRetries: 0, stopWhen: stepCountIs(3), tools: { get_weather },
    prompt: "What is the weather in Rome and in Oslo?",
  };
  const whole = await generateText(asked);
  assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
  assert.ok(whole.text && whole.usage.outputTokens > 0);
  cities.length = 0;
  const streamed = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
  assert.ok(text.endsWith(whole.text));
}

console.log("Vercel AI SDK works");
